"""The collectives of one round of peers that are spread over processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from undrift.comm.routes import Route
from undrift.core import Merge, Vector
from undrift.engine.collectives import gossip
from undrift.engine.collectives.base import Exchange, Rows
from undrift.engine.collectives.schedule import rank_schedule
from undrift.engine.processes.group import Processes
from undrift.engine.processes.transport import Transport
from undrift.engine.world import RankBlocks
from undrift.topology import Topology


@dataclass(kw_only=True)
class NetworkExchange(Exchange):
    """Runs the collectives of one round on this process's rows and the others' over the network."""

    world: Processes
    blocks: RankBlocks | None = None  # the nodes of each rank; by default as many on each

    @property
    def _blocks(self) -> RankBlocks:
        return self.blocks or RankBlocks(self.size, self.world.size)

    @property
    def nodes(self) -> range:
        """Return the nodes of this process."""
        return self._blocks.of(self.world.rank)

    @property
    def _transport(self) -> Transport:
        return self.world.transport

    def _mix(self, topology: Topology, leaves: Sequence[Rows]) -> list[Rows]:
        for rows in leaves:
            # The round ends before all processes raise: a process that is no neighbour of a bad
            # node could not learn of it earlier.
            self.not_finite.update(self._find_not_finite(rows))
        label, self.mixes = f"round {self.t + 1}, exchange {self.mixes}", self.mixes + 1
        return gossip.mix(
            self._transport,
            topology,
            leaves,
            blocks=self._blocks,
            label=label,
            traffic=self.traffic,
        )

    def _reduce(self, vectors: list[Vector], merge: Merge, route: Route, call: int) -> Vector:
        if merge.backend is None:
            reduced = self._all_reduce(vectors, merge, route, call)
            if reduced.not_finite:
                # Each process knows one such worker by now, so all of them reach this exchange.
                self._require_finite(vectors)
            return reduced.vectors[0]
        self._require_finite(vectors)
        stacked = torch.stack(vectors)
        self._count_route(vectors[0], merge, route)
        if merge.backend == "max":
            return self.world.largest(stacked.amax(0))
        total: Vector = self.world.sum(stacked.sum(0))
        return total / self.size

    def _require_finite(self, vectors: list[Vector]) -> None:
        """Raise on all processes an error that names every worker whose vector is not finite."""
        own = self._find_not_finite([vector[None] for vector in vectors])
        self.world.agree(own, self.t + 1, "messages")

    def _count_route(self, vector: Vector, merge: Merge, route: Route) -> None:
        """Count the bytes that the route would carry where the backend's all-reduce runs."""
        for hop in rank_schedule(route, self._blocks, (len(vector),), self.world.rank):
            for message in hop.sends:
                for part in message.parts:
                    like = vector[slice(*part.piece)]
                    nbytes = merge.nbytes(like, part.stands_for, result=not hop.merging) or 0
                    self.traffic.add(message.sender, message.receiver, nbytes, len(like))
            self.traffic.hops += 1
