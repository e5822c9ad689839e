"""One round of a method with a server, as a function of the states before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core import Federated, Prelude, Vector
from undrift.engine.execution.client import Stage
from undrift.engine.execution.cohort import FederatedExecutor, Tap, Upload, UploadObserver
from undrift.engine.execution.meter import Meter
from undrift.engine.plan import Plan
from undrift.engine.world import World


def federated_round(
    algorithm: Federated[Any, Any, Any, Any],
    executor: FederatedExecutor,
    plan: Plan,
    *,
    server: Any,
    clients: Mapping[int, Any],
    x0: Vector,
    meter: Meter,
    tap: Tap | None = None,
) -> tuple[Any, dict[int, Any]]:
    """Return the server's next state and the cohort's new states; no argument but `meter` changes.

    `clients` holds the states of clients that have taken part before; others start at `x0`.
    """
    if plan.share < 1:
        server = algorithm.enrol(server, plan.share)
    if len(plan.ids) == 0:  # The round is void if every client failed.
        return server, {}
    down = first_down = algorithm.broadcast(server)
    new_states: dict[int, Any] = {}

    def state_of(i: int) -> Any:
        for states in (new_states, clients):
            if i in states:
                return states[i]
        return algorithm.init_client(x0, first_down)

    asked = _asked(algorithm, executor.world, plan, clients)
    if isinstance(algorithm, Prelude) and len(asked):
        part, cost = plan.part(asked), Meter(len(asked))
        stage = Stage.answers(algorithm, algorithm.ask(server), x0)
        answer, new_states = executor.exchange(stage, part, state_of, cost)
        meter.add(cost, asked)
        meter.exchanges += cost.exchanges
        server = algorithm.hear(server, answer, part.cohort)
        down = algorithm.broadcast(server)
    observer = None if tap is None else _observer(tap, plan.t + 1, server.x)
    stage = Stage.uploads(algorithm, down, x0)
    mean, new_states = executor.exchange(stage, plan, state_of, meter, observer)
    return algorithm.update(server, mean, plan.cohort), new_states


def _asked(
    algorithm: Federated[Any, Any, Any, Any], world: World, plan: Plan, clients: Mapping[int, Any]
) -> NDArray[np.int64]:
    """Return the positions in the plan of those whom the server asks before its broadcast."""
    everybody = np.arange(len(plan.ids))
    if not isinstance(algorithm, Prelude) or algorithm.asks == "nobody":
        return everybody[:0]
    if algorithm.asks == "all":
        return everybody
    # Every process knows the states of its own clients only.
    known = world.gather([int(i) in clients for i in plan.ids]).sum(0)
    return np.flatnonzero(known == 0)


def _observer(tap: Tap, round: int, x: Vector) -> UploadObserver:
    def observe(client: int, weight: float, upload: Any, path: tuple[Vector, ...]) -> None:
        start, y = path or (None, None)
        tap(Upload(round, client, weight, upload, x, start, y))

    return observe
