"""The laws of participation, which draw the clients of a round and their weights.

`engine/plan.py` asks them and removes clients that fail.

Which combinations are unbiased for sum_i w_i D_i (docs/participation.md has the numbers):
* everybody, any weights: exact;
* a fixed size or Bernoulli with uniform weights: unbiased (Bernoulli: given that somebody came);
* with replacement by weight: unbiased for any weights;
* a fixed size or Bernoulli with size weights renormalised over the cohort: biased when sizes
  differ. Most libraries do this, and it is the default here because most papers run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import require, require_choice

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


class Sample(NamedTuple):
    """Holds distinct clients in ascending order and their weights in the mean, with sum one."""

    ids: Ids
    weights: Floats


@runtime_checkable
class Participation(Protocol):
    """Draws the cohort of each round."""

    def sample(self, t: int, population: Floats, seed: int, present: Ids | None = None) -> Sample:
        """Return round t's cohort among those present; `population` are everybody's weights."""
        ...

    def check(self, population: int, rounds: int) -> None:
        """Raise if the law cannot serve so many clients in so many rounds."""
        ...


def _present(population: Floats, present: Ids | None) -> Ids:
    """Return the clients that are present, which are all where `present` is None."""
    return np.arange(len(population)) if present is None else present


def _renormalised(ids: Ids, population: Floats, t: int) -> Sample:
    """Return these clients with their weights among themselves."""
    weights = population[ids]
    if weights.sum() <= 0:
        raise ValueError(
            f"A cohort needs a positive total weight, got 0 in round {t + 1} for clients "
            f"{ids.tolist()}; give one of them a weight."
        )
    return Sample(ids, weights / weights.sum())


@dataclass(frozen=True)
class FixedSize:
    """Draws `count` clients without replacement, or takes all if fewer are present."""

    count: int

    def sample(self, t: int, population: Floats, seed: int, present: Ids | None = None) -> Sample:
        """Return round t's cohort."""
        # Of all clients numbers are drawn, since a list of a million takes longer than the draw.
        candidates = len(population) if present is None else present
        if self.count < (len(population) if present is None else len(present)):
            rng = keyed.generator(seed, "cohort", t)
            ids = rng.choice(candidates, self.count, replace=False)
        else:
            ids = _present(population, present)
        return _renormalised(np.sort(ids), population, t)

    def check(self, population: int, rounds: int) -> None:
        """Raise if there are not so many clients."""
        require(
            1 <= self.count <= population,
            "participation",
            f"between 1 and {population} clients",
            self.count,
        )


@dataclass(frozen=True)
class Fraction:
    """Draws this share of the clients present, at least one, without replacement."""

    share: float

    def __post_init__(self) -> None:
        require(
            0 < self.share <= 1,
            "participation",
            "a fraction in (0, 1] or an integer count",
            self.share,
        )

    def sample(self, t: int, population: Floats, seed: int, present: Ids | None = None) -> Sample:
        """Return round t's cohort."""
        size = len(population) if present is None else len(present)
        return FixedSize(self.count(size)).sample(t, population, seed, present)

    def count(self, present: int) -> int:
        """Return how many of those who are present are drawn."""
        # The small term repairs products such as 0.29 * 100 = 28.999999999999996.
        return max(1, int(self.share * present + 1e-9))

    def check(self, population: int, rounds: int) -> None:
        """Accept any number of clients and rounds."""


@dataclass(frozen=True)
class Bernoulli:
    """Draws every client independently with probability p, again until a cohort is not empty.

    After many empty draws it takes one client, as the law does in the limit of small p.
    """

    p: float

    def __post_init__(self) -> None:
        require(0 < self.p <= 1, "Bernoulli", "a probability in (0, 1]", self.p)

    def sample(self, t: int, population: Floats, seed: int, present: Ids | None = None) -> Sample:
        """Return round t's cohort."""
        candidates = _present(population, present)
        rng = keyed.generator(seed, "cohort", t)
        for _ in range(1000):
            ids = candidates[rng.random(len(candidates)) < self.p]
            if len(ids):
                return _renormalised(ids, population, t)
        return _renormalised(rng.choice(candidates, 1), population, t)

    def check(self, population: int, rounds: int) -> None:
        """Accept any number of clients and rounds."""


