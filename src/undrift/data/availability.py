"""Which clients are there at all: they may join and leave between rounds.

An availability law on `Clients` decides who can be drawn into a cohort. A client is registered from
the first round in which it is there, and stays registered when it leaves: the departed stay in the
server's means of duals, and a newcomer enlarges the population and starts with a zero dual.
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
    def present(self, t: int, population: int) -> Ids:
        """Clients that are there in round t, ascending."""
        ...

    def check(self, population: int) -> None: ...


def _check_stages(who: str, active: int, every: int, population: int) -> None:
    require(1 <= active <= population, who, f"between 1 and {population} active clients", active)
    require(every >= 1, who, "every >= 1 round", every)


@dataclass(frozen=True)
class Resampled:
    """`active` clients, drawn anew every `every` rounds (FedACG: 250 of 500 every 100)."""

    active: int
    every: int
    seed: int = 0

    def present(self, t: int, population: int) -> Ids:
        rng = keyed.generator(self.seed, "availability", t // self.every)
        return np.sort(rng.choice(population, self.active, replace=False))

    def check(self, population: int) -> None:
        _check_stages("Resampled", self.active, self.every, population)


@dataclass(frozen=True)
class Replaced:
    """`active` clients; every `every` rounds each is replaced with probability p (FedACG: 0.5)."""

    active: int
    every: int
    p: float = 0.5
    seed: int = 0

    def present(self, t: int, population: int) -> Ids:
        for stage in range(0, t // self.every, 100):
            _replaced(self, stage, population)  # step by step: recursion has its limits
        return _replaced(self, t // self.every, population)

    def check(self, population: int) -> None:
        _check_stages("Replaced", self.active, self.every, population)
        require(0 <= self.p <= 1, "Replaced", "a probability p in [0, 1]", self.p)


@lru_cache(maxsize=4096)
def _replaced(law: Replaced, stage: int, population: int) -> Ids:
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
    """For each client the round it joins and the round it leaves, from 0; None for never."""

    spans: Sequence[tuple[int, int | None]]

    def present(self, t: int, population: int) -> Ids:
        there = [join <= t and (leave is None or t < leave) for join, leave in self.spans]
        return np.flatnonzero(there)

    def check(self, population: int) -> None:
        require(len(self.spans) == population, "Spans", f"{population} spans", len(self.spans))
        for i, (join, leave) in enumerate(self.spans):
            require(
                join >= 0 and (leave is None or leave > join),
                "Spans",
                f"a client to leave after it joins, both >= 0, for client {i}",
                (join, leave),
            )


class Register:
    """Who has ever been there; each round is looked up once."""

    def __init__(self, law: Availability, population: int) -> None:
        self._law, self._looked = law, 0
        self._first = np.full(population, np.iinfo(np.int64).max)  # round of the first appearance

    def present(self, t: int) -> Ids:
        return self._law.present(t, len(self._first))

    def up_to(self, t: int) -> NDArray[np.bool_]:
        for s in range(self._looked, t + 1):
            there = self.present(s)
            self._first[there] = np.minimum(self._first[there], s)
            self._looked = s + 1
        return self._first <= t
