"""A client that knows only its own samples does what it does in a simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import undrift as ud
from tests.support.runs import on_net
from undrift import testing, tree
from undrift.aggregation.uploads import CohortUploads
from undrift.engine.execution.client import Stage, client_exchange
from undrift.engine.execution.pool import ClientSamples
from undrift.engine.plan import Assignment, Plan, Planner
from undrift.gradients.task import Task

METHODS = [
    ud.FedAvg(lr=0.1),
    ud.Scaffold(lr=0.1),
    ud.FedaGrac(lr=0.1),
    ud.FedaGrac(lr=0.1, start="full"),
    ud.FedLin(lr=0.1),
    ud.FedMLB(lr=0.1),
    ud.Compressed(ud.FedACG(lr=0.1), ud.QSGD(bits=4)),
    ud.Accelerated(ud.FedAvg(lr=0.1)),
]


class Sites:
    """Clients that each hold nothing but their own samples and state."""

    def __init__(self, algorithm: Any, task: Task, clients: ud.Clients, x0: Tensor) -> None:
        self.algorithm, self.task, self.clients, self.x0 = algorithm, task, clients, x0
        self.states: dict[int, Any] = {}
        self.bytes_up = self.gradients = 0

    def exchange(self, stage: Stage, plan: Plan, planner: Planner, first_down: Any) -> Any:
        total = CohortUploads(plan.ids, plan.weights, hold=False)
        for position in plan.by_falling_work(np.arange(len(plan.ids))):
            i = int(plan.ids[position[0]])
            inputs, targets = self.clients[i]
            assignment = Assignment(
                t=plan.t,
                ids=np.array([i]),
                counts=plan.counts[position],
                mean_count=plan.mean_count,
                seed=planner.seed,
                batch_size=planner.batch_size,
                width=planner.width,
            )
            if i not in self.states:
                self.states[i] = self.algorithm.init_client(self.x0, first_down)
            samples = ClientSamples(inputs, targets, [np.arange(len(targets))])
            done = client_exchange(stage, self.states[i], self.task, samples, assignment)
            self.states[i] = done.state
            self.bytes_up += done.cost.bytes_up
            self.gradients += done.cost.gradients
            upload = tree.map(lambda leaf: leaf[None], stage.unpack(done.wire))
            assert total.add([i], upload)
        return total.total


@pytest.mark.parametrize("algorithm", METHODS, ids=repr)
def test_sites_with_their_own_samples_give_the_bits_of_a_simulation(algorithm: Any) -> None:
    run = on_net(algorithm, mode="loop", kernels=False, rounds=3)
    again = testing.start(algorithm, mode="loop", kernels=False, work=run._planner.work, rounds=0)
    task, planner, x0 = again._task, run._planner, again._x0
    sites = Sites(algorithm, task, run._clients, x0)
    server = algorithm.init(x0.clone())
    with torch.no_grad():
        for t in range(3):
            plan = planner.plan(t)
            down = first = algorithm.broadcast(server)
            asks = algorithm.asks if isinstance(algorithm, ud.Prelude) else "nobody"
            new = np.flatnonzero([i not in sites.states for i in plan.ids])
            asked = plan.part({"all": np.arange(len(plan.ids)), "new": new}.get(asks, new[:0]))
            if len(asked.ids):
                stage = Stage.answers(algorithm, algorithm.ask(server), x0)
                answer = sites.exchange(stage, asked, planner, first)
                server = algorithm.hear(server, answer, asked.cohort)
                down = algorithm.broadcast(server)
            stage = Stage.uploads(algorithm, down, x0)
            mean = sites.exchange(stage, plan, planner, first)
            server = algorithm.update(server, mean, plan.cohort)
    assert torch.equal(server.x, run.x)
    assert sites.bytes_up == sum(record.bytes_up for record in run.records)
    assert sites.gradients == sum(record.gradients for record in run.records)
