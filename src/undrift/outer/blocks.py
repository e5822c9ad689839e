"""Arithmetic of a traced step on long vectors, in blocks of coordinates that fit the cache.

A step on whole vectors makes a new vector in every operation, whose memory the system has to hand
out and to clear; for a model of 10M parameters that takes as long as a fifth of the gradient. Here
each block of coordinates goes through all operations, and only results are written: in compiled
code where that is possible (`outer.compiled`), else by torch's operations on the block.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.core import Vector
from undrift.gradients.loops.trace import TracedStep
from undrift.gradients.loops.traced import Node
from undrift.outer.compiled import compiled_pass

BLOCK = 2**16  # coordinates, for each of torch's threads
GIVEN = "carry", "tensor", "gradient", "moved", "zero", "one"  # vectors that no operation makes

OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "add_scaled": lambda a, b, c: torch.add(a, b, alpha=c),
    "sub_scaled": lambda a, b, c: torch.sub(a, b, alpha=c),
    "pow": operator.pow,
    "where": torch.where,
    **{name: getattr(operator, name) for name in ("gt", "ge", "lt", "le", "eq", "ne")},
    **{name: getattr(torch, name) for name in ("neg", "reciprocal", "sqrt", "abs", "lerp")},
}


class ParameterPart(NamedTuple):
    """Says which coordinates of which parameter belong to a block."""

    parameter: int
    start: int
    stop: int


class Blocks:
    """Cuts a vector of parameters into blocks; short parameters share one."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.pieces: list[list[ParameterPart]] = []
        most, room = BLOCK * torch.get_num_threads(), 0
        for parameter, size in enumerate(sizes):
            start = 0
            while start < size:
                if room == 0:
                    self.pieces.append([])
                    room = most
                stop = min(size, start + room)
                self.pieces[-1].append(ParameterPart(parameter, start, stop))
                room -= stop - start
                start = stop
        self.lengths = [sum(p.stop - p.start for p in pieces) for pieces in self.pieces]

    def of_vector(self, x: Vector) -> Sequence[Tensor]:
        """Return the blocks of a vector."""
        return torch.split(x, self.lengths)

    def of_parameters(self, flat: Sequence[Tensor]) -> list[Tensor]:
        """Return the blocks of what lies apart, a vector for each parameter."""
        blocks = []
        for pieces in self.pieces:
            parts = [flat[p.parameter][p.start : p.stop] for p in pieces]
            blocks.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        return blocks


class StepValues:
    """Holds the values of one traced step: single numbers, and vectors that are in memory."""

    def __init__(self, step: TracedStep, carry: Sequence[Tensor], blocks: Blocks) -> None:
        self.nodes: tuple[Node, ...] = step.structure.nodes
        self._step, self._carry, self._blocks = step, carry, blocks
        self._single: dict[int, Any] = {}
        self._memory: dict[int, Sequence[Tensor]] = {}

    def give(self, node: int, blocks: Sequence[Tensor]) -> None:
        """Give the blocks of a vector that could not be computed here."""
        self._memory[node] = blocks

    def single(self, i: int) -> Any:
        """Return a single number, which is computed when it is first asked for."""
        if i not in self._single:
            node = self.nodes[i]
            if node.op == "number":
                value: Any = self._step.numbers[node.place]
            elif node.op == "norm":
                norms = [row[node.args[0]].norm() for row in self._rows([node.args[0]])]
                value = torch.stack(norms).norm()
            elif node.op in ("carry", "tensor"):
                value = (self._carry if node.op == "carry" else self._step.tensors)[node.place]
            elif node.op in ("zero", "one"):
                value = self._carry[0].new_full((), float(node.op == "one"))
            else:
                value = OPERATIONS[node.op](*map(self.single, node.args))
            self._single[i] = value
        return self._single[i]

    def store(self, targets: Sequence[tuple[int, Sequence[Tensor]]]) -> None:
        """Write vectors, each given by its node, into the blocks of some memory.

        The memory may be that of vectors which the step has been given: a block is written when all
        of its values have been computed.
        """
        wanted = [node for node, _ in targets]
        given, made = self._schedule(wanted)
        memory = {i: self._blocks_of(i) for i in given}
        used = {a for i in made for a in self.nodes[i].args}
        single = {a: self.single(a) for a in used if not self.nodes[a].vector}
        compiled = compiled_pass(self.nodes, given, made, tuple(single), tuple(wanted), self._like)
        if compiled is not None:
            blocks = [memory[i] for i in given]
            compiled(blocks, [into for _, into in targets], single.values(), self._blocks.lengths)
            return
        for block, row in enumerate(self._rows(wanted)):
            # A value may be the old content of a place that another value is written to.
            values = [_own(row[i], self.nodes[i]) for i in wanted]
            for value, (_, into) in zip(values, targets, strict=True):
                into[block].copy_(value)

    @property
    def _like(self) -> Tensor:
        return next(leaf for leaf in self._carry if leaf.ndim == 1)

    def _rows(self, wanted: Sequence[int]) -> Iterator[dict[int, Any]]:
        """Yield for each block the values of the nodes that `wanted` need, by their numbers."""
        given, made = self._schedule(wanted)
        used = {a for i in made for a in self.nodes[i].args}
        single = {a: self.single(a) for a in used if not self.nodes[a].vector}
        memory = [(i, self._blocks_of(i)) for i in given]
        operations = [(i, OPERATIONS[self.nodes[i].op], self.nodes[i].args) for i in made]
        for block in range(len(self._blocks.lengths)):
            values = dict(single)
            for i, rows in memory:
                values[i] = rows[block]
            for i, function, args in operations:
                values[i] = function(*[values[a] for a in args])
            yield values

    def _schedule(self, wanted: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the vectors that must be in memory, and those that are made, in order."""
        needed, given, made = set(wanted), [], []  # type: set[int], list[int], list[int]
        for i in reversed(range(len(self.nodes))):
            node = self.nodes[i]
            if i not in needed or not node.vector:
                continue
            if node.op in GIVEN:
                given.append(i)
            else:
                made.append(i)
                needed.update(node.args)
        return tuple(reversed(given)), tuple(reversed(made))

    def _blocks_of(self, i: int) -> Sequence[Tensor]:
        """Return the blocks of a vector that is in memory, or of one that has one value only."""
        if i not in self._memory:
            node = self.nodes[i]
            if node.op in ("zero", "one"):
                value = float(node.op == "one")
                like = self._like.new_full((max(self._blocks.lengths),), value)
                self._memory[i] = [like[:length] for length in self._blocks.lengths]
            else:
                whole = self._carry if node.op == "carry" else self._step.tensors
                self._memory[i] = self._blocks.of_vector(whole[node.place])
        return self._memory[i]


def _own(value: Tensor, node: Node) -> Tensor:
    return value.clone() if node.op in GIVEN else value
