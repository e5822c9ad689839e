"""The checks of `simulate`, for callers that check many runs before they start the first one."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from torch import nn

from undrift.core import Federated, Peer
from undrift.data.clients import Clients
from undrift.data.work import Deadline, Work
from undrift.devices import Fleet
from undrift.engine import participation as laws
from undrift.engine.clock import Clock, gradient_flops, measure, pace
from undrift.engine.execution.cohort import Executor
from undrift.engine.peer_run import require_equal_steps
from undrift.engine.plan import Planner
from undrift.engine.simulate import _check_devices, _connections, _require_alike
from undrift.engine.tuning.probe import inspect
from undrift.engine.tuning.select import ExecutionOptions, Workload, choose_execution
from undrift.gradients.task import Loss, Task
from undrift.models.layout import Layout
from undrift.optim.schedules import resolve


def check(
    algorithm: Federated[Any, Any, Any, Any] | Peer[Any],
    model: nn.Module,
    clients: Clients,
    *,
    loss: Loss,
    work: Work,
    rounds: int,
    seed: int = 0,
    batch_size: int | None = None,
    participation: laws.AnyParticipation = 1.0,
    weighting: laws.Weighting | None = None,
    devices: Fleet | None = None,
    **options: Any,
) -> None:
    """Raise what `simulate` raises in one process, for the same arguments."""
    law = laws.parse(participation)
    law.check(len(clients), rounds)
    work.check(len(clients))
    _check_devices(algorithm, clients, work, law, devices)
    if isinstance(algorithm, Peer):
        weighting = _require_alike(algorithm, clients, law, weighting, None)
    population = laws.population_weights("size" if weighting is None else weighting, clients.sizes)
    trained = copy.deepcopy(model).train()
    layout = Layout.of(trained)
    algorithm.check(trained)
    facts = inspect(trained, loss, clients)
    task = Task(
        trained,
        layout,
        loss,
        options.get("weight_decay", 0.0),
        options.get("clip"),
        facts.randomness,
        clients.prepare,
    )
    planner = Planner(clients, population, law, work, batch_size, seed, devices)
    pool = (task.cast(clients.inputs), task.cast(clients.targets))
    if devices is not None and isinstance(work, Deadline) and isinstance(algorithm, Federated):
        clock = Clock(devices, gradient_flops(task, clients), work.seconds)
        bill = measure(algorithm, Executor(task, planner, pool, "loop", 1), len(clients))
        planner = replace(planner, work=pace(work, clock, bill, clients, batch_size))
    planner.check(rounds)
    if isinstance(algorithm, Peer):
        links, route = options.get("topology"), options.get("allreduce")
        _connections(algorithm, links, route, len(clients))
        for t in range(rounds):
            require_equal_steps(algorithm, planner.plan(t))
    else:
        resolve(algorithm, 0).init(layout.gather(trained))
    mode, kernels = options.get("mode", "auto"), options.get("kernels", True)
    compiles = options.get("compile", False)
    if mode in ("threads", "stacked") or kernels == "require" or compiles:
        wishes = ExecutionOptions(mode, None, options.get("threads"), None, compiles, kernels)
        load = Workload(algorithm, planner, pool, facts, rounds, False)
        choose_execution(load, task, wishes, None)
