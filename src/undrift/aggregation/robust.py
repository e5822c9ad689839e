"""Rules that combine uploads in place of the weighted mean, so that a few cannot decide the result.

A rule gets the uploads as rows (n, D) and returns (D,). All rows count alike: a weight would be one
more thing for an attacker to choose. `attackers` is how many bad uploads a rule is to bear, a
number, or a share of the cohort.

    median, trimmed mean    Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018
    geometric median        Pillutla et al., "Robust Aggregation for Federated Learning", 2022
    Krum, multi-Krum        Blanchard et al., "Machine Learning with Adversaries", NeurIPS 2017
    centered clipping       Karimireddy et al., "Learning from History", ICML 2021
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.check import is_finite, is_whole, require, require_choice, require_positive


@dataclass(frozen=True)
class Aggregation(ABC):
    """Is a rule that makes one vector of a cohort's."""

    @abstractmethod
    def __call__(self, rows: Tensor) -> Tensor:
        """Return (D,) the combination of rows (n, D)."""

    def least(self, drawn: int) -> int:
        """Return how many uploads the rule needs in a round for which so many were drawn."""
        return 1

    def check(self, size: int) -> None:
        """Raise `ValueError` if the rule cannot work with cohorts of this size."""
        needed = self.least(size)
        remedy = "expect fewer attackers or let more clients take part"
        require(size >= needed, str(self), f"cohorts of at least {needed} clients", size, remedy)


@dataclass(frozen=True)
class _Bearing(Aggregation):
    """Is a rule that is told how many attackers it is to bear."""

    attackers: int | float

    def __post_init__(self) -> None:
        share = isinstance(self.attackers, float) and 0 <= self.attackers < 0.5
        sound = share or (is_whole(self.attackers) and self.attackers >= 0)
        expected = "attackers as a number >= 0 or a share in [0, 0.5)"
        require(sound, type(self).__name__, expected, self.attackers)

    def count(self, size: int) -> int:
        """Return how many attackers are expected among so many uploads."""
        if isinstance(self.attackers, float):
            return math.ceil(self.attackers * size - 1e-9)
        return int(self.attackers)


@dataclass(frozen=True)
class Median(Aggregation):
    """Takes the median of each coordinate, the mean of the middle two for even numbers."""

    def __call__(self, rows: Tensor) -> Tensor:
        ordered = rows.sort(dim=0).values
        n = len(rows)
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


@dataclass(frozen=True)
class TrimmedMean(_Bearing):
    """Takes the mean of each coordinate without the smallest and the largest `attackers` values."""

    def least(self, drawn: int) -> int:
        return 2 * self.count(drawn) + 1

    def __call__(self, rows: Tensor) -> Tensor:
        f = self.count(len(rows))
        return rows.sort(dim=0).values[f : len(rows) - f].mean(0)


@dataclass(frozen=True)
class GeometricMedian(Aggregation):
    """Takes the point with the least sum of distances to all uploads, by Weiszfeld's iteration."""

    iterations: int = 100
    tolerance: float = 1e-7  # relative change at which the iteration ends

    def __post_init__(self) -> None:
        sound = is_whole(self.iterations) and self.iterations >= 1
        require(sound, "GeometricMedian", "iterations >= 1", self.iterations)
        require_positive("GeometricMedian", tolerance=self.tolerance)

    def __call__(self, rows: Tensor) -> Tensor:
        point = rows.mean(0)
        spread = torch.linalg.vector_norm(rows - point, dim=1).max()
        if spread == 0:
            return point
        for _ in range(self.iterations):
            distances = torch.linalg.vector_norm(rows - point, dim=1)
            # An upload at the point itself would have an infinite weight.
            shares = 1 / distances.clamp_min(1e-9 * float(spread))
            new = (shares / shares.sum()) @ rows
            moved = torch.linalg.vector_norm(new - point)
            point = new
            if moved <= self.tolerance * spread:
                break
        return point


