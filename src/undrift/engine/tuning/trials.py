"""Trial rounds: a few steps of a few clients, whose results are not used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import torch

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
from undrift.engine.tuning.rules import Candidate, TrialRound, row_cost, worth_trimming
from undrift.gradients.task import Task
from undrift.optim.schedules import resolve
from undrift.topology import complete

E = TypeVar("E", bound=BaseExecutor)


def federated_trial(
    algorithm: Federated[Any, Any, Any, Any],
    task: Task,
    planner: Planner,
    pool: Pool,
    facts: Facts,
) -> TrialRound:
    """Return a function that runs a small round of a method with a server."""
    executor_for = _executors(
        FederatedExecutor, task, planner, pool, row_cost=row_cost(facts, planner)
    )

    def trial(plan: Plan, candidate: Candidate) -> object:
        now, x0 = resolve(algorithm, 0), task.layout.gather(task.model)
        executor, size = executor_for(candidate), len(plan.ids)
        with torch.no_grad(), intra_op_threads(executor.elements_per_step(size, facts.activations)):
            return federated_round(
                now, executor, plan, server=now.init(x0), clients={}, x0=x0, meter=Meter(size)
            )

    return trial


def peer_trial(
    algorithm: Peer[Any],
    task: Task,
    planner: Planner,
    pool: Pool,
    facts: Facts,
) -> TrialRound:
    """Return a function that runs a small round of a method without a server."""
    trim = worth_trimming(facts, planner)
    executor_for = _executors(PeerExecutor, task, planner, pool, trim=trim)

    def trial(plan: Plan, candidate: Candidate) -> object:
        now, x0 = resolve(algorithm, 0), task.layout.gather(task.model)
        executor, size = executor_for(candidate), len(plan.ids)
        first = Plan.equal(plan.ids, 1, plan.cohort.population)
        exchange = InProcessExchange(
            size=size, topology=complete(size), route=Ring(), t=0, seed=0, traffic=Traffic(size)
        )
        with torch.no_grad(), intra_op_threads(executor.elements_per_step(size, facts.activations)):
            nodes = executor.init(now, first, x0, Meter(size))
            return executor.peer_round(now, plan, nodes, exchange, Meter(size))

    return trial


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
