"""A pass over the minibatches in compiled code, where a step can be traced, else step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from undrift import keyed, tree
from undrift.core import Objective
from undrift.engine.execution.stacks import (
    clients_first,
    only_vmap,
    outside_transforms,
    unwrapped,
    wrapped,
)
from undrift.gradients.kernels import Kernels
from undrift.gradients.loops import LoopArguments, Program, StepSamples, most_steps

if TYPE_CHECKING:
    from undrift.engine.execution.local import LocalPass

T = TypeVar("T")
GATHERED_BYTES = 2**25  # of samples that are prepared for a call


def run_pass(steps: LocalPass, step: Callable[[T, Objective], T], init: T) -> T:
    """Return the carry after all steps of a pass, most of them in one call if that is possible."""
    group = steps.group
    loops, kernels = group.task.loops, group.task.oracle
    level = only_vmap() if group.stacked else None
    if loops is None or not isinstance(kernels, Kernels) or (group.stacked and level is None):
        return steps.run(step, init)
    if steps.keys.augment is not None:
        loops.refuse("augmentation draws for every step")
        return steps.run(step, init)
    program = loops.program(step, init, group.task, group.assignment.t)
    if program is None:
        return steps.run(step, init)
    start = 0 if program.first is not None else 1
    carry = steps.run(step, init, stop=start)
    ended = _CompiledPass(steps, program, kernels, level).run(carry, start)
    if ended is None:
        return steps.run(step, carry, start)
    new, failed = ended
    if failed is None:
        return new
    # A gradient that is not finite is torch's business, from the first step on.
    repeated = steps.run(step, carry, start)
    return tree.map(lambda a, b: torch.where(failed, a, b), repeated, new)


class _CompiledPass:
    """Calls a program for the clients of a group; `level` is that of their vmap, None without."""

    def __init__(
        self, steps: LocalPass, program: Program, kernels: Kernels, level: int | None
    ) -> None:
        self.steps, self.program, self.kernels, self.level = steps, program, kernels, level
        self.group, self.table = steps.group, steps.table
        self.clients = len(self.group.assignment.ids)

    def run(self, carry: T, start: int) -> tuple[T, Tensor | None] | None:
        """Return the carry after the last step, and which clients failed, None if nobody did.

        It returns None if the kernel was not made for these samples.
        """
        if start >= self.table.steps:
            return carry, None
        leaves = [self._rows(leaf) for leaf in tree.leaves(carry)]
        tensors = [self._rows(each) for part in self.program.variants for each in part.tensors]
        with outside_transforms():
            carries = [_copied(rows, axis, self.clients) for rows, axis in leaves]
            failed = self._calls(carries, [_shared(*rows) for rows in tensors], start)
            if failed is None:
                return None
            failures = bool(failed.any())
        new = tree.with_leaves(carry, [self._tensor(rows) for rows in carries])
        if failures:
            return new, self._tensor(failed)
        self._count(start)
        return new, None

    def _calls(self, carries: list[Tensor], tensors: list[Tensor], start: int) -> Tensor | None:
        """Run all steps in place; return which clients failed, or None if samples do not fit."""
        numbers = [number for part in self.program.variants for number in part.numbers]
        arguments = LoopArguments(carries, tensors, numbers)
        failed = torch.zeros(self.clients, dtype=torch.bool)
        loops = self.group.task.loops
        assert loops is not None
        example = torch.empty(1, self.group.task.layout.size)
        for samples in self._pieces(start):
            self.group.raise_if_stopped()
            if not self.kernels.takes_pool(example, samples.inputs, samples.targets, samples.keys):
                return None
            failed |= loops.run(self.program, self.kernels, arguments, samples) != 0
        return failed

    def _pieces(self, start: int) -> Iterator[StepSamples]:
        """Yield the minibatches of the pass, in as few calls as memory and patience allow."""
        group, table = self.group, self.table
        inputs, targets, _ = group.samples
        gathers = group.task.prepare is not None
        most = most_steps(self.kernels, self.clients, table.index.shape[2])
        if gathers:
            sample = 4 * int(np.prod(self.kernels.chain.inputs))
            most = min(most, max(1, GATHERED_BYTES // (table.index[:, 0].numel() * sample)))
        counts = torch.from_numpy(np.where(table.running, table.lengths, 0))
        lengths = torch.from_numpy(table.running.sum(1))
        keys = self._keys()
        for k in range(start, table.steps, most):
            piece = slice(k, min(k + most, table.steps))
            index = table.index[:, piece]
            pool = inputs, targets
            if gathers:
                flat = index.reshape(-1)
                pool = (
                    group.task.prepared(inputs.index_select(0, flat)),
                    targets.index_select(0, flat),
                )
                index = torch.arange(flat.numel()).view(index.shape)
            own = None if keys is None else keys[:, piece]
            left = (lengths - k).clamp(0, piece.stop - k)
            yield StepSamples(*pool, index, counts[:, piece], own, left, k)

    def _keys(self) -> Tensor | None:
        """Return (clients, steps) the keys of dropout, where there is some."""
        keys = self.steps.keys.dropout
        if keys is None:
            return None
        return keyed.fold(keys[:, None], self.steps.first[:, None] + torch.arange(self.table.steps))

    def _count(self, start: int) -> None:
        """Count the gradients of the steps that were run."""
        gradients = np.full(self.table.steps, self.program.later.gradients)
        gradients[:start] = 0
        gradients[:1] = self.program.first.gradients if self.program.first is not None else 0
        self.group.count_steps(self.table, gradients)

    def _rows(self, leaf: Tensor) -> tuple[Tensor, int | None]:
        """Return the rows of all clients and their axis, None where all have the same."""
        return (leaf, None) if self.level is None else unwrapped(leaf, self.level)

    def _tensor(self, rows: Tensor) -> Tensor:
        return rows[0] if self.level is None else wrapped(rows, self.level)


def _copied(rows: Tensor, axis: int | None, clients: int) -> Tensor:
    """Return a tensor of its own with a row for each client."""
    return clients_first(rows, axis, clients).clone(memory_format=torch.contiguous_format)


def _shared(rows: Tensor, axis: int | None) -> Tensor:
    """Return a row for each client, or one for all."""
    return clients_first(rows, axis, 1)
