"""One round of a method with a server, as a function of the states before it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from undrift.core import Federated, Prelude, Vector
from undrift.engine.execution.aggregate import norm_of
from undrift.engine.execution.client import Stage
from undrift.engine.execution.cohort import FederatedExecutor, Tap, Upload, UploadObserver
from undrift.engine.execution.meter import Meter
from undrift.engine.plan import Plan
from undrift.engine.world import World


class RoundResult(NamedTuple):
    """Holds what a round leads to."""

    server: Any
    states: dict[int, Any]  # of the clients whose uploads count
    clients: int  # whose uploads count; 0 in a void round
    dropped: dict[int, str]  # clients whose uploads are bad, with the reason


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
) -> RoundResult:
    """Return the server's next state and the cohort's new states; no argument but `meter` changes.

    `clients` holds the states of clients that have taken part before; others start at `x0`. A round
    in which too few take part or too few uploads are sound is void: the model stays as it is.
    """
    if plan.share < 1:
        server = algorithm.enrol(server, plan.share)
    before, dropped = server, dict[int, str]()
    needed = executor.policy.needed(len(plan.ids) + plan.missed)
    if len(plan.ids) < needed:
        return RoundResult(before, {}, 0, dropped)
    scale = norm_of(server.x)
    down = first_down = algorithm.broadcast(server)
    new_states: dict[int, Any] = {}
    # States are never changed in place, so all clients that are new may begin with the same one.
    first_state = cache(lambda: algorithm.init_client(x0, first_down))

    def state_of(i: int) -> Any:
        for states in (new_states, clients):
            if i in states:
                return states[i]
        return first_state()

    asked = _asked(algorithm, executor.world, plan, clients)
    if isinstance(algorithm, Prelude) and len(asked):
        part, cost = plan.part(asked), Meter(len(asked))
        stage = Stage.answers(algorithm, algorithm.ask(server), x0)
        answers, new_states = executor.exchange(stage, part, state_of, cost, scale=scale)
        meter.add(cost, asked)
        meter.exchanges += cost.exchanges
        dropped |= answers.dropped
        if len(plan.ids) - len(dropped) < needed:
            return RoundResult(before, {}, 0, dropped)
        if answers.mean is not None:
            server = algorithm.hear(server, answers.mean, answers.plan.cohort)
            down = algorithm.broadcast(server)
    observer = None if tap is None else _observer(tap, plan.t + 1, server.x)
    sizes = executor.task.layout.sizes if executor.world.size > 1 else ()
    stage = Stage.uploads(algorithm, down, x0, sizes)
    going_on = np.flatnonzero([int(i) not in dropped for i in plan.ids])
    part, cost = plan.part(going_on), Meter(len(going_on))
    uploads, states = executor.exchange(stage, part, state_of, cost, observer, scale, needed)
    meter.add(cost, going_on)
    meter.exchanges += cost.exchanges
    dropped |= uploads.dropped
    if uploads.mean is None:
        return RoundResult(before, {}, 0, dropped)
    server = algorithm.update(server, uploads.mean, uploads.plan.cohort)
    # The server has heard the answers of those whose uploads it dropped.
    return RoundResult(server, new_states | states, len(uploads.plan.ids), dropped)


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
