"""The collectives of one round of peers that are spread over processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from undrift import tree
from undrift.comm.routes import Route
from undrift.core import Merge, Vector
from undrift.engine.collectives import allreduce, gossip
from undrift.engine.collectives.inprocess import (
    Rows,
    Traffic,
    drawing,
    require_floats,
    require_route,
)
from undrift.engine.collectives.schedule import rank_schedule
from undrift.engine.processes.group import Processes
from undrift.errors import DivergenceError
from undrift.topology import Topology


@dataclass
class WireExchange:
    """As `Exchange`, on the rows of this process's nodes; the others' come over the network."""

    world: Processes
    size: int
    topology: Topology | None
    route: Route | None
    t: int
    seed: int
    traffic: Traffic
    reduced: int = field(default=0, init=False)  # all-reduces so far in this round
    mixed: int = field(default=0, init=False)
    bad: set[int] = field(
        default_factory=set, init=False
    )  # own nodes whose messages are not finite

    def mix(self, leaves: Sequence[Rows]) -> list[Rows]:
        topology = require_floats(self.topology, leaves)
        for rows in leaves:
            # UploadObserver at the end of the round: whoever is no neighbour could not know before.
            self.bad.update(self._not_finite(rows))
        label, self.mixed = f"round {self.t + 1}, exchange {self.mixed}", self.mixed + 1
        return gossip.mix(self.world.transport, topology, leaves, label=label, traffic=self.traffic)

    def reduce(self, rows: Rows, how: Merge) -> Vector:
        route = require_route(self.route)
        call, self.reduced = self.reduced, self.reduced + 1
        vectors = [row for some in rows for row in some.unbind()]
        if how.backend is not None:
            self.world.agree(self._not_finite(rows), self.t + 1, "messages")
            return self._by_backend(vectors, how, route)
        rng = drawing(self.seed, self.t, call)
        mine = dict(zip(self._nodes, ([vector] for vector in vectors), strict=True))
        label = f"round {self.t + 1}, all-reduce {call} by {how}"
        results, bad = allreduce.all_reduce(
            self.world.transport,
            mine,
            how,
            route,
            [rng],
            workers=self.size,
            label=label,
            traffic=self.traffic,
        )
        if bad is not None:
            raise DivergenceError.of([bad], self.t + 1, "messages", everywhere=True)
        return results[0]

    def _by_backend(self, vectors: list[Vector], how: Merge, route: Route) -> Vector:
        """In full precision the backend's own all-reduce does it, counted as the route would."""
        for hop in rank_schedule(
            route, self.size, (len(vectors[0]),), self.world.size, self.world.rank
        ):
            for message in hop.sends:
                for part in message.parts:
                    like = vectors[0][slice(*part.piece)]
                    nbytes = how.nbytes(like, part.stands_for, closed=not hop.merging) or 0
                    self.traffic.carry(message.sender, message.receiver, nbytes, len(like))
            self.traffic.hops += 1
        if how.backend == "max":
            return self.world.largest(torch.stack(vectors).amax(0))
        total: Vector = self.world.sum(torch.stack(vectors).sum(0))
        return total / self.size

    @property
    def _nodes(self) -> range:
        return self.world.nodes(self.size)

    def _not_finite(self, rows: Rows) -> list[int]:
        finite = torch.cat([tree.finite_rows(some) for some in rows])
        return [i for i, fine in zip(self._nodes, finite.tolist(), strict=True) if not fine]
