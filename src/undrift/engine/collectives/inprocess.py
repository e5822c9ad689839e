"""The collectives of one round of peers that are all in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from undrift.comm.routes import Route
from undrift.core import Merge, Vector
from undrift.engine.collectives.base import Exchange, Rows, weighted_sums
from undrift.engine.processes.transport import Incoming, Outgoing, Received
from undrift.engine.world import RankBlocks
from undrift.errors import DivergenceError
from undrift.topology import Topology

IN_CACHE = 2**16  # coordinates whose sum stays in the processor's cache
SPARSE = 0.07  # below this share of non-zero entries a sparse product is quicker


class Loopback:
    """Is the transport of a single rank, which has nobody to send to or to wait for."""

    rank, size = 0, 1

    def exchange(
        self, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming], flag: int = 0
    ) -> Loopback:
        """Return at once; a single rank has no messages, since its workers' stay in memory."""
        return self

    def wait(self) -> list[Received]:
        """Return no messages."""
        return []


@dataclass(kw_only=True)
class InProcessExchange(Exchange):
    """Runs the collectives of one round, on the rows of all nodes at once."""

    @property
    def _blocks(self) -> RankBlocks:
        return RankBlocks(self.size, 1)

    @property
    def nodes(self) -> range:
        """Return all nodes."""
        return range(self.size)

    @property
    def _transport(self) -> Loopback:
        return Loopback()

    def _mix(self, topology: Topology, leaves: Sequence[Rows]) -> list[Rows]:
        for rows in leaves:
            if not_finite := self._find_not_finite(rows):
                raise DivergenceError.of(not_finite, self.t + 1, "messages")
        rows_of_node = [rows[0][0] for rows in leaves]
        senders, receivers = np.nonzero(topology.W - np.diag(np.diag(topology.W)))
        self.traffic.links[senders, receivers] += sum(row.nbytes for row in rows_of_node)
        self.traffic.coordinates += sum(row.numel() for row in rows_of_node) * len(senders)
        self.traffic.hops += bool(len(senders))
        return [_mixed(topology, rows) for rows in leaves]

    def _reduce(self, vectors: list[Vector], merge: Merge, route: Route, call: int) -> Vector:
        reduced = self._all_reduce(vectors, merge, route, call)
        if reduced.not_finite:
            raise DivergenceError.of(reduced.not_finite, self.t + 1, "messages")
        (result,) = reduced.vectors
        if merge.lossy:
            self.traffic.matching.append(sign_matching(result, vectors))
        return result


def sign_matching(result: Vector, vectors: Sequence[Vector]) -> float:
    """Return the share of the coordinates in which the result has the sign of the vectors' sum."""
    same = 0
    for start in range(0, len(result), IN_CACHE):
        block = slice(start, start + IN_CACHE)
        total = vectors[0][block].clone()
        for vector in vectors[1:]:
            total += vector[block]
        same += int(torch.count_nonzero((result[block] >= 0) == (total >= 0)))
    return same / len(result)


def _mixed(topology: Topology, rows: Rows) -> Rows:
    """Return W times the rows, in the shapes of `rows`."""
    W = _matrix(topology, rows[0].dtype, rows[0].device)
    flats = [group.reshape(len(group), -1) for group in rows]
    if len(flats) == 1:  # one tensor needs no copy
        return [(W @ flats[0]).view(rows[0].shape)]
    sums = weighted_sums(W, flats, [len(flat) for flat in flats])
    return [flat.view(group.shape) for flat, group in zip(sums, rows, strict=True)]


@lru_cache(maxsize=8)
def _matrix(topology: Topology, dtype: torch.dtype, device: torch.device) -> Tensor:
    W = torch.tensor(topology.W, dtype=dtype, device=device)
    if (W != 0).double().mean() >= SPARSE:
        return W
    return W.to_sparse()
