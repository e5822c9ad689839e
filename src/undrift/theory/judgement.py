"""Conditions, bounds and orders of a theorem, each with the sentence that says what it means.

A condition holds, is violated, or cannot be judged. The last happens where L was measured: power
iteration finds a lower bound of L, which can refute a condition and never certify it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from undrift.check import require, require_nonnegative, require_positive

ROUNDING = 1e-12  # relative excess over a limit that counts as none


@dataclass(frozen=True)
class Constants:
    """Holds what theorems assume of a problem; `measured` marks constants that are estimates."""

    L: float  # every grad F_i is L-Lipschitz
    sigma: float = 0.0  # E ||g_i - grad F_i||^2 <= sigma^2 for a minibatch gradient g_i
    zeta: float = 0.0  # mean_i ||grad F_i - grad F||^2 <= zeta^2
    gap: float = math.nan  # F at the first model less the minimum of F
    B: float = 1.0  # mean_i ||grad F_i||^2 <= zeta^2 + B^2 ||grad F||^2 (FedACG)
    measured: bool = False  # then L is a lower bound, and the others are estimates

    def __post_init__(self) -> None:
        require_positive("Constants", L=self.L)
        require_nonnegative("Constants", sigma=self.sigma, zeta=self.zeta)
        require(
            math.isnan(self.gap) or (math.isfinite(self.gap) and self.gap >= 0),
            "Constants",
            "gap >= 0, F(x0) - F*, a finite number",
            self.gap,
        )
        require(self.B >= 1, "Constants", "B >= 1", self.B)

    def known_gap(self, who: str) -> float:
        """Return the gap, or refuse where it was left out."""
        remedy = "give Constants(gap=...)"
        require(not math.isnan(self.gap), who, "the gap F(x0) - F*", "none", remedy)
        return self.gap


class Verdict(StrEnum):
    """Says what is known of a condition."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNKNOWN = "cannot be judged"


@dataclass(frozen=True)
class Condition:
    """Holds one condition of a theorem, with the two numbers that it compares."""

    name: str  # as a formula, "lr <= 1 / (3 L)"
    value: float
    limit: float
    verdict: Verdict
    source: str

    @property
    def sentence(self) -> str:
        """Return the condition, its verdict and its numbers as a sentence."""
        numbers = f"{self.value:.3g} against {self.limit:.3g}"
        if self.verdict is Verdict.UNKNOWN:
            numbers += " with the measured L, and the true L may be larger"
        return f"{self.name} {self.verdict}: {numbers} ({self.source})."


def at_most(
    name: str, value: float, limit: float, source: str, constants: Constants | None = None
) -> Condition:
    """Return the condition value <= limit, where the limit falls as L grows.

    Without constants nothing in it was measured, and it holds or is violated for certain.
    """
    if not value <= limit + ROUNDING * abs(limit):
        verdict = Verdict.VIOLATED
    elif constants is not None and constants.measured:
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.HOLDS
    return Condition(name, value, limit, verdict, source)


def violated(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions that are violated."""
    return tuple(each for each in conditions if each.verdict is Verdict.VIOLATED)


@dataclass(frozen=True)
class Bound:
    """Holds an upper bound with the constants of a proof, term by term.

    A bound whose conditions do not hold is void: its value is infinite, and `void` is the reason.
    """

    of: str  # what is bounded
    terms: Mapping[str, float]
    source: str
    conditions: tuple[Condition, ...] = ()
    void: str = ""
    estimated: bool = False  # whether measured constants went into it

    @property
    def value(self) -> float:
        """Return the sum of the terms, infinite if the bound is void."""
        return math.inf if self.void else math.fsum(self.terms.values())

    @property
    def sentence(self) -> str:
        """Return what the bound says."""
        if self.void:
            return f"{self.source} bounds nothing here: {self.void}"
        word = "is estimated to be" if self.estimated else "is"
        parts = " + ".join(f"{value:.3g} ({name})" for name, value in self.terms.items())
        return f"{self.of} {word} at most {self.value:.3g} = {parts} ({self.source})."


def bound(
    of: str,
    terms: Mapping[str, float],
    source: str,
    conditions: tuple[Condition, ...],
    constants: Constants,
) -> Bound:
    """Return a bound, void with the reason where a condition is violated."""
    reasons = [each.sentence for each in violated(conditions)]
    if not reasons and not all(math.isfinite(value) for value in terms.values()):
        reasons = [f"the constants make it infinite, L = {constants.L:g}."]
    return Bound(of, terms, source, conditions, " ".join(reasons), constants.measured)


@dataclass(frozen=True)
class Order:
    """Holds the terms of a rate without their constants: it bounds no number and has no value."""

    of: str
    terms: Mapping[str, float]
    source: str
    conditions: tuple[Condition, ...] = ()

    @property
    def leading(self) -> str:
        """Return the name of the largest term."""
        return max(self.terms, key=lambda name: self.terms[name])

    @property
    def sentence(self) -> str:
        """Return the order, which says how quantities grow and not how large they are."""
        parts = " + ".join(f"O({value:.3g}: {name})" for name, value in self.terms.items())
        return f"{self.of} is of order {parts}, by constants that {self.source} does not give."


@dataclass(frozen=True)
class Advice:
    """Holds the hyper-parameters that a theorem recommends."""

    parameters: Mapping[str, float]
    sentence: str
    conditions: tuple[Condition, ...] = field(default=())
