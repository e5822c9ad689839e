"""Values that record what is done with them: vectors of the model's size and single numbers.

A step of an algorithm is called with such values instead of tensors. Whatever it does with them
goes onto a tape; what cannot be recorded raises `UntraceableError`, and the step runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor


class UntraceableError(Exception):
    """Says in a few words what a compiled loop cannot do."""


@dataclass(frozen=True)
class Node:
    """Describes one value of a step by the operation that makes it.

    `place` is the index of a carried leaf, of a tensor or of a number that the step uses.
    """

    op: str
    args: tuple[int, ...] = ()
    place: int = 0
    vector: bool = False  # of the model's size; otherwise a single number
    condition: bool = False  # true or false


COMPARISONS = "gt", "ge", "lt", "le", "eq", "ne"


class Tape:
    """Records a step: its values in the order in which they are made, each of them once."""

    def __init__(self, size: int, dtype: torch.dtype = torch.float32) -> None:
        self.size, self.dtype = size, dtype  # of a vector
        self.nodes: list[Node] = []
        self.tensors: list[Tensor] = []  # that the step uses besides what it is given
        self.numbers: list[float] = []  # likewise, a place for each use, so that values may change
        self._known: dict[Node, int] = {}

    def carried(self, place: int, leaf: Tensor) -> Traced:
        """Return the value that stands for a leaf of what a step passes on."""
        return self._made(Node("carry", (), place, self._is_vector(leaf)))

    def gradient(self, x: Any) -> Traced:
        """Return the gradient of the minibatch at x."""
        x = self.value(x)
        if not x.node.vector:
            raise UntraceableError("a gradient at something that is not a vector")
        return self._made(Node("gradient", (x.index,), 0, True))

    def value(self, given: Any) -> Traced:
        """Return a traced value as it is, and one for a tensor or a number."""
        if isinstance(given, Traced):
            if given.tape is not self:
                raise UntraceableError("a value of another step")
            return given
        if isinstance(given, Tensor):
            return self._tensor(given)
        if isinstance(given, int | float) and not isinstance(given, bool):
            self.numbers.append(float(given))
            return self._made(Node("number", (), len(self.numbers) - 1))
        raise UntraceableError(f"an operand of type {type(given).__name__}")

    def apply(self, op: str, *operands: Any) -> Traced:
        """Return the value of an operation on each coordinate."""
        values = [self.value(operand) for operand in operands]
        chooses = op == "where"
        for i, value in enumerate(values):
            if value.node.condition != (chooses and i == 0):
                raise UntraceableError(f"`{op}` of conditions and values")
        vector = any(value.node.vector for value in values)
        args = tuple(value.index for value in values)
        return self._made(Node(op, args, 0, vector, op in COMPARISONS))

    def constant(self, op: str, like: Any) -> Traced:
        """Return zeros or ones in the form of a value."""
        return self._made(Node(op, (), 0, self.value(like).node.vector))

    def norm(self, given: Any) -> Traced:
        """Return the Euclidean norm of a vector."""
        value = self.value(given)
        if not value.node.vector or value.node.condition:
            raise UntraceableError("the norm of something that is not a vector")
        return self._made(Node("norm", (value.index,)))

    def whole(self, op: str, *operands: Any) -> Traced:
        """Return the vector of an operation that needs all coordinates at once."""
        args = tuple(self.value(operand).index for operand in operands)
        return self._made(Node(op, args, 0, True))

    def _tensor(self, tensor: Tensor) -> Traced:
        vector = self._is_vector(tensor)
        for place, known in enumerate(self.tensors):
            if known is tensor:
                return self._made(Node("tensor", (), place, vector))
        self.tensors.append(tensor)
        return self._made(Node("tensor", (), len(self.tensors) - 1, vector))

    def _is_vector(self, tensor: Tensor) -> bool:
        if tensor.dtype != self.dtype or tensor.shape not in ((self.size,), ()):
            shape = tuple(tensor.shape)
            raise UntraceableError(f"a tensor of {tensor.dtype} and shape {shape}")
        return tensor.ndim == 1

    def _made(self, node: Node) -> Traced:
        index = self._known.setdefault(node, len(self.nodes))
        if index == len(self.nodes):
            self.nodes.append(node)
        return Traced(self, index)


class Traced:
    """Stands for a tensor while a step is traced."""

    __array_ufunc__ = None  # NumPy's numbers leave arithmetic with it to it

    def __init__(self, tape: Tape, index: int) -> None:
        self.tape, self.index = tape, index

    @property
    def node(self) -> Node:
        """Return how the value is made."""
        return self.tape.nodes[self.index]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Traced:
        tapes = [each.tape for each in args if isinstance(each, Traced)]
        if not tapes:
            raise UntraceableError(f"`{function.__name__}` with traced values by name")
        return call(tapes[0], function.__name__, *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Callable[..., Traced]:
        if name not in OPERATIONS:
            raise AttributeError(f"`{name}` of a vector")
        return lambda *args, **kwargs: call(self.tape, name, self, *args, **kwargs)

    def __add__(self, other: Any) -> Traced:
        return self.tape.apply("add", self, other)

    def __radd__(self, other: Any) -> Traced:
        return self.tape.apply("add", other, self)

    def __sub__(self, other: Any) -> Traced:
        return self.tape.apply("sub", self, other)

    def __rsub__(self, other: Any) -> Traced:
        return self.tape.apply("sub", other, self)

    def __mul__(self, other: Any) -> Traced:
        return self.tape.apply("mul", self, other)

    def __rmul__(self, other: Any) -> Traced:
        return self.tape.apply("mul", other, self)

    def __truediv__(self, other: Any) -> Traced:
        return self.tape.apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Traced:
        return self.tape.apply("mul", self.tape.apply("reciprocal", self), other)  # as torch has it

    def __pow__(self, other: Any) -> Traced:
        return _power(self.tape, self, other)

    def __rpow__(self, other: Any) -> Traced:
        return _power(self.tape, other, self)

    def __neg__(self) -> Traced:
        return self.tape.apply("neg", self)

    def __gt__(self, other: Any) -> Traced:
        return self.tape.apply("gt", self, other)

    def __ge__(self, other: Any) -> Traced:
        return self.tape.apply("ge", self, other)

    def __lt__(self, other: Any) -> Traced:
        return self.tape.apply("lt", self, other)

    def __le__(self, other: Any) -> Traced:
        return self.tape.apply("le", self, other)

    def __eq__(self, other: Any) -> Traced:  # type: ignore[override]
        return self.tape.apply("eq", self, other)

    def __ne__(self, other: Any) -> Traced:  # type: ignore[override]
        return self.tape.apply("ne", self, other)

    __hash__ = None  # type: ignore[assignment]

    def _refuse(self, *_: Any) -> NoReturn:
        raise UntraceableError("a decision on a value, or its text")

    __bool__ = __float__ = __int__ = __index__ = __str__ = __format__ = _refuse


def call(tape: Tape, name: str, *args: Any, **kwargs: Any) -> Traced:
    """Return the value of a function or method of torch, which has this name."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise UntraceableError(f"`{name}`")
    try:
        return operation(tape, *args, **kwargs)
    except TypeError as error:
        raise UntraceableError(f"`{name}` with other arguments") from error


