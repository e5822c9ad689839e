"""A run of a method without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift import tree
from undrift.core import AllReduce, Cohort, Peer, Vector
from undrift.engine.choose import fitting_threads
from undrift.engine.comm import Exchange, Traffic
from undrift.engine.evaluate import gradient
from undrift.engine.local import Meter
from undrift.engine.peers import PeerExecutor
from undrift.engine.plan import Plan
from undrift.engine.run import Course, Run
from undrift.errors import UndriftError
from undrift.record import PeerRecord
from undrift.route import Route
from undrift.schedule import resolve
from undrift.topology import Links


class PeerRun(Run):
    """`state.x` is (m, D), a model in each row; `model` holds their mean."""

    record_type = PeerRecord

    def __init__(
        self,
        algorithm: Peer[Any],
        executor: PeerExecutor,
        course: Course,
        links: Links | None,
        route: Route | None,
        *,
        node_accuracy: bool,
        gradient_norm: bool,
    ) -> None:
        super().__init__(algorithm, executor, course)
        self._executor, self._links, self._route = executor, links, route
        self._node_accuracy, self._gradient_norm = node_accuracy, gradient_norm
        self._state: Any = None
        self._started = Meter(self.size)  # gradients of the start belong to the first round

    @property
    def size(self) -> int:
        return len(self._planner.clients)

    @property
    def state(self) -> Any:
        if self._state is None:
            self._state = self._begin()
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state = state

    def _begin(self) -> Any:
        """Made when first needed: a resumed run does not pay for it."""
        everybody = np.arange(self.size)
        cohort = Cohort(-1, self.size, self.size, 1.0)
        one = np.ones(self.size, dtype=np.int64)
        plan = Plan(-1, everybody, np.full(self.size, 1 / self.size), one, cohort)
        samples = self._executor.samples(self.size)
        with torch.no_grad(), fitting_threads(samples * self._course.facts.activations):
            return self._executor.init(resolve(self.algorithm, 0), plan, self._x0, self._started)

    @property
    def mean(self) -> Vector:
        return self.x.mean(0)

    def _advance(self, plan: Plan, meter: Meter) -> None:
        require_equal_steps(self.algorithm, plan)
        before = self.state
        meter.gradients, meter.samples = self._started.gradients, self._started.samples
        meter.samples_of += self._started.samples_of
        self._traffic = Traffic(self.size)
        topology = None if self._links is None else self._links.at(self.round)
        exchange = Exchange(
            self.size, topology, self._route, self.round, self._planner.seed, self._traffic
        )
        now = resolve(self.algorithm, self.round)
        after = self._executor.play(now, plan, before, exchange, meter)
        if after.x.shape != before.x.shape or after.x.dtype != before.x.dtype:
            raise UndriftError(
                f"{type(now).__name__}.round needs to return x as {tuple(before.x.shape[1:])} "
                f"{before.x.dtype}, got {tuple(after.x.shape[1:])} {after.x.dtype}."
            )
        self.state, self._started = after, Meter(self.size)

    def _record(self, plan: Plan, meter: Meter, seconds: float) -> PeerRecord:
        loss = accuracy = node_accuracy = norm = None
        mean = self.mean
        models = _distinct(self.x)
        # Row by row: a copy of all models could be as large as the memory.
        apart = [float((x - mean).square().sum()) for x in models] if len(models) > 1 else [0.0]
        consensus = sum(apart) / len(apart)
        if self._evaluating:
            loss, accuracy = self._evaluate(mean)
            if self._node_accuracy and accuracy is not None:
                scores = [self._evaluate(x).accuracy or 0.0 for x in models]
                node_accuracy = sum(scores) / len(scores)
            if self._gradient_norm:
                norm = float(torch.linalg.vector_norm(self._gradient(mean)))
        traffic = self._traffic
        matching = traffic.matching
        return PeerRecord(
            round=self.round,
            clients=len(plan.ids),
            loss=loss,
            accuracy=accuracy,
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            gradients=meter.gradients,
            samples=meter.samples,
            seconds=seconds,
            node_accuracy=node_accuracy,
            consensus=consensus,
            gradient_norm=norm,
            bytes_per_worker=traffic.per_worker,
            bytes_per_link=traffic.per_link,
            hops=traffic.hops,
            bits=traffic.bits,
            sign_matching=sum(matching) / len(matching) if matching else None,
            **self._lap(plan, lambda clock: clock.of_peers(plan, meter, traffic)),
        )

    def _gradient(self, x: Vector) -> Vector:
        batch = self._course.evaluation_batch if self._course.facts.separable else 2**62
        return gradient(self._task, x, self._planner.clients, self._planner.population, batch)

    def _load(self, folder: Path) -> None:
        super()._load(folder)
        if self.round == 0:  # begin again, so that the start is paid for once
            self._state = None

    def _templates(self, x0: Vector) -> tuple[Any, Any]:
        node = resolve(self.algorithm, 0).init(x0, _Flat(x0))
        return tree.map(lambda leaf: leaf[None], node), ()


def require_equal_steps(algorithm: Peer[Any], plan: Plan) -> None:
    """Refuse unequal K_i where nodes would wait for each other inside a round."""
    low, high = int(plan.counts.min()), int(plan.counts.max())
    always = algorithm.every_step or isinstance(algorithm, AllReduce)
    if low != high and (always or low < algorithm.meetings):
        few, many = plan.ids[plan.counts.argmin()], plan.ids[plan.counts.argmax()]
        raise ValueError(
            f"{type(algorithm).__name__} needs the same number of local steps on every client, "
            f"got {low} for client {few} and {high} for client {many}; use work=Steps(k)."
        )


def _distinct(models: Tensor) -> Tensor:
    """One model when all are the same, as after an all-reduce."""
    return models[:1] if all(torch.equal(x, models[0]) for x in models[1:]) else models


class _Flat:
    """An objective without a slope, for the structure of a state."""

    t, k = -1, 0

    def __init__(self, x: Vector) -> None:
        self.level = torch.zeros_like(x, dtype=torch.int64)

    def __call__(self, x: Vector) -> Tensor:
        return x.new_zeros(())

    def grad(self, x: Vector) -> Vector:
        return torch.zeros_like(x)

    def outputs(self, x: Vector) -> Any:
        raise UndriftError("A peer's init may ask for loss and gradient, not for outputs.")

    def plus(self, term: Any) -> _Flat:
        return self