def _krum_scores(rows: Tensor, f: int) -> Tensor:
    """Return for each upload the sum of squared distances to its n - f - 2 nearest others."""
    # Differences, as products would cancel where uploads are near each other.
    squares = torch.stack([(rows - row).square().sum(1) for row in rows])
    squares.fill_diagonal_(math.inf)
    return squares.sort(dim=1).values[:, : len(rows) - f - 2].sum(1)


@dataclass(frozen=True)
class Krum(_Bearing):
    """Takes the one upload that is nearest to its n - attackers - 2 nearest neighbours."""

    def least(self, drawn: int) -> int:
        return 2 * self.count(drawn) + 3

    def __call__(self, rows: Tensor) -> Tensor:
        return rows[_krum_scores(rows, self.count(len(rows))).argmin()].clone()


@dataclass(frozen=True)
class MultiKrum(_Bearing):
    """Takes the mean of the `chosen` uploads with the best scores; n - attackers if None."""

    chosen: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        sound = self.chosen is None or (is_whole(self.chosen) and self.chosen >= 1)
        require(sound, "MultiKrum", "chosen >= 1, a whole number", self.chosen)

    def least(self, drawn: int) -> int:
        f = self.count(drawn)
        return max(2 * f + 3, f + (self.chosen or 0))

    def __call__(self, rows: Tensor) -> Tensor:
        f = self.count(len(rows))
        best = _krum_scores(rows, f).argsort(stable=True)[: self.chosen or len(rows) - f]
        return rows[best.sort().values].mean(0)


@dataclass(frozen=True)
class CenteredClipping(Aggregation):
    """Clips what uploads differ from a centre by, and moves the centre by the mean of it.

    The first centre is the median of each coordinate, where the paper has the last round's result;
    `radius` is the median distance to the centre unless it is given.
    """

    radius: float | None = None
    iterations: int = 3

    def __post_init__(self) -> None:
        if self.radius is not None:
            require_positive("CenteredClipping", radius=self.radius)
        sound = is_whole(self.iterations) and self.iterations >= 1
        require(sound, "CenteredClipping", "iterations >= 1", self.iterations)

    def __call__(self, rows: Tensor) -> Tensor:
        centre = Median()(rows)
        for _ in range(self.iterations):
            away = rows - centre
            distances = torch.linalg.vector_norm(away, dim=1, keepdim=True)
            radius = self.radius
            if radius is None:
                radius = float(distances.quantile(0.5, interpolation="lower"))
            if radius == 0:
                return centre
            centre = centre + (away * (radius / distances).clamp(max=1.0)).nan_to_num(0.0).mean(0)
        return centre


RULES: dict[str, type[Aggregation]] = {
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "centered-clipping": CenteredClipping,
}
FORMS = (
    "mean", "median", "trimmed-mean:2", "geometric-median", "krum:2", "multi-krum:2:5",
    "centered-clipping:0.5",
)  # fmt: skip


def parse(rule: str | Aggregation | None) -> Aggregation | None:
    """Return the rule that a text such as "trimmed-mean:2" names, None for the weighted mean."""
    if rule is None or isinstance(rule, Aggregation):
        return rule
    require(isinstance(rule, str), "aggregation", f"one of {', '.join(FORMS)}", rule)
    name, *numbers = rule.split(":")
    if rule == "mean":
        return None
    require_choice("aggregation", "its rule", name, ("mean", *RULES))
    kind = RULES[name]
    bearing = issubclass(kind, _Bearing)
    most = 2 if kind is MultiKrum else int(bearing or kind is CenteredClipping)
    form = next(each for each in FORMS if each.partition(":")[0] == name)
    counted = int(bearing) <= len(numbers) <= most
    require(counted, "aggregation", f"the form {form}", rule)
    return kind(*(_number(each, form, rule) for each in numbers))


def _number(text: str, form: str, rule: str) -> int | float:
    try:
        value: int | float = float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        value = math.nan
    require(is_finite(value), "aggregation", f"numbers as in {form}", rule)
    return value