def _add(tape: Tape, a: Any, b: Any, *, alpha: Any = None) -> Traced:
    return tape.apply("add", a, b) if alpha is None else tape.apply("add_scaled", a, b, alpha)


def _sub(tape: Tape, a: Any, b: Any, *, alpha: Any = None) -> Traced:
    return tape.apply("sub", a, b) if alpha is None else tape.apply("sub_scaled", a, b, alpha)


def _power(tape: Tape, a: Any, b: Any) -> Traced:
    """Return a to the power of b: a square, or a power of single numbers."""
    if isinstance(b, int | float) and b == 2:
        return tape.apply("mul", a, a)
    power = tape.apply("pow", a, b)
    if power.node.vector:
        raise UntraceableError("a power of a vector")
    return power


def _norm(tape: Tape, a: Any, p: Any = 2, dim: Any = None, **others: Any) -> Traced:
    """Return a norm as `Tensor.norm` and `torch.linalg.vector_norm` have it."""
    plain = p in (2, "fro", None) and dim is None and not any(others.values())
    if not plain:
        raise UntraceableError("a norm other than the Euclidean of a whole vector")
    return tape.norm(a)


def _on_each(op: str, count: int) -> Callable[..., Traced]:
    def operation(tape: Tape, *operands: Any) -> Traced:
        if len(operands) != count:
            raise TypeError
        return tape.apply(op, *operands)

    return operation


OPERATIONS: dict[str, Callable[..., Traced]] = {
    "add": _add,
    "sub": _sub,
    "subtract": _sub,
    "lerp": _on_each("lerp", 3),
    "where": _on_each("where", 3),
    "pow": _power,
    "norm": _norm,
    "linalg_vector_norm": _norm,
    "zeros_like": lambda tape, like: tape.constant("zero", like),
    "ones_like": lambda tape, like: tape.constant("one", like),
    "clone": lambda tape, a: tape.value(a),
    "detach": lambda tape, a: tape.value(a),
    "square": lambda tape, a: tape.apply("mul", a, a),
    **{name: _on_each(name, 2) for name in ("mul", "div", *COMPARISONS)},
    "multiply": _on_each("mul", 2),
    "divide": _on_each("div", 2),
    "true_divide": _on_each("div", 2),
    **{name: _on_each(name, 1) for name in ("neg", "reciprocal", "sqrt", "abs")},
}
