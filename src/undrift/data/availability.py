"""Availability laws: clients may join and leave between rounds.

An availability law of `Clients` decides which clients can be drawn into a cohort. A client is
registered from the first round in which it is present, and stays registered when it leaves. So the
server's means of duals keep the clients that left, and a new client enlarges the population and
starts with a zero dual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import require

Ids = NDArray[np.int64]


class Availability(Protocol):
    """Decides which clients are present in each round."""

    def present(self, t: int, population: int) -> Ids:
        """Return the clients that are present in round t, ascending."""
        ...

    def check(self, population: int) -> None:
        """Raise `ValueError` unless the law fits this many clients."""
        ...


def _check_stages(who: str, active: int, every: int, population: int) -> None:
    require(1 <= active <= population, who, f"between 1 and {population} active clients", active)
    require(every >= 1, who, "every >= 1 round", every)


@dataclass(frozen=True)
class Resampled:
    """Draws `active` clients anew every `every` rounds (FedACG: 250 of 500 every 100)."""

    active: int
    every: int
    seed: int = 0

    def present(self, t: int, population: int) -> Ids:
        """Return the clients that are present in round t, ascending."""
        rng = keyed.generator(self.seed, "availability", t // self.every)
        return np.sort(rng.choice(population, self.active, replace=False))

    def check(self, population: int) -> None:
        """Raise `ValueError` unless the law fits this many clients."""
        _check_stages("Resampled", self.active, self.every, population)


@dataclass(frozen=True)
class Replaced:
    """Replaces each of `active` clients with probability p every `every` rounds (FedACG: 0.5)."""

    active: int
    every: int
    p: float = 0.5
    seed: int = 0

    def present(self, t: int, population: int) -> Ids:
        """Return the clients that are present in round t, ascending."""
        for stage in range(0, t // self.every, 100):
            _replaced(self, stage, population)  # fills the cache, so that recursion stays shallow
        return _replaced(self, t // self.every, population)

    def check(self, population: int) -> None:
        """Raise `ValueError` unless the law fits this many clients."""
        _check_stages("Replaced", self.active, self.every, population)
        require(0 <= self.p <= 1, "Replaced", "a probability p in [0, 1]", self.p)


@lru_cache(maxsize=4096)
def _replaced(law: Replaced, stage: int, population: int) -> Ids:
    """Return the clients of a stage, which follow from those of the stage before."""
    rng = keyed.generator(law.seed, "availability", stage)
    if stage == 0:
        return np.sort(rng.choice(population, law.active, replace=False))
    before = _replaced(law, stage - 1, population)
    leaving = before[rng.random(law.active) < law.p]
    outside = np.setdiff1d(np.arange(population), before)
    leaving = rng.permutation(leaving)[: len(outside)]
    coming = rng.choice(outside, len(leaving), replace=False)
    return np.sort(np.concatenate([np.setdiff1d(before, leaving), coming]))


@dataclass(frozen=True)
class Spans:
    """Lists the round in which each client joins and leaves, from 0; None stands for never."""

    spans: Sequence[tuple[int, int | None]]

    def present(self, t: int, population: int) -> Ids:
        """Return the clients that are present in round t, ascending."""
        present = [join <= t and (leave is None or t < leave) for join, leave in self.spans]
        return np.flatnonzero(present)

    def check(self, population: int) -> None:
        """Raise `ValueError` unless the law fits this many clients."""
        require(len(self.spans) == population, "Spans", f"{population} spans", len(self.spans))
        for i, (join, leave) in enumerate(self.spans):
            require(
                join >= 0 and (leave is None or leave > join),
                "Spans",
                f"a client to leave after it joins, both >= 0, for client {i}",
                (join, leave),
            )


class Register:
    """Knows which clients have ever been present; each round is looked up once."""

    def __init__(self, law: Availability, population: int) -> None:
        self._law, self._looked = law, 0
        self._first = np.full(population, np.iinfo(np.int64).max)  # round of the first appearance

    def present(self, t: int) -> Ids:
        """Return the clients that are present in round t, ascending."""
        return self._law.present(t, len(self._first))

    def up_to(self, t: int) -> NDArray[np.bool_]:
        """Return for each client whether it has been present by round t."""
        for s in range(self._looked, t + 1):
            present = self.present(s)
            self._first[present] = np.minimum(self._first[present], s)
            self._looked = s + 1
        return self._first <= t
