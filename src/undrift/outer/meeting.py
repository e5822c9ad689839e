"""A meeting: the ranks that are there, and what they gather and add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from undrift.core import Cohort
from undrift.engine.participation import Participation
from undrift.engine.world import World

T = TypeVar("T")


class RoundPlan(NamedTuple):
    """Says who takes part in a round, before it begins."""

    t: int
    ranks: tuple[int, ...]
    population: tuple[float, ...]  # each rank's share of the whole
    counts: tuple[int, ...]  # local steps of each rank

    @classmethod
    def draw(
        cls,
        t: int,
        shares: Sequence[float],
        counts: Sequence[int],
        participation: Participation | None,
        seed: int,
    ) -> RoundPlan:
        """Return the plan of round t; a participation draws its ranks as in a simulation."""
        ranks = tuple(range(len(shares)))
        if participation is not None:
            drawn = participation.sample(t, np.array(shares), seed)
            ranks = tuple(map(int, drawn.ids))
        return cls(t, ranks, tuple(shares), tuple(counts))

    def weights(self, present: Sequence[int]) -> dict[int, float]:
        """Return the weights in the mean, by rank, of those who take part and are there."""
        ranks = [rank for rank in self.ranks if rank in present]
        mass = sum(self.population[rank] for rank in ranks)
        return {rank: self.population[rank] / mass for rank in ranks}

    @property
    def mean_count(self) -> float:
        """Return sum_i w_i K_i over those who take part."""
        weights = self.weights(self.ranks)
        return sum(weight * self.counts[rank] for rank, weight in weights.items())

    def cohort(self, present: Sequence[int]) -> Cohort:
        """Return who took part, as a server is told."""
        ranks = [rank for rank in self.ranks if rank in present]
        mass = 1.0 if len(ranks) == len(self.population) else sum(self.population[r] for r in ranks)
        return Cohort(t=self.t, population=len(self.population), size=len(ranks), mass=mass)


@dataclass(frozen=True)
class Meeting:
    """Connects the ranks that are there.

    If all are, the backend's collectives are used, and otherwise messages, which a rank that comes
    too late does not disturb.
    """

    world: World
    present: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Return whether all ranks are there."""
        return len(self.present) == self.world.size

    def gather(self, numbers: Sequence[int], label: str) -> dict[int, list[int]]:
        """Return the numbers of every rank that is there."""
        if self.complete:
            rows = self.world.gather(numbers).tolist()
        else:
            own = torch.tensor(list(numbers), dtype=torch.int64)
            rows = [each.tolist() for each in self.trees(own, label, self.present)]
        return dict(zip(self.present, rows, strict=True))

    def trees(self, values: T, label: str, senders: Sequence[int]) -> list[T]:
        """Return the trees of the senders, in the order of the ranks."""
        return self.world.trees(values, label, senders, self.present)