@dataclass(frozen=True)
class WithReplacement:
    """Makes `count` draws by weight; a client drawn twice counts twice (the thesis's law).

    The law is unbiased for the model. Means of duals over all clients (SCAFFOLD's c) are exact only
    when clients are drawn without replacement; a method that keeps one is warned.
    """

    count: int

    def __post_init__(self) -> None:
        require(self.count >= 1, "WithReplacement", "at least one draw", self.count)

    def sample(self, t: int, population: Floats, seed: int, present: Ids | None = None) -> Sample:
        """Return round t's cohort."""
        candidates = _present(population, present)
        chances = _renormalised(candidates, population, t).weights
        draws = keyed.generator(seed, "cohort", t).choice(candidates, self.count, p=chances)
        ids, times = np.unique(draws, return_counts=True)
        return Sample(ids, times / self.count)

    def check(self, population: int, rounds: int) -> None:
        """Accept any number of clients and rounds."""


@dataclass(frozen=True)
class Cohorts:
    """Takes explicit cohorts: one list of client ids per round, or a function of the round."""

    of: Sequence[Sequence[int]] | Callable[[int], Sequence[int]]

    def sample(self, t: int, population: Floats, seed: int, present: Ids | None = None) -> Sample:
        """Return round t's cohort, or raise if a client is unknown, repeated or absent."""
        if not callable(self.of) and t >= len(self.of):
            raise ValueError(
                f"participation needs a cohort for round {t + 1}, got {len(self.of)} cohorts; list "
                "more of them, or pass a function of the round."
            )
        listed = self.of(t) if callable(self.of) else self.of[t]
        array = np.asarray(listed)
        ids = np.unique(array.astype(np.int64))
        if (
            not np.issubdtype(array.dtype, np.integer)
            or len(ids) == 0
            or len(ids) != len(listed)
            or ids[0] < 0
            or ids[-1] >= len(population)
        ):
            raise ValueError(
                f"participation needs a cohort of distinct clients in 0...{len(population) - 1}, "
                f"got {list(listed)} in round {t + 1}."
            )
        absent = np.setdiff1d(ids, _present(population, present))
        require(len(absent) == 0, "participation", f"clients present in round {t + 1}", absent)
        return _renormalised(ids, population, t)

    def check(self, population: int, rounds: int) -> None:
        """Raise if a listed cohort is missing or invalid."""
        if callable(self.of):
            return
        require(
            len(self.of) >= rounds,
            "participation",
            f"a cohort for each of {rounds} rounds",
            len(self.of),
            "list more cohorts or lower rounds",
        )
        everybody = np.full(population, 1 / population)
        for t in range(rounds):
            self.sample(t, everybody, 0)


AnyParticipation = (
    float | int | Participation | Sequence[Sequence[int]] | Callable[[int], Sequence[int]]
)


def largest_cohort(law: Participation, population: int) -> int:
    """Return how many distinct clients a round has at most."""
    if isinstance(law, Fraction):
        return law.count(population)
    if isinstance(law, FixedSize | WithReplacement):
        return min(law.count, population)
    if isinstance(law, Cohorts) and not callable(law.of):
        return max(map(len, law.of), default=population)
    return population


def parse(participation: AnyParticipation) -> Participation:
    """Return a law: a float is a fraction, an int a count, a list or function explicit cohorts."""
    if isinstance(participation, bool):
        raise ValueError("participation needs a fraction or a count, got a bool; write 1.0.")
    if isinstance(participation, int | np.integer):
        return FixedSize(int(participation))
    if isinstance(participation, float | np.floating):
        return Fraction(float(participation))
    if isinstance(participation, Participation):
        return participation
    if isinstance(participation, str) or not isinstance(participation, Sequence | Callable):
        raise ValueError(
            f"participation needs a fraction, a count, a law or cohorts, got {participation!r}."
        )
    return Cohorts(participation)


Weighting = Literal["size", "uniform"] | Sequence[float]


def population_weights(weighting: Weighting, sizes: NDArray[np.int64]) -> Floats:
    """Return w_i of every client, with sum one."""
    if isinstance(weighting, str):
        require_choice("simulate", "weighting", weighting, ("size", "uniform"))
        raw = sizes.astype(np.float64) if weighting == "size" else np.ones(len(sizes))
    else:
        raw = np.asarray(weighting, dtype=np.float64)
        if raw.shape != sizes.shape or not np.isfinite(raw).all() or (raw < 0).any():
            raise ValueError(
                f"weighting needs one finite weight >= 0 for each of {len(sizes)} clients, got "
                f"{weighting!r}."
            )
        require(raw.sum() > 0, "weighting", "a positive sum", float(raw.sum()))
    normalised: Floats = raw / raw.sum()
    return normalised
