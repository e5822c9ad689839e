"""The samples of one step: as a group of clients has them, and as one client of it sees them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from undrift import keyed
from undrift.core import Vector
from undrift.engine.plan import Table
from undrift.gradients.task import Batch, BatchIndices, slope

if TYPE_CHECKING:
    from undrift.engine.execution.local import Group

_functorch: Any = getattr(torch._C, "_functorch", None)
try:  # no public interface: where it is not as we know it, we do without
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    _ = _functorch.get_interpreter_stack, _functorch.TransformType.Vmap
    _ = _functorch._unwrap_batched, _functorch._add_batch_dim
except (ImportError, AttributeError):
    temporarily_clear_interpreter_stack = None  # type: ignore[assignment]


class Keys(NamedTuple):
    """A group's keys for what a step draws besides its samples; None where nothing is drawn."""

    dropout: Tensor | None  # (clients,)
    augment: Tensor | None

    @classmethod
    def of(cls, group: Group, suffix: str) -> Keys:
        task = group.task
        augments = task.prepare is not None and task.prepare.random
        return cls(
            group.keys(f"dropout{suffix}") if task.randomness != "none" else None,
            group.keys(f"augment{suffix}") if augments else None,
        )

    def at(self, step: int | Tensor) -> Keys:
        return Keys(*(None if keys is None else keyed.fold(keys, step) for keys in self))


class Minibatches:
    """A table's steps for one client of a group; `row` is its place in the stack."""

    def __init__(self, group: Group, row: Tensor, table: Table) -> None:
        if group.task.oracle.pads_batches and not group.stacked:
            table = table.widened(group.planner.width)
        self.group, self.row, self.table = group, row, table
        self.places = table.index.transpose(0, 1)  # (steps, clients, width)
        if group.stacked:
            self.places = self.places.contiguous()  # so that each step's are
        self.valid: Tensor | None = None
        self.counts: Tensor | None = None
        if group.stacked and (table.padded or table.uneven):  # a client that is done has no sample
            counts = np.where(table.running, table.lengths, 0)
            self.counts = torch.tensor(counts, dtype=torch.int64, device=group.device)
        if table.padded and (group.stacked or group.task.oracle.pads_batches):
            width = np.arange(table.index.shape[2])
            valid = width[None, None, :] < table.lengths[:, :, None]
            self.valid = torch.tensor(valid, device=group.device).to(group.task.layout.dtype)

    def at(self, k: int, keys: Keys) -> SingleBatch | StackedBatch:
        group, index, valid = self.group, self.places[k], self.valid
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
    """A minibatch of a client that runs by itself."""

    def __init__(self, group: Group, index: Tensor, valid: Tensor | None, keys: Keys) -> None:
        self._task = group.task
        dropout, augment = (None if key is None else key[0] for key in keys)
        inputs = self._task.prepared(group.inputs.index_select(0, index), augment)
        self.mine = Batch(inputs, group.targets.index_select(0, index), valid, dropout)

    def gradient(self, x: Vector) -> Vector:
        return self._task.gradient(x, self.mine)

    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        return slope(f, x)


class StackedBatch:
    """Minibatches of a group under `vmap`, with a leading axis over its clients.

    They are gathered for all clients at once, if at all, and gradients are asked for all at once,
    too: `vmap` sees neither the samples nor the model, which is much quicker.
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
        self._pool, self._index, self._keys = (group.inputs, group.targets), index, keys
        self._valid, self._counts = valid, counts
        self._mine: Batch | None = None
        self._picks = self._task.oracle.schedules_clients and self._task.prepare is None
        if not self._picks:
            _ = self._all  # gathered once, out here

    @cached_property
    def _all(self) -> Batch:
        shape, flat = self._index.shape, self._index.reshape(-1)
        with _outside():
            return self._gathered(shape, flat)

    def _gathered(self, shape: torch.Size, flat: Tensor) -> Batch:
        inputs, targets = (of_all.index_select(0, flat) for of_all in self._pool)
        if self._keys.augment is None:
            inputs = _split(self._task.prepared(inputs), shape)
        else:
            inputs = vmap(self._task.prepared)(_split(inputs, shape), self._keys.augment)
        return Batch(inputs, _split(targets, shape), self._valid, self._keys.dropout)

    @property
    def mine(self) -> Batch:
        if self._mine is not None:
            return self._mine
        given = self._all.given().items()
        rows = {name: leaf.index_select(0, self._row).squeeze(0) for name, leaf in given}
        mine = Batch(**rows)
        if _only_vmap() is not None:  # inside torch.func.grad it would not outlive it
            self._mine = mine
        return mine

    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        _ = self.mine  # made once, out here
        return torch.func.grad(f)(x)  # type: ignore[no-any-return]

    def gradient(self, x: Vector) -> Vector:
        level = _only_vmap()
        if level is None:
            return _Gradients.apply(x, self._row, self)  # type: ignore[no-any-return, no-untyped-call]
        rows, place = _functorch._unwrap_batched(x, level)
        with temporarily_clear_interpreter_stack():
            g = self.gradients(_laid_out(rows, place, self._clients))
        return _functorch._add_batch_dim(g, 0, level)  # type: ignore[no-any-return]

    def gradients(self, x: Tensor) -> Tensor:
        if self._task.oracle.schedules_clients:
            pool, index = self._pool, self._index
            if not self._picks:
                pool = self._all.inputs.flatten(0, 1), self._all.targets.flatten(0, 1)
                index = torch.arange(index.numel(), device=index.device).view(index.shape)
            g = self._task.oracle.at(
                x, BatchIndices(*pool, index, self._counts, self._keys.dropout)
            )
            if g is not None:
                return g
        return self._task.gradients(x, self._all)


def _outside() -> AbstractContextManager[Any]:
    """Where what is made outlives a `torch.func.grad` that asks for it."""
    return (
        nullcontext()
        if temporarily_clear_interpreter_stack is None
        else (temporarily_clear_interpreter_stack())
    )


def _split(samples: Tensor, shape: torch.Size) -> Tensor:
    """(clients * width, ...) to (clients, width, ...)."""
    return samples.view(*shape, *samples.shape[1:])


class _Gradients(torch.autograd.Function):
    """A client's gradient, whose batching rule asks for those of all clients in one call.

    Its row is an argument because x alone may be the same for all, at which `vmap` would not ask.
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
        return minibatch.gradients(_laid_out(x, in_dims[0], info.batch_size)), 0


def _laid_out(x: Tensor, place: int | None, clients: int) -> Tensor:
    """(clients, D), whether each has an x of its own, in rows or columns, or all have the same."""
    return x.expand(clients, -1) if place is None else x.movedim(place, 0)


def _only_vmap() -> int | None:
    """The level of the one vmap that is active, where that is all and torch lets us know.

    Going around `autograd.Function` then saves most of what a small step costs: half a millisecond.
    """
    if temporarily_clear_interpreter_stack is None:
        return None
    stack = _functorch.get_interpreter_stack()
    if stack is None or len(stack) != 1 or stack[0].key() != _functorch.TransformType.Vmap:
        return None
    return int(stack[0].level())
