"""One round of a method with a server, as a function of the states before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from undrift.core import Federated, Prelude, Vector
from undrift.engine.execution.client import Stage
from undrift.engine.execution.cohort import FederatedExecutor, Tap, Upload, UploadObserver
from undrift.engine.execution.meter import Meter
from undrift.engine.plan import Plan


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

    if isinstance(algorithm, Prelude):
        stage = Stage.answers(algorithm, algorithm.ask(server), x0)
        answer, new_states = executor.exchange(stage, plan, state_of, meter)
        server = algorithm.hear(server, answer, plan.cohort)
        down = algorithm.broadcast(server)
    observer = None if tap is None else _observer(tap, plan.t + 1, server.x)
    stage = Stage.uploads(algorithm, down, x0)
    mean, new_states = executor.exchange(stage, plan, state_of, meter, observer)
    return algorithm.update(server, mean, plan.cohort), new_states


def _observer(tap: Tap, round: int, x: Vector) -> UploadObserver:
    def observe(client: int, weight: float, upload: Any, path: tuple[Vector, ...]) -> None:
        start, y = path or (None, None)
        tap(Upload(round, client, weight, upload, x, start, y))

    return observe
