"""Tables of minibatches: which samples of the pool each step of each client sees.

A table is a function of the samples that a client holds, the seed, the round and the client's
number, so a client that knows only its own samples draws the same minibatches as a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift import keyed
from undrift.engine.participation import Ids
from undrift.engine.plan import Assignment


@dataclass(frozen=True)
class BatchTable:
    """Says which samples of the pool step k of each client of a group sees."""

    index: Tensor  # (clients, steps, width), padded with a sample of the same client
    lengths: NDArray[np.int64]  # (clients, steps) samples in front of the padding
    running: NDArray[np.bool_]  # (clients, steps) whether the client still runs at this step

    @property
    def steps(self) -> int:
        """Return the number of steps of the client that runs longest."""
        return int(self.lengths.shape[1])

    def widened(self, width: int) -> BatchTable:
        """Return the table with more padding, so that minibatches of all clients have one shape."""
        missing = width - self.index.shape[2]
        padding = self.index[:, :, :1].expand(-1, -1, missing)
        return BatchTable(torch.cat([self.index, padding], 2), self.lengths, self.running)

    @cached_property
    def padded(self) -> bool:
        """Return whether some minibatch is shorter than the table is wide."""
        return bool((self.lengths < self.index.shape[2]).any())

    @cached_property
    def uneven(self) -> bool:
        """Return whether some client runs fewer steps than another."""
        return not bool(self.running.all())

    @cached_property
    def costs(self) -> list[tuple[int, int, NDArray[np.int64]]]:
        """Return per step: clients that run, samples that they see together, samples of each."""
        clients = self.running.sum(0)
        each = np.where(self.running, self.lengths, 0).T
        return list(zip(clients.tolist(), each.sum(1).tolist(), each, strict=True))


def minibatch_table(
    assignment: Assignment, held: Sequence[Ids], passed: int, device: torch.device
) -> BatchTable:
    """Return steps passed * K_i, ..., (passed + 1) * K_i - 1 of each client's reshuffled epochs.

    `held` are the samples of each client, as indices into the pool.
    """
    clients = zip(assignment.ids.tolist(), held, assignment.counts.tolist(), strict=True)
    rows = [_stream(assignment, i, own, passed * count, count) for i, own, count in clients]
    return _pad(rows, device)


def full_table(held: Sequence[Ids], batch_size: int | None, device: torch.device) -> BatchTable:
    """Return all samples of each client in order, in slices of the batch size."""
    return _pad([_slices(own, batch_size or len(own)) for own in held], device)


_Row = tuple[NDArray[np.int64], NDArray[np.int64]]  # (steps, width) indices, (steps,) lengths


def _slices(order: NDArray[np.int64], size: int) -> _Row:
    """Return consecutive slices, the last of which is padded with the first sample."""
    size = min(size, len(order))
    steps = math.ceil(len(order) / size)
    lengths = np.full(steps, size, dtype=np.int64)
    lengths[-1] = len(order) - (steps - 1) * size
    padding = np.full(steps * size - len(order), order[0])
    return np.concatenate([order, padding]).reshape(steps, size), lengths


def _stream(assignment: Assignment, client: int, held: Ids, start: int, count: int) -> _Row:
    """Return steps start, ..., start + count - 1 of one client's reshuffled epochs."""
    size = assignment.batch_size or len(held)
    if size >= len(held):  # Every step sees all samples, so their order does not matter.
        return np.broadcast_to(held, (count, len(held))), np.full(count, len(held), dtype=np.int64)
    epoch_steps = math.ceil(len(held) / size)
    first, last = start // epoch_steps, (start + count - 1) // epoch_steps
    orders = np.empty((last + 1 - first, epoch_steps * size), dtype=np.int64)
    for row, epoch in zip(orders, range(first, last + 1), strict=True):
        row[: len(held)] = keyed.permutation(
            held, assignment.seed, "batches", assignment.t, client, epoch
        )
        row[len(held) :] = row[0]
    steps = slice(start - first * epoch_steps, start - first * epoch_steps + count)
    lengths = np.full((len(orders), epoch_steps), size, dtype=np.int64)
    lengths[:, -1] = len(held) - (epoch_steps - 1) * size
    return orders.reshape(-1, size)[steps], lengths.reshape(-1)[steps]


def _pad(rows: list[_Row], device: torch.device) -> BatchTable:
    """Return one table of all rows, as long and as wide as the largest of them."""
    steps = max(len(lengths) for _, lengths in rows)
    width = max(index.shape[1] for index, _ in rows)
    table = np.empty((len(rows), steps, width), dtype=np.int64)
    all_lengths = np.full((len(rows), steps), width, dtype=np.int64)
    running = np.zeros((len(rows), steps), dtype=np.bool_)
    for i, (index, lengths) in enumerate(rows):
        table[i] = index[0, 0]
        table[i, : len(index), : index.shape[1]] = index
        all_lengths[i, : len(lengths)] = lengths
        running[i, : len(lengths)] = True
    return BatchTable(torch.from_numpy(table).to(device), all_lengths, running)
