"""Execution of a cohort: clients run one by one, on threads or stacked, and uploads are summed.

All modes run the same `Loop` over the same minibatches and masks and give the same result up to
the order of float sums. `loop` runs one client at a time and suits big models. `threads` runs
several of them, each on a core of its own. `stacked` replaces many small operations by few large
ones under `vmap` and suits models that are bound by overhead; several stacks run on threads, too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from undrift import tree
from undrift.aggregation.policy import UploadPolicy
from undrift.aggregation.validation import UsualSizes
from undrift.core import Vector
from undrift.engine.execution.aggregate import ExchangeResult, UploadSum
from undrift.engine.execution.client import Stage, client_exchange
from undrift.engine.execution.executor import BaseExecutor
from undrift.engine.execution.local import Group, LocalLoop, ObservedLoop
from undrift.engine.execution.meter import Meter
from undrift.engine.execution.threads import ordered_thread_map
from undrift.engine.execution.wires import PackedUploads
from undrift.engine.plan import Plan
from undrift.gradients.task import Task


class Upload(NamedTuple):
    """Holds what a tap sees: one client's upload of one round, and the local models behind it.

    `start` and `y` are the first vector of the model's size in what the client gave to its first
    call of `steps` and got from its last: the iterate, in every method of this library.
    """

    round: int  # from 1
    client: int
    weight: float  # in the mean
    upload: Any
    x: Vector  # the server's model before the round; not to be changed
    start: Vector | None  # where the client took its first step; None without steps, as y
    y: Vector | None  # its model after the last, as it was before any compression


Tap = Callable[[Upload], None]


@runtime_checkable
class RecordingTap(Protocol):
    """Is a tap that adds fields to the records of a run."""

    def __call__(self, upload: Upload) -> None:
        """Hear of an upload."""
        ...

    def record_fields(self, round: int) -> Mapping[str, float | None]:
        """Return fields of the record of a round whose uploads have all come."""
        ...


# Gets client, weight, upload and path.
UploadObserver = Callable[[int, float, Any, tuple[Vector, ...]], None]


@dataclass(frozen=True)
class CohortExchange:
    """Says what every client of a plan does in one exchange."""

    stage: Stage
    plan: Plan
    state_of: Callable[[int], Any]  # client -> its state before the exchange
    observed: bool  # whether the models before the first step and after the last are wanted

    def states(self, positions: NDArray[np.int64]) -> list[Any]:
        """Return the states of the clients at these positions of the plan."""
        return [self.state_of(int(i)) for i in self.plan.ids[positions]]


class GroupResult(NamedTuple):
    """Holds what a group of clients brings back."""

    positions: NDArray[np.int64]  # in the plan
    wires: Any  # every leaf with a leading axis over the clients, as in all that follows
    uploads: Any
    states: list[Any]
    paths: tuple[Tensor, ...]
    cost: Meter


@dataclass(frozen=True)
class FederatedExecutor(BaseExecutor):
    """Runs the clients of a method with a server."""

    # The price of a client's row in a stacked step, see `Plan.groups_of_like_work`.
    row_cost: float = field(default=0.0, kw_only=True)
    policy: UploadPolicy = field(default=UploadPolicy(), kw_only=True)
    sizes: UsualSizes = field(default_factory=UsualSizes, kw_only=True)

    def exchange(
        self,
        stage: Stage,
        plan: Plan,
        state_of: Callable[[int], Any],
        meter: Meter,
        observer: UploadObserver | None = None,
        scale: float = math.inf,
        needed: int = 1,
    ) -> tuple[ExchangeResult, dict[int, Any]]:
        """Run a stage on every client; return the mean of sound uploads and the new client states.

        Each of several processes runs its own clients and keeps their states; the mean is of all. A
        client whose upload is dropped keeps the state that it had. `scale` is the norm of the
        model, below which an upload is not too large. There is no mean of less than `needed`.
        """
        own = self.placement.positions(plan.ids)
        meter.exchanges += 1
        packed = None
        if stage.wire_form is not None and self.policy.attack is None:
            packed = PackedUploads(self.world, self.placement, stage.wire_form, stage.unpack)
        total = UploadSum(plan, self.world, self.policy, stage.form, self.planner.seed, packed)
        states = dict[int, Any]()
        exchange = CohortExchange(stage, plan, state_of, observer is not None)
        with closing(self._results(exchange, own)) as results:
            for positions, wires, uploads, new, paths, cost in results:
                meter.add(cost, positions)
                ids = plan.ids[positions]
                if packed is not None:
                    packed.add(positions, wires)
                if not total.add(positions, uploads):
                    break
                if observer is not None:
                    for row, i in enumerate(ids):
                        upload, path = tree.row((uploads, paths), row)
                        observer(int(i), self._weight(plan, positions[row]), upload, path)
                states.update(zip(map(int, ids), new, strict=True))
                del wires, uploads, new, paths  # so that memory never holds two groups' results
        outcome = total.conclude(
            lambda part: self._groups(part, self.placement.positions(part.ids)),
            oversized=lambda norms: self.sizes.oversized(stage.name, norms, plan.counts, scale),
            needed=needed,
            population=len(self.planner.census),
        )
        for client in outcome.dropped:
            states.pop(client, None)
        return outcome, states if outcome.mean is not None else {}

    def _weight(self, plan: Plan, position: int) -> float:
        """Return a client's weight in the plan, as the model's numbers have it."""
        return float(torch.tensor(plan.weights[position], dtype=self.task.layout.dtype))

    def _groups(
        self, plan: Plan, own: NDArray[np.int64], *, observed: bool = False
    ) -> list[NDArray[np.int64]]:
        """Return the positions of the plan that run together; `own` are this process's.

        In a compiled loop each client ends with its own last step, so that nobody waits for others
        and one call has all of them. Steps that are observed run one by one.
        """
        if self.mode != "stacked":
            return list(plan.by_falling_work(own))
        stacks = max(1, math.ceil(len(own) / self.chunk))
        size = math.ceil(len(own) / stacks)  # 30 and 30 clients are better than 50 and 10
        compiled = self.task.loops is not None and not observed
        row_cost = 0.0 if compiled else self.row_cost
        return list(plan.groups_of_like_work(max(1, size), row_cost, own))

    def _results(
        self, exchange: CohortExchange, own: NDArray[np.int64]
    ) -> Generator[GroupResult, None, None]:
        """Yield the results of the plan's groups, always in the same order."""
        groups = self._groups(exchange.plan, own, observed=exchange.observed)
        if self.groups_at_once > 1 and len(groups) > 1:
            jobs = (
                partial(self._run_on_copy, exchange, positions, exchange.states(positions))
                for positions in groups
            )
            yield from ordered_thread_map(jobs, self.threads)
            return
        for positions in groups:
            yield self._run_group(exchange, positions, exchange.states(positions), self.task)

    def _run_on_copy(
        self,
        exchange: CohortExchange,
        positions: NDArray[np.int64],
        states: list[Any],
        stop: threading.Event,
    ) -> GroupResult:
        with self._copies.borrow() as task:
            return self._run_group(exchange, positions, states, task, stop)

    def _run_group(
        self,
        exchange: CohortExchange,
        positions: NDArray[np.int64],
        states: list[Any],
        task: Task,
        stop: threading.Event | None = None,
    ) -> GroupResult:
        if self.mode == "stacked":
            return self._run_stack(exchange, positions, states, task, stop)
        stage, assignment = exchange.stage, self.planner.assign(exchange.plan, positions)
        wire, state, cost, path = client_exchange(
            stage,
            states[0],
            task,
            self.pool.samples(assignment.ids),
            assignment,
            observed=exchange.observed,
            stop=stop,
        )
        rows = tree.map(lambda leaf: leaf[None], (wire, stage.unpack(wire), path))
        wires, uploads, paths = rows
        return GroupResult(positions, wires, uploads, [state], paths, cost)

    def _run_stack(
        self,
        exchange: CohortExchange,
        positions: NDArray[np.int64],
        states: list[Any],
        task: Task,
        stop: threading.Event | None,
    ) -> GroupResult:
        stage, assignment = exchange.stage, self.planner.assign(exchange.plan, positions)
        samples = self.pool.samples(assignment.ids)
        group = Group(task, samples, assignment, stacked=True, stop=stop)
        loop_type = ObservedLoop if exchange.observed else LocalLoop

        def run_row(state: Any, row: Tensor) -> tuple[Any, Any, tuple[Tensor, ...]]:
            loop = loop_type(group, row)
            wire, state = stage.call(stage.down, state, loop)
            return wire, state, loop.path

        rows = torch.arange(len(states), device=group.device)[:, None]
        wires, new, paths = vmap(run_row)(tree.stack(states), rows)
        group.meter.bytes_down += tree.nbytes(stage.down) * len(states)
        group.meter.bytes_up += tree.nbytes(wires)
        unstacked = [tree.row(new, i) for i in range(len(states))]
        uploads = vmap(stage.unpack)(wires)
        return GroupResult(positions, wires, uploads, unstacked, paths, group.meter)
