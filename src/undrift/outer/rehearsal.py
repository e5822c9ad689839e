"""A rehearsal of a method: two rounds of two steps on made-up gradients, before any work.

It shows whether the method asks for gradients only, and whether it can run without a closure: then
each step asks for one gradient, at the point where the step before has left the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from undrift import tree
from undrift.core import Cohort, Comm, Federated, Loop, Merge, Peer, Prelude, Vector
from undrift.outer.local_round import Ask, LocalRound, LooksInside, ResumedLoop
from undrift.outer.messages import Alone

T = TypeVar("T")
STEPS = 2


@dataclass
class Habits:
    """Says how a method asks for gradients."""

    most: int = 0  # gradients of a step
    fewest: int = 1
    strays: bool = False  # whether a gradient is asked for where the model is not
    at_start: bool = False  # whether a peer asks for one before its first round

    @property
    def needs_closure(self) -> str:
        """Return why the method needs a closure, or "" if it needs none."""
        if self.most > 1:
            return f"asks for {self.most} gradients a step"
        if self.strays or self.fewest < 1:
            return "asks for gradients at other points than where the model is after a step"
        return ""


class _RehearsalLoop(ResumedLoop):
    """Is a loop that says what a method must not ask for."""

    @property
    def full(self) -> Any:
        """Raise, because a loader has no whole local data."""
        raise LooksInside("the gradient on all local data, which a loader does not have")


class _Echo(Alone):
    """Changes what is given, so that no step takes it for what it sent."""

    def mix(self, values: T) -> T:
        return tree.map(lambda leaf: 0.75 * leaf, values)

    def reduce(self, v: Vector, how: Merge) -> Vector:
        return 0.75 * v


@dataclass
class _Rehearsal:
    """Counts gradients and compares the points at which they are asked for."""

    habits: Habits = field(default_factory=Habits)
    asked: int = 0  # in the current step

    def gradient(self, at: Vector) -> Callable[[Vector], Vector]:
        """Return the made-up gradients of a step whose model is at `at`."""
        self.asked = 0

        def gradient(x: Vector) -> Vector:
            self.asked += 1
            if not torch.equal(x, at):
                self.habits.strays = True
            return torch.linspace(-1e-2, 1e-2, len(x), dtype=x.dtype, device=x.device)

        return gradient

    def run(self, round: LocalRound, x: Vector) -> Any:
        """Run a round whose model starts at x, and return its outcome."""
        while not round.ended:
            round.take_step(Ask(self.gradient(x), round.t, round.k))
            self.habits.most = max(self.habits.most, self.asked)
            self.habits.fewest = min(self.habits.fewest, self.asked)
            if round.pass_is_over:
                round.leave_pass()
            if not round.ended:
                x = round.next_point()
        return round.outcome


@torch.no_grad()
def rehearse(method: Federated[Any, Any, Any, Any] | Peer[Any], x0: Vector) -> Habits:
    """Return how a method asks for gradients, or raise a ValueError if it asks for more."""
    name = type(method).__name__
    try:
        if isinstance(method, Federated):
            return _rehearse_server(method, x0)
        return _rehearse_peer(method, x0)
    except LooksInside as error:
        raise ValueError(
            "Outer needs a method that asks for gradients of minibatches only, got "
            f"{name}, which asks for {error}; choose another method, or run it in simulate()."
        ) from None


def _loop(t: int, x0: Vector) -> _RehearsalLoop:
    sizes = (len(x0),)
    return _RehearsalLoop(
        t=t, rank=0, seed=0, count=STEPS, mean_count=float(STEPS), sizes=sizes, like=x0
    )


def _rehearse_server(method: Federated[Any, Any, Any, Any], x0: Vector) -> Habits:
    rehearsal, server = _Rehearsal(), method.init(x0)
    client = method.init_client(x0, method.broadcast(server))
    if isinstance(method, Prelude) and method.asks != "nobody":
        method.answer(method.ask(server), client, _loop(0, x0))
        raise LooksInside("an exchange before its steps")
    for t in range(2):
        down = method.broadcast(server)

        def program(loop: Loop, comm: Comm, down: Any = down, client: Any = client) -> Any:
            return method.local(down, client, loop)

        up, client = rehearsal.run(LocalRound(program, _loop(t, x0), _Echo()), server.x)
        server = method.update(server, up, Cohort(t=t, population=1, size=1, mass=1.0))
    return rehearsal.habits


def _rehearse_peer(method: Peer[Any], x0: Vector) -> Habits:
    rehearsal = _Rehearsal()
    node = method.init(x0, Ask(rehearsal.gradient(x0), -1, 0))
    rehearsal.habits.at_start = rehearsal.asked > 0
    for t in range(2):

        def program(loop: Loop, comm: Comm, node: Any = node) -> Any:
            return method.round(node, loop, comm)

        node = rehearsal.run(LocalRound(program, _loop(t, x0), _Echo()), node.x)
    return rehearsal.habits
