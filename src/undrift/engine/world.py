"""The processes of a run, as a round sees them: who has which clients, and what they add up to.

`World` is a run in one process, for which all of this is nothing. `processes.Processes` is one of
several, over torch.distributed.
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
TOLD = 64  # numbers of one `agree`: how many clients, and the first of them


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
    """Processes that were started with different experiments; all of them raise it."""


class TogetherError(CheckpointError):
    """A checkpoint that the processes cannot go on from; all of them raise it."""


class World:
    """One process, which is everybody."""

    rank, size = 0, 1
    open = True  # whether the others can be asked

    @property
    def head(self) -> bool:
        """Whether this process writes and prints for all."""
        return self.rank == 0

    def positions(self, ids: Ids) -> NDArray[np.int64]:
        """Where in `ids` this process's clients are: client i belongs to rank i mod size."""
        return np.flatnonzero(ids % self.size == self.rank)

    def nodes(self, workers: int) -> range:
        """This process's nodes: consecutive ones, so that neighbours tend to be near."""
        return RankBlocks(workers, self.size).of(self.rank)

    def gather(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """(size, n) every process's numbers."""
        return np.array([numbers], dtype=np.int64)

    def sum(self, values: T) -> T:
        """The sum of the processes' trees, by one all-reduce a dtype."""
        return values

    def rows(self, values: T) -> T:
        """The processes' trees of rows one after another, by rank."""
        return values

    def texts(self, text: str) -> list[str]:
        """Every process's text."""
        return [text]

    def share_model(self, model: nn.Module) -> None:
        """Everybody gets the parameters and buffers of rank 0's model."""

    def agree(self, bad: Sequence[int], round: int, what: str) -> None:
        """Raise on all processes alike when one of them has clients that are not finite."""
        everywhere = self.gather([len(bad), *sorted(bad)[: TOLD - 1], *[0] * (TOLD - 1)][:TOLD])
        clients = [int(i) for told in everywhere for i in told[1 : 1 + min(told[0], TOLD - 1)]]
        if clients:
            raise DivergenceError.of(sorted(set(clients)), round, what, everywhere=True)

    def require_same(self, settings: dict[str, str]) -> None:
        """Refuse processes with different code or experiments, on all of them."""

    @contextmanager
    def failure_scope(self) -> Iterator[None]:
        """Around what may fail on one process alone: the others are told."""
        yield

    def close(self) -> None:
        """Leave the others."""
