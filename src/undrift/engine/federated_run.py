"""A run of a method with a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from undrift.aggregation.validation import UsualSizes
from undrift.core import Federated, Vector
from undrift.engine.checkpoint import store
from undrift.engine.execution.cohort import FederatedExecutor, RecordingTap, Tap
from undrift.engine.execution.meter import Meter
from undrift.engine.execution.round import federated_round
from undrift.engine.plan import Plan
from undrift.engine.run import Run
from undrift.engine.settings import RunSettings
from undrift.errors import DivergenceError, UndriftError
from undrift.optim.schedules import resolve
from undrift.results.record import Record


class FederatedRun(Run):
    """Runs a method with a server."""

    def __init__(
        self,
        algorithm: Federated[Any, Any, Any, Any],
        executor: FederatedExecutor,
        settings: RunSettings,
        tap: Tap | None,
    ) -> None:
        super().__init__(algorithm, executor, settings)
        self._executor, self._tap = executor, tap
        self._took_part, self._dropped = 0, dict[int, str]()  # of the round that was just run
        self.state = resolve(algorithm, 0).init(self._x0.clone())
        if not hasattr(self.state, "x"):
            raise UndriftError(
                f"{type(algorithm).__name__}.init needs to return a state with the model as its "
                f"field x, such as a NamedTuple, got {type(self.state).__name__}."
            )

    def _advance(self, plan: Plan, meter: Meter) -> None:
        now = resolve(self.algorithm, self.round)
        result = federated_round(
            now,
            self._executor,
            plan,
            server=self.state,
            clients=self.client_states,
            x0=self._x0,
            meter=meter,
            tap=self._tap,
        )
        self._refuse_bad_model(result.server.x)
        self.state, self._new_states = result.server, result.states
        self._took_part, self._dropped = result.clients, result.dropped

    def _refuse_bad_model(self, x: Vector) -> None:
        if x.shape != self._x0.shape or x.dtype != self._x0.dtype:
            raise UndriftError(
                f"{type(self.algorithm).__name__}.update needs to return x as "
                f"{tuple(self._x0.shape)} {self._x0.dtype}, got {tuple(x.shape)} {x.dtype}."
            )
        if not x.isfinite().all():
            raise DivergenceError(
                f"Training needs a finite model, got NaN or Inf from the server update of round "
                f"{self.round + 1}; lower lr or server_lr. The last good state is kept.",
                round=self.round + 1,
                clients=[],
                everywhere=True,
            )

    def _make_record(self, plan: Plan, meter: Meter, seconds: float) -> Record:
        return Record(
            round=self.round,
            clients=self._took_part,
            bytes_up=meter.bytes_up,
            bytes_down=meter.bytes_down,
            gradients=meter.gradients,
            samples=meter.samples,
            seconds=seconds,
            dropped={str(i): reason for i, reason in sorted(self._dropped.items())} or None,
            **self._tested(self.x),
            **self._train_loss(self.x),
            **self._validation(self.x),
            **self._sharpness(self.x),
            **self._over_clients(self.x),
            **self._tapped(),
            **self._clock_fields(plan, lambda clock: clock.with_server(plan, meter)),
        )

    def _tapped(self) -> dict[str, Any]:
        """Return the record's fields that the tap has measured."""
        tap = self._tap
        return dict(tap.record_fields(self.round)) if isinstance(tap, RecordingTap) else {}

    @property
    def _usual_sizes(self) -> UsualSizes:
        return self._executor.sizes

    def _own_part(self, parts: list[store.Snapshot]) -> store.Snapshot:
        holders = {i: part.clients for part in parts for i in part.clients}
        ids = np.array(sorted(holders), dtype=np.int64)
        own = ids[self._executor.placement.positions(ids)].tolist()
        return replace(parts[0], clients={i: holders[i][i] for i in own})

    def _templates(self, x0: Vector) -> tuple[Any, Any]:
        algorithm = resolve(self.algorithm, 0)
        server = algorithm.init(x0)
        return server, algorithm.init_client(x0, algorithm.broadcast(server))
