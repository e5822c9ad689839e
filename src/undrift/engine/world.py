"""The processes of a run, as a round sees them: who has which clients, and their sums.

`World` is a run in one process, which has nobody to talk to. `processes.group.Processes` is one of
several processes, which talk over torch.distributed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from undrift.data.clients import Clients
from undrift.engine.participation import Ids
from undrift.errors import CheckpointError, DivergenceError

T = TypeVar("T")
AGREED = 64  # numbers that one `agree` gathers: how many clients, and the first of them


@dataclass(frozen=True)
class RankBlocks:
    """Divides the workers into one block of consecutive workers for each rank.

    Unless they are given, the sizes of the blocks differ by at most one; the larger blocks come
    first.
    """

    workers: int
    ranks: int
    sizes: tuple[int, ...] | None = None

    @cached_property
    def _bounds(self) -> list[int]:
        size, larger = divmod(self.workers, self.ranks)
        sizes = self.sizes or [size + (rank < larger) for rank in range(self.ranks)]
        return [0, *accumulate(sizes)]

    def of(self, rank: int) -> range:
        """Return the workers of a rank."""
        return range(self._bounds[rank], self._bounds[rank + 1])

    def owner(self, worker: int) -> int:
        """Return the rank of a worker; a server, which is worker number M, belongs to rank 0."""
        return 0 if worker >= self.workers else bisect_right(self._bounds, worker) - 1


@dataclass(frozen=True, eq=False)
class Placement:
    """Says which rank has which clients, or which nodes.

    Without `ranks` every process can read all samples: clients are dealt in turns, and nodes in
    blocks, since neighbours often are consecutive.
    """

    rank: int
    size: int
    ranks: Ids | None = None  # of each client, where every rank has data of its own

    @classmethod
    def of(cls, clients: Clients, world: World) -> Placement:
        """Return who has whose data, or else how processes share the work."""
        census = clients.rank_census
        if census is None:
            return cls(world.rank, world.size)
        return cls(census.rank, census.size, census.ranks)

    def owners(self, ids: Ids) -> NDArray[np.int64]:
        """Return the rank of each of these clients."""
        return ids % self.size if self.ranks is None else self.ranks[ids]

    def positions(self, ids: Ids) -> NDArray[np.int64]:
        """Return where in `ids` this process's clients are."""
        return np.flatnonzero(self.owners(ids) == self.rank)

    def blocks(self, workers: int) -> RankBlocks:
        """Return the nodes of each rank."""
        if self.ranks is None:
            return RankBlocks(workers, self.size)
        sizes = np.bincount(self.ranks, minlength=self.size)
        return RankBlocks(workers, self.size, tuple(sizes.tolist()))

    def nodes(self, workers: int) -> range:
        """Return this process's nodes, which are consecutive."""
        return self.blocks(workers).of(self.rank)

    def nodes_among(self, ids: Ids) -> Ids:
        """Return where in `ids`, which are all nodes or those of a trial, this process's are."""
        own = self.nodes(len(ids)) if self.ranks is None else self.positions(ids)
        return np.asarray(own, dtype=np.int64)


class DifferentError(ValueError):
    """Is raised by all processes if they were started with different experiments."""


class TogetherError(CheckpointError):
    """Is raised by all processes if they cannot go on from a checkpoint."""


class World:
    """Stands for the processes of a run; here there is one, which has all clients."""

    rank, size = 0, 1
    open = True  # whether the other processes still answer
    sent = 0  # bytes that this process has handed to the backend for others

    def begin(self) -> None:
        """Let the run's timeout count from here on."""

    def limit(self, timeout: float) -> None:
        """Let the next run wait so many seconds for others."""

    @property
    def head(self) -> bool:
        """Return whether this process writes and prints for all."""
        return self.rank == 0

    def gather(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return (size, n) the numbers of every process."""
        return np.array([numbers], dtype=np.int64)

    def sum(self, values: T) -> T:
        """Return the sum of the processes' trees, by one all-reduce for each dtype."""
        return values

    def rows(self, values: T) -> T:
        """Return the rows of all processes' trees, in the order of the ranks."""
        return values

    def trees(
        self,
        values: T,
        label: str,
        senders: Sequence[int] | None = None,
        receivers: Sequence[int] | None = None,
    ) -> list[T]:
        """Return the tree of every sender as it is, by rank; all have the same shapes.

        Without `senders` and `receivers` all processes are both; a sender has its own tree, too.
        """
        return [values] if senders is None or 0 in senders else []

    def blobs(self, data: Tensor, label: str) -> list[Tensor]:
        """Return the bytes of every process as they are, by rank; their lengths may differ."""
        return [data]

    def texts(self, text: str) -> list[str]:
        """Return the text of every process."""
        return [text]

    def share_model(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of rank 0's model."""

    def agree(self, bad: Sequence[int], round: int, what: str) -> None:
        """Raise on all processes alike when one of them has clients that are not finite."""
        numbers = [len(bad), *sorted(bad)[: AGREED - 1], *[0] * (AGREED - 1)][:AGREED]
        rows = self.gather(numbers)
        clients = [int(i) for row in rows for i in row[1 : 1 + min(row[0], AGREED - 1)]]
        if clients:
            raise DivergenceError.of(sorted(set(clients)), round, what, everywhere=True)

    def require_same(self, settings: dict[str, str]) -> None:
        """Raise on all processes if their code or experiments differ."""

    @contextmanager
    def failure_scope(self) -> Iterator[None]:
        """Tell the other processes if the body fails on this one alone."""
        yield

    @contextmanager
    def absence_scope(self) -> Iterator[None]:
        """Tell others that wait in vain what has failed here, until a body succeeds again."""
        yield

    def explain_end(self, reason: str) -> None:
        """Tell others that wait in vain when this program has ended, unless something failed."""

    def close(self) -> None:
        """Leave the other processes."""
