"""The processes of a run, as a round sees them: who has which clients, and their sums.

`World` is a run in one process, which has nobody to talk to. `processes.group.Processes` is one of
several processes, which talk over torch.distributed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from undrift.engine.participation import Ids
from undrift.errors import CheckpointError, DivergenceError

T = TypeVar("T")
AGREED = 64  # numbers that one `agree` gathers: how many clients, and the first of them


@dataclass(frozen=True)
class RankBlocks:
    """Divides the workers into one block of consecutive workers for each rank.

    The sizes of the blocks differ by at most one; the larger blocks come first.
    """

    workers: int
    ranks: int

    def of(self, rank: int) -> range:
        """Return the workers of a rank."""
        size, larger = divmod(self.workers, self.ranks)
        start = rank * size + min(rank, larger)
        return range(start, start + size + (rank < larger))

    def owner(self, worker: int) -> int:
        """Return the rank of a worker; a server, which is worker number M, belongs to rank 0."""
        size, larger = divmod(self.workers, self.ranks)
        if worker >= self.workers:
            return 0
        if worker < larger * (size + 1):
            return worker // (size + 1)
        return larger + (worker - larger * (size + 1)) // size


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

    @property
    def head(self) -> bool:
        """Return whether this process writes and prints for all."""
        return self.rank == 0

    def positions(self, ids: Ids) -> NDArray[np.int64]:
        """Return where in `ids` this process's clients are: client i belongs to rank i mod size."""
        return np.flatnonzero(ids % self.size == self.rank)

    def nodes(self, workers: int) -> range:
        """Return this process's nodes, which are consecutive, as neighbours often are."""
        return RankBlocks(workers, self.size).of(self.rank)

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

    def close(self) -> None:
        """Leave the other processes."""
