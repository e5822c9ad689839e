"""The samples of one step, for a group of clients and for one client of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift import keyed
from undrift.core import Vector
from undrift.engine.execution.stacks import (
    clients_first,
    only_vmap,
    outside_transforms,
    unwrapped,
    wrapped,
)
from undrift.engine.execution.tables import BatchTable
from undrift.gradients.task import Batch, BatchIndices

if TYPE_CHECKING:
    from undrift.engine.execution.local import Group


class Keys(NamedTuple):
    """Holds a group's keys of what a step draws besides samples; None where nothing is drawn."""

    dropout: Tensor | None  # (clients,)
    augment: Tensor | None

    @classmethod
    def of(cls, group: Group, suffix: str) -> Keys:
        """Return the group's keys of this round; `suffix` tells purposes apart."""
        task = group.task
        augments = task.prepare is not None and task.prepare.random
        return cls(
            group.keys(f"dropout{suffix}") if task.randomness != "none" else None,
            group.keys(f"augment{suffix}") if augments else None,
        )

    def at(self, step: int | Tensor) -> Keys:
        """Return the keys of one step."""
        dropout, augment = (None if keys is None else keyed.fold(keys, step) for keys in self)
        return Keys(dropout, augment)


class Minibatches:
    """Makes the minibatches of a table for one client of a group, whose place is `row`."""

    def __init__(self, group: Group, row: Tensor, table: BatchTable) -> None:
        if group.task.oracle.pads_batches and not group.stacked:
            table = table.widened(group.assignment.width)
        self.group, self.row, self.table = group, row, table
        self.index = table.index.transpose(0, 1)  # (steps, clients, width)
        if group.stacked:
            self.index = self.index.contiguous()  # Kernels need each step's part contiguous.
        self.valid: Tensor | None = None
        self.counts: Tensor | None = None
        if group.stacked and (table.padded or table.uneven):  # A client that is done sees nothing.
            counts = np.where(table.running, table.lengths, 0)
            self.counts = torch.tensor(counts, dtype=torch.int64, device=group.device)
        if table.padded and (group.stacked or group.task.oracle.pads_batches):
            width = np.arange(table.index.shape[2])
            valid = width[None, None, :] < table.lengths[:, :, None]
            self.valid = torch.tensor(valid, device=group.device).to(group.task.layout.dtype)

    def at(self, k: int, keys: Keys) -> SingleBatch | StackedBatch:
        """Return the minibatch of step k."""
        group, index, valid = self.group, self.index[k], self.valid
        if group.stacked:
            counts = None if self.counts is None else self.counts[:, k]
            return StackedBatch(
                group, self.row, index, None if valid is None else valid[:, k], counts, keys
            )
        length = int(self.table.lengths[0, k])
        if valid is None or length == index.shape[1]:
            return SingleBatch(group, index[0, :length], None, keys)
        return SingleBatch(group, index[0], valid[0, k], keys)


class SingleBatch:
    """Holds a minibatch of a client that is not stacked with others."""

    def __init__(self, group: Group, index: Tensor, valid: Tensor | None, keys: Keys) -> None:
        self._task = group.task
        dropout, augment = (None if key is None else key[0] for key in keys)
        inputs = self._task.prepared(group.samples.inputs.index_select(0, index), augment)
        targets = group.samples.targets.index_select(0, index)
        self.own = Batch(inputs, targets, valid, dropout)

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient of the loss on this minibatch."""
        return self._task.gradient(x, self.own)

    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        """Return the gradient of f at x."""
        return self._task.oracle.slope(f, x)


class StackedBatch:
    """Holds the minibatches of a group under `vmap`, with a leading axis over its clients.

    Samples are gathered, if at all, for all clients at once, and so are gradients computed. `vmap`
    then sees neither the samples nor the model, which is much quicker.
    """

    def __init__(
        self,
        group: Group,
        row: Tensor,
        index: Tensor,
        valid: Tensor | None,
        counts: Tensor | None,
        keys: Keys,
    ) -> None:
        self._task, self._row, self._clients = group.task, row, len(index)
        self._pool = group.samples.inputs, group.samples.targets
        self._index, self._keys = index, keys
        self._valid, self._counts = valid, counts
        self._own: Batch | None = None
        self._gathers = not (self._task.oracle.schedules_clients and self._task.prepare is None)
        if self._gathers:
            _ = self._all  # Samples are gathered here, outside of any torch.func.grad, and once.

    @cached_property
    def _all(self) -> Batch:
        """Return the minibatches of all clients."""
        shape, flat = self._index.shape, self._index.reshape(-1)
        with outside_transforms():
            return self._gathered(shape, flat)

    def _gathered(self, shape: torch.Size, flat: Tensor) -> Batch:
        inputs, targets = (of_all.index_select(0, flat) for of_all in self._pool)
        if self._keys.augment is None:
            inputs = _split(self._task.prepared(inputs), shape)
        else:
            inputs = self._task.prepared_stack(_split(inputs, shape), self._keys.augment)
        return Batch(inputs, _split(targets, shape), self._valid, self._keys.dropout)

    @property
    def own(self) -> Batch:
        """Return the minibatch of the client that asks."""
        if self._own is not None:
            return self._own
        leaves = self._all.present().items()
        rows = {name: leaf.index_select(0, self._row).squeeze(0) for name, leaf in leaves}
        own = Batch(**rows)
        if only_vmap() is not None:  # A tensor made inside torch.func.grad does not outlive it.
            self._own = own
        return own

    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        """Return the gradient of f at x."""
        _ = self.own  # The minibatch is made here, outside of torch.func.grad, and once.
        return torch.func.grad(f)(x)  # type: ignore[no-any-return]

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient of the client that asks, computed with those of all others."""
        level = only_vmap()
        if level is None:
            return _Gradients.apply(x, self._row, self)  # type: ignore[no-any-return, no-untyped-call]
        rows, axis = unwrapped(x, level)
        with outside_transforms():
            g = self.gradients(clients_first(rows, axis, self._clients))
        return wrapped(g, level)

    def gradients(self, x: Tensor) -> Tensor:
        """Return (clients, D) the gradients at the rows of x."""
        if self._task.oracle.schedules_clients:
            pool, index = self._pool, self._index
            if self._gathers:
                pool = self._all.inputs.flatten(0, 1), self._all.targets.flatten(0, 1)
                index = torch.arange(index.numel(), device=index.device).view(index.shape)
            inputs, targets = pool
            indices = BatchIndices(inputs, targets, index, self._counts, self._keys.dropout)
            g = self._task.oracle.gradients_at(x, indices)
            if g is not None:
                return g
        return self._task.gradients(x, self._all)


def _split(samples: Tensor, shape: torch.Size) -> Tensor:
    """Return samples of shape (clients * width, ...) as (clients, width, ...)."""
    return samples.view(*shape, *samples.shape[1:])


class _Gradients(torch.autograd.Function):
    """Computes a client's gradient; its batching rule computes all clients' in one call.

    The row is an argument because x may be the same for all clients, and `vmap` calls the rule only
    for an argument that differs between them.
    """

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Vector, row: Tensor, minibatch: StackedBatch) -> Vector:
        raise NotImplementedError("Stacked clients run under vmap.")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, row: Tensor, minibatch: StackedBatch
    ) -> tuple[Tensor, int]:
        return minibatch.gradients(clients_first(x, in_dims[0], info.batch_size)), 0
