"""A method's round whose steps are traced and run block by block, see `outer.blocks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from undrift import tree
from undrift.core import Comm, Objective
from undrift.gradients.loops.trace import Program as TracedProgram
from undrift.gradients.loops.trace import (
    Structure,
    TracedObjective,
    TracedStep,
    program_of,
    trace_step,
)
from undrift.gradients.loops.traced import Node, Tape, UntraceableError
from undrift.outer.blocks import Blocks, StepValues
from undrift.outer.gradients import StepGradients
from undrift.outer.inner import InnerOptimizer
from undrift.outer.local_round import Ask, LocalRound, Program, ResumedLoop
from undrift.outer.messages import MessageWanted
from undrift.outer.parameters import Parameters


class BlockedRound(LocalRound):
    """Runs a round on a model's own memory; a step that cannot be traced runs as it is written.

    The carry's vectors belong to the round from its first step on and are then changed in place.
    `torn` says that a step has failed while it wrote, so that the round cannot go on.
    """

    def __init__(
        self,
        program: Program,
        loop: ResumedLoop,
        comm: Comm,
        saved: Mapping[str, Any] | None,
        *,
        parameters: Parameters,
        inner: InnerOptimizer | None,
    ) -> None:
        self._parameters, self._inner = parameters, inner
        self._blocks = Blocks(parameters.layout.sizes)
        self.torn = False
        super().__init__(program, loop, comm, saved)

    def _enter(self) -> None:
        super()._enter()
        self._own: set[int] = set()  # the carry's places whose memory no one else has
        self._traced = None if self.ended else self._trace()

    def _trace(self) -> TracedProgram | None:
        """Return what the steps of this pass do, or None if that cannot be traced."""
        layout = self._parameters.layout

        def silent(carry: Any, f: Objective) -> Any:
            try:
                with self._messages.held_back():
                    return self._step(carry, f)
            except MessageWanted:
                raise UntraceableError("a message to other ranks") from None

        def trace(first: bool) -> TracedStep:
            data = TracedObjective(Tape(layout.size, layout.dtype), self.t, first)
            return trace_step(silent, self.carry, data, data)

        try:
            return program_of(trace)
        except UntraceableError:
            return None

    def _at(self, k: int) -> TracedStep | None:
        """Return the traced step k, which also makes the point of the next one, or None."""
        program = self._traced
        step = None if program is None else program.later if k else program.first
        if program is None or step is None or k + 1 >= self._loop.steps:
            return step
        return with_next_point(step, program.later)

    def settle(self) -> None:
        """Put the model where the next step wants its first gradient."""
        if self._parameters.is_at(self.next_point):
            return
        self._parameters.move(self.next_point())
        if self._at(self.k) is not None:
            self._parameters.settle(self.next_point)

    def take(self, source: StepGradients) -> None:
        """Take one step; unless it is torn, the round stays as it was without its success."""
        step = self._at(self.k)
        if step is None:
            self.take_step(Ask(source.gradient, self.t, self.k))
            self._own = set()
            return
        self.settle()
        with self._messages.in_step():
            values = self._whole_vectors(step, source)
            self.torn = True
            self.carry = tree.with_leaves(self.carry, self._results(step, values))
        self.k += 1
        self.torn = False

    def _whole_vectors(self, step: TracedStep, source: StepGradients) -> StepValues:
        """Compute what needs whole vectors: gradients, and the step of an inner optimiser."""
        values = StepValues(step, tree.leaves(self.carry), self._blocks)
        model, gradient = -1, -1  # the nodes of which the model and its gradients have the values
        for i in needed_for(step.structure.nodes, step.structure.outputs):
            node = step.structure.nodes[i]
            if node.op == "gradient":
                if gradient >= 0:
                    self._write(values, node.args[0])
                values.give(i, self._blocks.of_parameters(source.pieces()))
                model, gradient = node.args[0], i
            elif node.op == "moved":
                g, y = node.args
                if y != model:
                    self._write(values, y)
                if g != gradient:
                    self._give_gradients(values, g)
                self._advance()
                values.give(i, self._blocks.of_vector(self._parameters.vector))
                model = i
        return values

    def _write(self, values: StepValues, point: int) -> None:
        """Put the model at a point that is no place of the round's."""
        vector = self._parameters.vector
        self._parameters.settle(vector.clone)
        values.store([(point, self._blocks.of_vector(vector))])

    def _give_gradients(self, values: StepValues, g: int) -> None:
        """Make a vector the gradients of the parameters, for the inner optimiser."""
        vector = torch.empty_like(self._parameters.vector)
        values.store([(g, self._blocks.of_vector(vector))])
        self._parameters.set_gradient(vector)

    def _advance(self) -> None:
        assert self._inner is not None
        self.torn = True
        self._inner.advance()
        self._parameters.settle(self._parameters.vector.clone)

    def _results(self, step: TracedStep, values: StepValues) -> list[Tensor]:
        """Return the leaves of the next carry, and move the model to where the next step begins."""
        nodes, leaves = step.structure.nodes, tree.leaves(self.carry)
        outputs, beyond = (
            step.structure.outputs[: len(leaves)],
            step.structure.outputs[len(leaves) :],
        )
        new, targets = list(leaves), []  # type: list[Tensor], list[tuple[int, Sequence[Tensor]]]
        for place, out in enumerate(outputs):
            if not nodes[out].vector:
                new[place] = torch.as_tensor(values.single(out)).to(leaves[place])
            elif (nodes[out].op, nodes[out].place) != ("carry", place):
                if place not in self._own:
                    new[place] = torch.empty_like(leaves[place])
                targets.append((out, self._blocks.of_vector(new[place])))
                self._own.add(place)
        vector = self._parameters.vector
        self._parameters.settle(vector.clone)
        # To its own outcome the inner optimiser has moved the model already.
        elsewhere = [point for point in beyond if nodes[point].op != "moved"]
        targets.extend((point, self._blocks.of_vector(vector)) for point in elsewhere)
        values.store(targets)
        if beyond:
            self._parameters.settle(self.next_point)
        return new


def with_next_point(step: TracedStep, following: TracedStep) -> TracedStep:
    """Return a step that has one more output, where the step after it wants its first gradient.

    It is the same step if only the step after it can tell.
    """
    nodes, after = list(step.structure.nodes), following.structure.nodes
    outputs = step.structure.outputs
    gradients = [i for i, node in enumerate(after) if node.op == "gradient"]
    if not gradients:
        return step
    point, place = after[gradients[0]].args[0], {}  # type: int, dict[int, int]
    for i in needed_for(after, [point]):
        node = after[i]
        if node.op == "carry":
            place[i] = outputs[node.place]
            continue
        if node.op in ("norm", "gradient", "moved"):
            return step
        beyond = {"tensor": len(step.tensors), "number": len(step.numbers)}.get(node.op, 0)
        args = tuple(place[a] for a in node.args)
        place[i] = len(nodes)
        nodes.append(replace(node, args=args, place=node.place + beyond))
    return replace(
        step,
        structure=Structure(tuple(nodes), (*outputs, place[point])),
        tensors=(*step.tensors, *following.tensors),
        numbers=(*step.numbers, *following.numbers),
    )


def needed_for(nodes: Sequence[Node], wanted: Sequence[int]) -> list[int]:
    """Return the nodes that some nodes depend on, and these, in order."""
    needed = set(wanted)
    for i in reversed(range(len(nodes))):
        if i in needed:
            needed.update(nodes[i].args)
    return sorted(needed)
