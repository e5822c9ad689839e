"""The `Loop` an algorithm runs, the same for one client and for a stack of them under `vmap`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift import keyed, tree
from undrift.core import Objective
from undrift.engine.execution.batches import Keys, Minibatches
from undrift.engine.execution.compiled import run_pass
from undrift.engine.execution.meter import Meter
from undrift.engine.execution.pool import ClientSamples
from undrift.engine.execution.tables import BatchTable, full_table, minibatch_table
from undrift.engine.execution.threads import Stopped
from undrift.engine.plan import Assignment
from undrift.gradients.objective import DataObjective, Pooled, instrument
from undrift.gradients.task import Task

T = TypeVar("T")


class Group:
    """Holds clients that run together and makes their tables of minibatches and keys on demand."""

    def __init__(
        self,
        task: Task,
        samples: ClientSamples,
        assignment: Assignment,
        *,
        stacked: bool,
        stop: threading.Event | None = None,
    ) -> None:
        self.task, self.samples, self.assignment = task, samples, assignment
        self.stacked, self._stop = stacked, stop
        self.meter = Meter(len(assignment.ids))
        self._sent_mean_count = False

    def raise_if_stopped(self) -> None:
        """Raise `Stopped` if nobody wants the results of the group any more."""
        if self._stop is not None and self._stop.is_set():
            raise Stopped

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        return self.task.layout.device

    def table(self, passed: int) -> BatchTable:
        """Return the minibatches of one call of the loop, before which there were `passed`."""
        return minibatch_table(self.assignment, self.samples.held, passed, self.device)

    def full_table(self) -> BatchTable:
        """Return all samples of each client, in slices of the batch size."""
        return full_table(self.samples.held, self.assignment.batch_size, self.device)

    def keys(self, purpose: str) -> Tensor:
        """Return a key for each client, of this purpose and round."""
        seed, t, ids = self.assignment.seed, self.assignment.t, self.assignment.ids
        keys = [keyed.key(seed, purpose, t, int(i)) for i in ids]
        return torch.tensor(keys, dtype=torch.int64, device=self.device)

    def mean_count(self) -> float:
        """Return the cohort's mean K_i, and count the float that must travel to each client."""
        if not self._sent_mean_count:
            self.meter.bytes_down += 4 * len(self.assignment.ids)
            self._sent_mean_count = True
        return self.assignment.mean_count

    def counter(self, table: BatchTable, k: int) -> Callable[[], None]:
        """Return a function that counts one gradient at step k of each client that still runs."""
        clients, samples, samples_of = table.costs[k]

        def count() -> None:
            self.meter.gradients += clients
            self.meter.samples += samples
            self.meter.samples_of += samples_of

        return count

    def count_steps(self, table: BatchTable, gradients: NDArray[np.int64]) -> None:
        """Count so many gradients at each step, of each client that still runs there."""
        samples_of = np.where(table.running, table.lengths, 0) @ gradients
        self.meter.gradients += int((table.running @ gradients).sum())
        self.meter.samples += int(samples_of.sum())
        self.meter.samples_of += samples_of


class LocalLoop:
    """Shows a group to one of its clients; `row` is its place in the stack, as a (1,) tensor."""

    path: tuple[Tensor, ...] = ()  # only an `ObservedLoop` fills it

    def __init__(self, group: Group, row: Tensor) -> None:
        self._group, self._row, self._passed = group, row, 0
        counts = torch.tensor(group.assignment.counts, device=group.device)
        self.count = self._own(counts).to(group.task.layout.dtype)
        self.t = group.assignment.t

    @property
    def mean_count(self) -> float:
        """Return sum_i w_i K_i over the cohort."""
        return self._group.mean_count()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return how many coordinates each of the model's tensors has."""
        return self._group.task.layout.sizes

    def __call__(self, step: Callable[[T, Objective], T], init: T) -> T:
        steps = LocalPass(self._group, self._row, self.count, self._passed)
        self._passed += 1
        return run_pass(steps, step, init)

    @property
    def full(self) -> Objective:
        """Return the objective on all samples of the client."""
        group = self._group
        table = group.full_table()
        batches, keys = Minibatches(group, self._row, table), Keys.of(group, "-full")
        parts = [
            DataObjective(group.task, batches.at(k, keys.at(k)), self.t, 0)
            for k in range(table.steps)
        ]
        lengths = np.where(table.running, table.lengths, 0)
        shares = torch.tensor(lengths / lengths.sum(1, keepdims=True), device=group.device)
        own = self._own(shares).to(group.task.layout.dtype)
        objective = parts[0] if len(parts) == 1 else Pooled(parts, list(own.unbind()))
        counters = [group.counter(table, k) for k in range(table.steps)]

        def count() -> None:
            for counter in counters:
                counter()

        return instrument(group.task, objective, count)

    def draw(self, purpose: str, like: Tensor) -> Tensor:
        """Return uniforms that are keyed by seed, purpose, round and client."""
        key = self._own(self._group.keys(f"draw/{purpose}"))
        return keyed.uniform(key, like.shape, like.dtype)

    def _own(self, per_client: Tensor) -> Tensor:
        """Return this client's row, by index_select because `vmap` has no item()."""
        if not self._group.stacked:
            return per_client[0]
        return per_client.index_select(0, self._row).squeeze(0)


class LocalPass:
    """Runs the minibatches of one call of the loop, before which there were `passed` calls."""

    def __init__(self, group: Group, row: Tensor, count: Tensor, passed: int) -> None:
        self.group, self._row, self._count = group, row, count
        self.table = group.table(passed)
        self.keys = Keys.of(group, "")
        # The key counts a client's steps over all passes, so no pass repeats the masks.
        self.first = torch.tensor(passed * group.assignment.counts, device=group.device)

    @cached_property
    def _batches(self) -> Minibatches:
        return Minibatches(self.group, self._row, self.table)

    def run(
        self,
        step: Callable[[T, Objective], T],
        carry: T,
        start: int = 0,
        stop: int | None = None,
    ) -> T:
        """Return the carry after the steps from `start` to before `stop`, one after the other."""
        group, table = self.group, self.table
        uneven = group.stacked and table.uneven
        for k in range(start, table.steps if stop is None else stop):
            group.raise_if_stopped()
            minibatch = self._batches.at(k, self.keys.at(self.first + k))
            data = DataObjective(group.task, minibatch, group.assignment.t, k)
            new = step(carry, instrument(group.task, data, group.counter(table, k)))
            carry = _where(k < self._count, new, carry) if uneven else new
        return carry


class ObservedLoop(LocalLoop):
    """Keeps as `path` the models before the first step and after the last, for a tap."""

    def __call__(self, step: Callable[[T, Objective], T], init: T) -> T:
        end = super().__call__(step, init)
        start, y = self._model(init), self._model(end)
        if start is not None and y is not None:
            self.path = (*(self.path[:1] or (start,)), y)
        return end

    def _model(self, carry: object) -> Tensor | None:
        """Return the first vector of the model's size in what a step passes on."""
        shape = (self._group.task.layout.size,)
        vectors = (leaf for leaf in tree.leaves(carry) if isinstance(leaf, Tensor))
        fitting = (leaf for leaf in vectors if leaf.shape == shape and leaf.is_floating_point())
        return next(fitting, None)


def _where(running: Tensor, new: T, old: T) -> T:
    """Return `new` for a client that still runs, and `old` for a client that is done."""
    return tree.map(lambda a, b: torch.where(running, a, b), new, old)
