"""The `Loop` an algorithm runs, the same for one client and for a stack of them under `vmap`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift import keyed, tree
from undrift.core import Objective
from undrift.engine.execution.batches import Keys, Minibatches
from undrift.engine.execution.threads import Stopped
from undrift.engine.plan import Plan, Planner, Table, minibatches, whole
from undrift.engine.world import World
from undrift.gradients.objective import DataObjective, Pooled, instrument
from undrift.gradients.task import Task

T = TypeVar("T")


@dataclass
class Meter:
    """What a round of so many clients really cost."""

    clients: int
    gradients: int = 0
    samples: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    exchanges: int = 0  # of a message down and one up
    samples_of: NDArray[np.int64] = field(init=False)  # of each client of the plan

    def __post_init__(self) -> None:
        self.samples_of = np.zeros(self.clients, dtype=np.int64)

    def add(self, other: Meter) -> None:
        """Take over what a group of the same round has counted."""
        self.gradients += other.gradients
        self.samples += other.samples
        self.bytes_up += other.bytes_up
        self.bytes_down += other.bytes_down
        self.samples_of += other.samples_of

    def add_up(self, world: World) -> None:
        """Make it the cost of all processes."""
        if world.size > 1:
            counted = [self.gradients, self.samples, self.bytes_up, self.bytes_down]
            total = world.gather([*counted, *self.samples_of.tolist()]).sum(0)
            self.gradients, self.samples, self.bytes_up, self.bytes_down = total[:4].tolist()
            self.samples_of = total[4:]


class Group:
    """Clients that run together: their tables of minibatches, keys and counts, made on demand."""

    def __init__(
        self,
        task: Task,
        planner: Planner,
        plan: Plan,
        positions: NDArray[np.int64],
        pool: tuple[Tensor, Tensor],
        meter: Meter,
        *,
        stacked: bool,
    ) -> None:
        self.task, self.planner, self.plan, self.meter = task, planner, plan, meter
        self.inputs, self.targets = pool
        self.ids, self.counts = plan.ids[positions], plan.counts[positions]
        self.weights = torch.tensor(
            plan.weights[positions], dtype=task.layout.dtype, device=task.layout.device
        )
        self.stacked, self._positions = stacked, positions
        self._asked_mean = False
        self.stop: threading.Event | None = None  # set when nobody wants its results any more

    def go_on(self) -> None:
        if self.stop is not None and self.stop.is_set():
            raise Stopped

    @property
    def device(self) -> torch.device:
        return self.task.layout.device

    def table(self, passed: int) -> Table:
        return minibatches(self.planner, self.plan.t, self.ids, self.counts, passed, self.device)

    def whole(self) -> Table:
        return whole(self.planner, self.ids, self.device)

    def keys(self, purpose: str) -> Tensor:
        made = [keyed.key(self.planner.seed, purpose, self.plan.t, int(i)) for i in self.ids]
        return torch.tensor(made, dtype=torch.int64, device=self.device)

    def ask_mean_count(self) -> float:
        """The cohort's mean K_i is one float that must travel to each client that asks for it."""
        if not self._asked_mean:
            self.meter.bytes_down += 4 * len(self.ids)
            self._asked_mean = True
        return self.plan.mean_count

    def counter(self, table: Table, k: int) -> Callable[[], None]:
        clients, samples, samples_of = table.costs[k]

        def count() -> None:
            self.meter.gradients += clients
            self.meter.samples += samples
            self.meter.samples_of[self._positions] += samples_of

        return count


class LocalLoop:
    """One client's view of its group; `row` is its place in the stack, as a (1,) tensor."""

    path: tuple[Tensor, ...] = ()  # only a `WatchedLoop` knows where the client went

    def __init__(self, group: Group, row: Tensor) -> None:
        self._group, self._row, self._passed = group, row, 0
        counts = torch.tensor(group.counts, device=group.device)
        self.count = self._mine(counts).to(group.task.layout.dtype)
        self.t = group.plan.t

    @property
    def mean_count(self) -> float:
        return self._group.ask_mean_count()

    def __call__(self, step: Callable[[T, Objective], T], init: T) -> T:
        group, passed = self._group, self._passed
        self._passed += 1
        table = group.table(passed)
        batches = Minibatches(group, self._row, table)
        keys = Keys.of(group, "")
        first = torch.tensor(passed * group.counts, device=group.device)
        uneven = group.stacked and table.uneven
        carry = init
        for k in range(table.steps):
            group.go_on()
            # A client's own step number, so that the second pass does not repeat the masks.
            minibatch = batches.at(k, keys.at(first + k))
            data = DataObjective(group.task, minibatch, self.t, k)
            new = step(carry, instrument(group.task, data, group.counter(table, k)))
            carry = _where(k < self.count, new, carry) if uneven else new
        return carry

    @property
    def full(self) -> Objective:
        group = self._group
        table = group.whole()
        batches, keys = Minibatches(group, self._row, table), Keys.of(group, "-full")
        parts = [
            DataObjective(group.task, batches.at(k, keys.at(k)), self.t, 0)
            for k in range(table.steps)
        ]
        lengths = np.where(table.running, table.lengths, 0)
        shares = torch.tensor(lengths / lengths.sum(1, keepdims=True), device=group.device)
        mine = self._mine(shares).to(group.task.layout.dtype)
        objective = parts[0] if len(parts) == 1 else Pooled(parts, list(mine.unbind()))
        counters = [group.counter(table, k) for k in range(table.steps)]

        def count() -> None:
            for counter in counters:
                counter()

        return instrument(group.task, objective, count)

    def draw(self, purpose: str, like: Tensor) -> Tensor:
        key = self._mine(self._group.keys(f"draw/{purpose}"))
        return keyed.uniform(key, like.shape, like.dtype)

    def _mine(self, per_client: Tensor) -> Tensor:
        """This client's row; an index_select because `vmap` has no item()."""
        if not self._group.stacked:
            return per_client[0]
        return per_client.index_select(0, self._row).squeeze(0)


class WatchedLoop(LocalLoop):
    """Remembers as `path` the models before the first step and after the last, for a tap."""

    def __call__(self, step: Callable[[T, Objective], T], init: T) -> T:
        end = super().__call__(step, init)
        start, y = self._model(init), self._model(end)
        if start is not None and y is not None:
            self.path = (*(self.path[:1] or (start,)), y)
        return end

    def _model(self, carry: object) -> Tensor | None:
        """The first vector of the model's size in what a step passes on."""
        shape = (self._group.task.layout.size,)
        vectors = (leaf for leaf in tree.leaves(carry) if isinstance(leaf, Tensor))
        fitting = (leaf for leaf in vectors if leaf.shape == shape and leaf.is_floating_point())
        return next(fitting, None)


def _where(running: Tensor, new: T, old: T) -> T:
    """A client that is done keeps what it has."""
    return tree.map(lambda a, b: torch.where(running, a, b), new, old)
