"""Trial rounds: a few steps of a few clients, whose results are not used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from undrift.comm.routes import Ring
from undrift.core import Federated, Peer
from undrift.engine.collectives.inprocess import InProcessExchange
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.execution.cohort import FederatedExecutor
from undrift.engine.execution.executor import BaseExecutor
from undrift.engine.execution.meter import Meter
from undrift.engine.execution.nodes import PeerExecutor
from undrift.engine.execution.pool import Pool
from undrift.engine.execution.round import federated_round
from undrift.engine.execution.threads import intra_op_threads
from undrift.engine.plan import Plan, Planner
from undrift.engine.tuning.probe import Facts
from undrift.engine.tuning.rules import Candidate, row_cost, worth_trimming
from undrift.gradients.task import Task
from undrift.optim.schedules import resolve
from undrift.topology import complete

E = TypeVar("E", bound=BaseExecutor)


@dataclass(frozen=True)
class TrialRunner:
    """Runs small rounds by the executor of a candidate."""

    executor_for: Callable[[Candidate], Any]
    round: Callable[[Plan, Any, Meter], object]  # with the executor
    activations: int  # of a sample
    pair: NDArray[np.int64]  # clients whose samples this process has

    def __call__(self, plan: Plan, candidate: Candidate) -> int:
        """Run a round as the candidate says, and return how many gradients it took."""
        executor, meter = self.executor_for(candidate), Meter(len(plan.ids))
        elements = executor.elements_per_step(len(plan.ids), self.activations)
        with torch.no_grad(), intra_op_threads(elements):
            self.round(plan, executor, meter)
        return max(1, meter.gradients)

    def threads_at_once(self, clients: int, candidate: Candidate) -> int:
        """Return how many threads compute at a time in a round of so many clients."""
        executor: BaseExecutor = self.executor_for(candidate)
        return executor.threads_at_once(clients, self.activations)


def federated_trial(
    algorithm: Federated[Any, Any, Any, Any],
    task: Task,
    planner: Planner,
    pool: Pool,
    facts: Facts,
) -> TrialRunner:
    """Return what runs a small round of a method with a server."""

    def play(plan: Plan, executor: FederatedExecutor, meter: Meter) -> object:
        now, x0 = resolve(algorithm, 0), task.layout.gather(task.model)
        server = now.init(x0)
        return federated_round(now, executor, plan, server=server, clients={}, x0=x0, meter=meter)

    price = row_cost(facts, planner)
    executors = _executors(FederatedExecutor, task, planner, pool, row_cost=price)
    return TrialRunner(executors, play, facts.activations, _pair(pool))


def peer_trial(
    algorithm: Peer[Any],
    task: Task,
    planner: Planner,
    pool: Pool,
    facts: Facts,
) -> TrialRunner:
    """Return what runs a small round of a method without a server."""

    def play(plan: Plan, executor: PeerExecutor, meter: Meter) -> object:
        now, x0 = resolve(algorithm, 0), task.layout.gather(task.model)
        size = len(plan.ids)
        first = Plan.equal(plan.ids, 1, plan.cohort.population)
        exchange = InProcessExchange(
            size=size, topology=complete(size), route=Ring(), t=0, seed=0, traffic=Traffic(size)
        )
        nodes = executor.init(now, first, x0, meter)
        return executor.peer_round(now, plan, nodes, exchange, meter)

    trim = worth_trimming(facts, planner)
    executors = _executors(PeerExecutor, task, planner, pool, trim=trim)
    return TrialRunner(executors, play, facts.activations, _pair(pool))


def _pair(pool: Pool) -> NDArray[np.int64]:
    """Return the first and the last client whose samples this process has."""
    return np.unique(pool.clients.mine[[0, -1]])


def _executors(
    kind: type[E], task: Task, planner: Planner, pool: Pool, **options: Any
) -> Callable[[Candidate], E]:
    """Return a function from a candidate to its executor; a run reuses its executor, too."""

    @cache
    def executor_for(candidate: Candidate) -> E:
        return kind(
            replace(task, channels_last=candidate.channels_last),
            planner,
            pool,
            mode=candidate.mode,
            chunk=candidate.chunk,
            threads=candidate.threads,
            **options,
        )

    return executor_for
