"""Traces a step of an algorithm, at the first minibatch of a pass and at all later ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

from torch import Tensor
from torch.overrides import TorchFunctionMode

from undrift import tree
from undrift.core import Objective, Outputs, Vector
from undrift.errors import first_line
from undrift.gradients.loops.traced import Node, Tape, UntraceableError
from undrift.gradients.objective import instrument
from undrift.gradients.task import Task


@dataclass(frozen=True)
class Structure:
    """Holds all of a traced step that its C++ depends on: the values, not their numbers."""

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]  # the nodes that become the leaves of the next carry


@dataclass(frozen=True)
class TracedStep:
    """Holds what a step does, and the tensors and numbers that it uses."""

    structure: Structure
    tensors: tuple[Tensor, ...]
    numbers: tuple[float, ...]
    gradients: int  # that it asks for
    reads_k: bool

    def same(self, other: TracedStep) -> bool:
        """Return whether two traces do the same with the same numbers."""
        return self.structure == other.structure and self.numbers == other.numbers


@dataclass(frozen=True)
class Program:
    """Holds a step at k = 0 and at k > 0; `first` is None where only the later ones are traced."""

    first: TracedStep | None
    later: TracedStep

    @cached_property
    def variants(self) -> tuple[TracedStep, ...]:
        """Return the steps that differ: one, or the first and the later."""
        if self.first is None or not (self.first.reads_k or self.later.reads_k):
            return (self.later,)
        return self.first, self.later

    @cached_property
    def structure(self) -> tuple[Structure, ...]:
        """Return all that the C++ depends on."""
        return tuple(step.structure for step in self.variants)


def trace_program(step: Callable[[Any, Objective], Any], init: Any, task: Task, t: int) -> Program:
    """Return what a step does on a task's gradients, or raise `UntraceableError`."""

    def trace(first: bool) -> TracedStep:
        data = TracedObjective(Tape(task.layout.size), t, first)
        return trace_step(step, init, data, instrument(task, data, data.count))

    return program_of(trace)


def program_of(trace: Callable[[bool], TracedStep]) -> Program:
    """Return the program of a step from its trace at k = 0, which is told by True, and later.

    A step at k = 0 that cannot be traced, say for a collective, leaves a program of the later ones.
    """
    later = trace(False)
    try:
        first = trace(True)
    except UntraceableError:
        return Program(None, later)
    if not (first.reads_k or later.reads_k) and not first.same(later):
        raise UntraceableError("a step that changes from call to call")
    return Program(first, later)


def trace_step(
    step: Callable[[Any, Objective], Any], init: Any, data: TracedObjective, f: Objective
) -> TracedStep:
    """Return what a step does with `f`, whose gradients are `data`'s, or `UntraceableError`.

    `init` is what the first step of a pass is given.
    """
    leaves, tape = tree.leaves(init), data.tape
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise UntraceableError("a carry of other things than tensors")
    values: list[Any] = [tape.carried(i, leaf) for i, leaf in enumerate(leaves)]
    carry = tree.with_leaves(init, values)
    try:
        with _Pure():
            new = step(carry, f)
    except Exception as error:  # A step may raise anything when it is given no tensors.
        raise UntraceableError(first_line(error)) from error
    outputs = _outputs(tape, new, carry)
    structure = Structure(tuple(tape.nodes), outputs)
    tensors, numbers = tuple(tape.tensors), tuple(tape.numbers)
    return TracedStep(structure, tensors, numbers, data.gradients, data.reads_k)


RANDOM = (
    *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal"),
    *("bernoulli", "multinomial", "poisson", "dropout", "manual_seed"),
)


class _Pure(TorchFunctionMode):
    """Refuses what a trace would do once instead of at every step: draws, and changes in place."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = function.__name__
        changes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if name in RANDOM or changes:
            raise UntraceableError(f"`{name}` in a step")
        return function(*args, **(kwargs or {}))


def _outputs(tape: Tape, new: Any, carry: Any) -> tuple[int, ...]:
    """Return the nodes of what a step passes on, which must have the form of what it was given."""
    if tree.form(new) != tree.form(carry):
        raise UntraceableError("a carry that changes its form")
    values = [tape.value(leaf) for leaf in tree.leaves(new)]
    given: list[Any] = tree.leaves(carry)
    for value, before in zip(values, given, strict=True):
        if value.node.condition or value.node.vector != before.node.vector:
            raise UntraceableError("a carry that changes its form")
    return tuple(value.index for value in values)


@dataclass
class TracedObjective:
    """Is an `Objective` whose gradients are recorded; nothing else of it can be asked."""

    tape: Tape
    t: int
    first: bool
    gradients: int = field(default=0, init=False)
    reads_k: bool = field(default=False, init=False)

    def count(self) -> None:
        """Count a gradient that a step asks for."""
        self.gradients += 1

    @property
    def k(self) -> Any:
        self.reads_k = True
        return StepNumber(self.first)

    @property
    def level(self) -> Tensor:
        self._refuse("`level` in a step")

    def __call__(self, x: Vector) -> Tensor:
        self._refuse("the value of the loss in a step")

    def grad(self, x: Any) -> Any:
        return self.tape.gradient(x)

    def grad_and_data_grad(self, x: Any) -> tuple[Any, Any]:
        g = self.grad(x)
        return g, g

    def outputs(self, x: Vector) -> Outputs:
        self._refuse("the model's outputs in a step")

    def plus(self, term: Callable[[Vector], Tensor]) -> Objective:
        self._refuse("a term that is added to the loss")

    def _refuse(self, what: str) -> NoReturn:
        raise UntraceableError(what)


class StepNumber:
    """Stands for k, of which a step may ask only whether it is 0."""

    def __init__(self, first: bool) -> None:
        self._first = first

    def __bool__(self) -> bool:
        return not self._first

    def __lt__(self, n: int) -> bool:
        if self._first:
            return n > 0
        if n > 1:
            self._refuse()
        return False

    def __ge__(self, n: int) -> bool:
        return not self < n

    def __le__(self, n: int) -> bool:
        return self < n + 1

    def __gt__(self, n: int) -> bool:
        return not self < n + 1

    def __eq__(self, n: object) -> bool:
        if self._first or not isinstance(n, int):
            return n == 0
        if n > 0:
            self._refuse()
        return False

    __hash__ = None  # type: ignore[assignment]

    def _refuse(self, *_: Any) -> NoReturn:
        raise UntraceableError("another use of k than to tell the first step")

    __str__ = __format__ = __int__ = __float__ = __index__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __pow__ = __rpow__ = _refuse
