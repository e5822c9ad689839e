"""A method's round, taken one step at a time by the user's own loop.

A method writes `y = steps(step, x)` and so drives its loop, and the user's script drives its own.
Both keep their form because methods are pure: the method is run until it wants its steps, which
gives the function `step` and the first carry; each call of the optimiser takes one step; after the
last the method is run again, from its beginning, by a loop that returns the carry at once. What
comes before and after the steps is a few operations on vectors. So there is no thread, gradients
are computed where the script is, and a state in the middle of a round is a carry and a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from undrift import keyed, tree
from undrift.core import Comm, Objective, Vector
from undrift.outer.messages import Messages, MessageWanted
from undrift.outer.saving import leaves_of

T = TypeVar("T")


class _StepsWanted(BaseException):
    """Leaves a method at the point where it wants its steps; no error, so nobody catches it."""

    def __init__(self, step: Callable[[Any, Objective], Any], init: Any) -> None:
        super().__init__()
        self.step, self.init = step, init


class _PointWanted(BaseException):
    """Leaves a step at the point where it wants its first gradient."""

    def __init__(self, x: Vector) -> None:
        super().__init__()
        self.x = x


class ResumedLoop:
    """Is the `Loop` of one rank; it returns the carries of passes that are done."""

    def __init__(
        self,
        *,
        t: int,
        rank: int,
        seed: int,
        count: int,
        mean_count: float,
        sizes: tuple[int, ...],
        like: Vector,
    ) -> None:
        self.t, self.mean_count, self.sizes = t, mean_count, sizes
        self.count = torch.tensor(float(count), dtype=like.dtype, device=like.device)
        self.steps = count
        self._rank, self._seed, self._device = rank, seed, like.device
        self.done: list[Any] = []  # carries after the passes that are done
        self._calls = 0

    def rewind(self) -> None:
        """Begin again with the first pass."""
        self._calls = 0

    def __call__(self, step: Callable[[T, Objective], T], init: T) -> T:
        self._calls += 1
        if self._calls <= len(self.done):
            return self.done[self._calls - 1]  # type: ignore[no-any-return]
        raise _StepsWanted(step, init)

    @property
    def full(self) -> NoReturn:
        """Raise, because the rehearsal of a method has refused it already."""
        raise NotImplementedError("A loader has no gradient on all local data.")

    def draw(self, purpose: str, like: Tensor) -> Tensor:
        """Return uniforms that are keyed by seed, purpose, round and rank, as in a simulation."""
        key = keyed.key(self._seed, f"draw/{purpose}", self.t, self._rank)
        return keyed.uniform(torch.tensor(key, device=self._device), like.shape, like.dtype)


Program = Callable[[ResumedLoop, Comm], Any]  # a method's round, up to what it sends


class LocalRound:
    """Runs `program`, a method's round on one rank, step by step; `outcome` is what it returns."""

    def __init__(
        self,
        program: Program,
        loop: ResumedLoop,
        comm: Comm,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        self.outcome: Any = None
        self.carry: Any = ()
        self.ended = False
        self.k = 0  # steps of the current pass that are done
        self._program, self._loop, self._messages = program, loop, Messages(comm)
        self._messages.heard = [] if saved is None else [list(each) for each in saved["heard"]]
        self._enter()
        if saved is not None:
            self._restore(saved)

    @property
    def t(self) -> int:
        """Return the number of the round."""
        return self._loop.t

    def take_step(self, f: Objective) -> None:
        """Take one step; without its success the round stays as it was."""
        with self._messages.in_step():
            carry = self._step(self.carry, f)
        self.carry, self.k = carry, self.k + 1

    @property
    def pass_is_over(self) -> bool:
        """Return whether the current pass has all its steps, so that `leave_pass` must follow."""
        return self.k == self._loop.steps

    def leave_pass(self) -> None:
        """Start the next pass, or run to the end of the round, where ranks of peers meet."""
        self._loop.done.append(self.carry)
        self._enter()

    def _enter(self) -> None:
        self._loop.rewind()
        self._messages.rewind()
        try:
            self.outcome = self._program(self._loop, self._messages)
            self.ended = True
        except _StepsWanted as wanted:
            self._step, self.carry, self.k = wanted.step, wanted.init, 0

    def next_point(self) -> Vector:
        """Return where the next step wants its first gradient.

        A step that must hear from others first begins at the model in its carry.
        """
        try:
            with self._messages.held_back():
                self._step(self.carry, Ask(self._leave, self.t, self.k))
        except _PointWanted as wanted:
            return wanted.x
        except MessageWanted:
            pass
        return next(leaf for leaf in tree.leaves(self.carry) if leaf.shape == self._shape)

    @property
    def _shape(self) -> torch.Size:
        return torch.Size([sum(self._loop.sizes)])

    @staticmethod
    def _leave(x: Vector) -> NoReturn:
        raise _PointWanted(x)

    # Checkpoints

    def saved(self) -> dict[str, Any]:
        """Return the carries and what was heard before them, as lists of tensors, and the step."""
        done = [leaves_of(carry) for carry in self._loop.done]
        heard = [list(leaves) for leaves in self._messages.heard]
        return {"done": done, "carry": leaves_of(self.carry), "k": self.k, "heard": heard}

    def _restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the round where it was saved."""
        for leaves in saved["done"]:
            self.carry = tree.with_leaves(self.carry, leaves)
            self.leave_pass()
        self.carry, self.k = tree.with_leaves(self.carry, saved["carry"]), saved["k"]


class Ask:
    """Is the `Objective` of one step; every gradient is asked of a function."""

    def __init__(self, gradient: Callable[[Vector], Vector], t: int, k: int) -> None:
        self._gradient, self.t, self.k = gradient, t, k

    def grad(self, x: Vector) -> Vector:
        return self._gradient(x)

    def grad_and_data_grad(self, x: Vector) -> tuple[Vector, Vector]:
        g = self._gradient(x)  # decay and clipping are the closure's own, so both are the same
        return g, g

    @property
    def level(self) -> Tensor:
        raise LooksInside("the blocks of the model")

    def __call__(self, x: Vector) -> Tensor:
        raise LooksInside("the value of the loss")

    def outputs(self, x: Vector) -> NoReturn:
        raise LooksInside("the outputs of the model")

    def plus(self, term: Callable[[Vector], Tensor]) -> NoReturn:
        raise LooksInside("a term of its own in the loss")


class LooksInside(Exception):
    """Says what a method asks for that no closure can answer."""
