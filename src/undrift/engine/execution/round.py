"""One round of a method with a server, as a function of the states before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from undrift.core import Federated, Loop, Prelude, Vector
from undrift.engine.execution.cohort import Executor, Tap, Upload, UploadObserver
from undrift.engine.execution.local import Meter
from undrift.engine.plan import Plan


def play(
    algorithm: Federated[Any, Any, Any, Any],
    executor: Executor,
    plan: Plan,
    server: Any,
    clients: Mapping[int, Any],
    x0: Vector,
    meter: Meter,
    tap: Tap | None = None,
) -> tuple[Any, dict[int, Any]]:
    """The server's next state and the new states of the cohort; nothing given is changed."""
    if plan.share < 1:
        server = algorithm.enrol(server, plan.share)
    if len(plan.ids) == 0:  # everybody failed: the round is void
        return server, {}
    down = algorithm.broadcast(server)
    first = down
    fresh: dict[int, Any] = {}

    def state_of(i: int) -> Any:
        for held in (fresh, clients):
            if i in held:
                return held[i]
        return algorithm.init_client(x0, first)

    def local(down: Any, client: Any, steps: Loop) -> tuple[Any, Any]:
        up, client = algorithm.local(down, client, steps)
        return algorithm.pack(up, client, steps)

    if isinstance(algorithm, Prelude):
        asked = algorithm.ask(server)
        said, fresh = executor.exchange(
            algorithm.answer, lambda wire: wire, asked, plan, state_of, meter
        )
        server = algorithm.hear(server, said, plan.cohort)
        down = algorithm.broadcast(server)
    told = None if tap is None else _observer(tap, plan.t + 1, server.x)
    mean, fresh = executor.exchange(local, algorithm.unpack, down, plan, state_of, meter, told)
    return algorithm.update(server, mean, plan.cohort), fresh


def _observer(tap: Tap, round: int, x: Vector) -> UploadObserver:
    def told(client: int, weight: float, upload: Any, path: tuple[Vector, ...]) -> None:
        start, y = path or (None, None)
        tap(Upload(round, client, weight, upload, x, start, y))

    return told
