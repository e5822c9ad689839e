"""A run of a method without a server."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from undrift import tree
from undrift.comm.routes import Route
from undrift.core import Peer, Vector
from undrift.dry import ZeroObjective
from undrift.engine.checkpoint import store
from undrift.engine.collectives.base import Exchange
from undrift.engine.collectives.inprocess import InProcessExchange
from undrift.engine.collectives.network import NetworkExchange
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.execution.meter import Meter
from undrift.engine.execution.nodes import PeerExecutor
from undrift.engine.plan import Plan
from undrift.engine.processes.group import Processes
from undrift.engine.run import Run
from undrift.engine.settings import RunSettings
from undrift.engine.validate import require_equal_steps
from undrift.errors import UndriftError
from undrift.models.layout import raw_bytes
from undrift.optim.schedules import resolve
from undrift.results.record import PeerRecord
from undrift.topology import Links

DIFFERENT = -1  # what stands for the checksum of models that are not the same


class PeerRun(Run):
    """Runs a method without a server; `state.x` is (m, D), a model in each row."""

    record_type = PeerRecord

    def __init__(
        self,
        algorithm: Peer[Any],
        executor: PeerExecutor,
        settings: RunSettings,
        links: Links | None,
        route: Route | None,
    ) -> None:
        super().__init__(algorithm, executor, settings)
        self._executor, self._links, self._route = executor, links, route
        self._state: Any = None
        self._whole: Any = None
        self._started = Meter(self.size)  # gradients of the start belong to the first round

    @property
    def size(self) -> int:
        return len(self._planner.census)

    @property
    def state(self) -> Any:
        """Return all nodes' rows; each process holds its own, so all processes must ask."""
        if self._whole is None:
            self._require_others("state")
            self._tell_workers("state")
            with self.world.failure_scope():
                self._whole = self.world.rows(self._nodes)
        return self._whole

    @state.setter
    def state(self, state: Any) -> None:
        self._state, self._whole = state, None
        if self.world.size == 1:
            self._whole = state

    @property
    def whole(self) -> bool:
        return self._whole is not None or self.world.open

    def _require_others(self, what: str) -> None:
        if not self.whole:
            raise UndriftError(
                f"run.{what} needs the other processes, got a run that has let them go; read it "
                "before the run is closed."
            )

    def _collect(self) -> None:
        self._whole = self.world.rows(self._nodes)

    @property
    def _nodes(self) -> Any:
        """Return this process's rows."""
        if self._state is None:
            self.state = self._begin()
        return self._state

    def _begin(self) -> Any:
        """Return the states before the first round; a resumed run does not pay for them."""
        plan = Plan.equal(np.arange(self.size), 1, self.size, t=-1)
        with self._computing(self.size):
            return self._executor.init(resolve(self.algorithm, 0), plan, self._x0, self._started)

    @property
    def _saved_state(self) -> Any:
        return self._nodes

    def _replaced(self) -> dict[str, Any]:
        # Without a state yet the start is made in the first round, and made again if that fails.
        started = self._started if self._state is not None else Meter(self.size)
        names = {"_state": self._state, "_whole": self._whole, "_started": started}
        return names | {"round": self.round}

    @property
    def _reused_bytes(self) -> int:
        return 0  # the states of all nodes are blocks so large that holes between them would cost

    @property
    def mean(self) -> Vector:
        if self._whole is None:
            self._require_others("mean")
            self._tell_workers("mean")
        with self.world.failure_scope():
            return self._mean()

    def _mean(self) -> Vector:
        if self._whole is not None:
            return self.x.mean(0)
        if self._agreed():
            return self._nodes.x[0]  # type: ignore[no-any-return]
        return self.world.sum(self._nodes.x.sum(0)) / self.size  # type: ignore[no-any-return]

    def _agreed(self) -> bool:
        """Return whether all nodes have the same model, as after an all-reduce, by checksums."""
        rows = _distinct(self._nodes.x)
        number = zlib.crc32(raw_bytes(rows[0])) if len(rows) == 1 else DIFFERENT
        return set(self.world.gather([number])[:, 0].tolist()) == {number} != {DIFFERENT}

    def _advance(self, plan: Plan, meter: Meter) -> None:
        require_equal_steps(self.algorithm, plan)
        before = self._nodes
        meter.gradients, meter.samples = self._started.gradients, self._started.samples
        meter.samples_of += self._started.samples_of
        self._traffic = Traffic(self.size)
        exchange = self._exchange(self._traffic)
        now = resolve(self.algorithm, self.round)
        after = self._executor.peer_round(now, plan, before, exchange, meter)
        if after.x.shape != before.x.shape or after.x.dtype != before.x.dtype:
            raise UndriftError(
                f"{type(now).__name__}.round needs to return x as {tuple(before.x.shape[1:])} "
                f"{before.x.dtype}, got {tuple(after.x.shape[1:])} {after.x.dtype}."
            )
        self.state, self._started = after, Meter(self.size)

    def _exchange(self, traffic: Traffic) -> Exchange:
        """Return the collectives of this round."""
        settings: dict[str, Any] = {
            "size": self.size,
            "topology": None if self._links is None else self._links.at(self.round),
            "route": self._route,
            "t": self.round,
            "seed": self._planner.seed,
            "traffic": traffic,
        }
        if isinstance(self.world, Processes):
            blocks = self._executor.placement.blocks(self.size)
            return NetworkExchange(world=self.world, blocks=blocks, **settings)
        return InProcessExchange(**settings)

    def _make_record(self, plan: Plan, meter: Meter, seconds: float) -> PeerRecord:
        node_accuracy = norm = None
        tested: dict[str, Any] = {"loss": None, "accuracy": None}
        tested |= self._test_metrics({})
        consensus: float | None = None
        # Between processes the mean model costs an all-reduce, which is paid where it is shown.
        if self._evaluation_due or self.world.size == 1:
            agreed = self._agreed()
            mean = self._nodes.x[0] if agreed else self._mean()
            models = self._nodes.x[:1] if agreed else self._nodes.x
            # Row by row: a copy of all models could be as large as the memory.
            apart = [0.0] if agreed else [float((x - mean).square().sum()) for x in models]
            consensus = self._over_nodes(apart)
        if self._evaluation_due:
            tested = self._tested(mean)
            accuracy = tested["accuracy"]
            tested |= self._train_loss(mean) | self._validation(mean) | self._sharpness(mean)
            tested |= self._over_clients(mean)
            if self._settings.evaluation.node_accuracy and accuracy is not None:
                node_accuracy = accuracy if agreed else self._node_accuracy()
            if self._settings.evaluation.gradient_norm:
                norm = float(torch.linalg.vector_norm(self.evaluator().gradient(mean)))
        self._traffic = traffic = self._traffic.sum_over_ranks(self.world)
        matching = traffic.matching
        return PeerRecord(
            round=self.round,
            clients=len(plan.ids),
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
            **tested,
            **self._clock_fields(plan, lambda clock: clock.of_peers(plan, meter, traffic)),
        )

    def _node_accuracy(self) -> float:
        """Return the mean accuracy of the nodes' own models, each on its share of samples.

        Nodes count whose process has samples of the test.
        """
        evaluation, nodes = self._settings.evaluation, self._executor.placement.nodes(self.size)
        samples = evaluation.samples if evaluation.node_samples is None else evaluation.node_samples
        own = self.evaluator().accuracies(self._nodes.x, nodes, samples)
        sums = self.world.sum(torch.tensor([sum(own), len(own)], dtype=torch.float64))
        return float(sums[0] / sums[1])

    def _over_nodes(self, values: list[float]) -> float:
        """Return the mean over all nodes of a number that each process has for its own nodes."""
        total: Tensor = self.world.sum(torch.tensor(sum(values), dtype=torch.float64))
        return float(total) / self.size

    def _load(self, folder: Path) -> None:
        super()._load(folder)
        if self.round == 0:  # begin again, so that the start is paid for once
            self._state = None

    def _own_part(self, parts: list[store.Snapshot]) -> store.Snapshot:
        rows = tree.map(lambda *leaves: torch.cat(leaves), *(part.server for part in parts))
        nodes = self._executor.placement.nodes(self.size)
        own = tree.map(lambda leaf: leaf[nodes.start : nodes.stop].clone(), rows)
        return replace(parts[0], server=own)

    def _templates(self, x0: Vector) -> tuple[Any, Any]:
        node = resolve(self.algorithm, 0).init(x0, _Start(x0))
        return tree.map(lambda leaf: leaf[None], node), ()


def _distinct(models: Tensor) -> Tensor:
    """Return one row if all models are the same, as after an all-reduce, else all rows."""
    return models[:1] if all(torch.equal(x, models[0]) for x in models[1:]) else models


class _Start(ZeroObjective):
    """Stands for the data where a peer's init is called only for the structure of its state."""

    t = -1

    def outputs(self, x: Vector) -> NoReturn:
        raise UndriftError("A peer's init may ask for loss and gradient, not for outputs.")
