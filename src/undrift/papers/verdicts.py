"""Verdicts on claims, from paired intervals over seeds.

Each comparison of a claim gives one margin a seed, the lead less what is claimed. A claim is shown
if all of its comparisons are, so plain intervals decide that (an intersection-union test). A single
comparison can contradict it, so Holm's correction goes over the comparisons for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from undrift.papers.claims import Margin, Margins
from undrift.papers.parts import Claim
from undrift.results.statistics import (
    FEWEST_SIGNS,
    LEVEL,
    Interval,
    Tested,
    count_text,
    holm,
    interval,
)

SHOWN, CONTRADICTED, NOT_SHOWN = "shown", "contradicted", "not shown"
INDICATED = "indicated"  # it came out, but so few seeds show nothing
NOT_RUN, NOT_COMPARABLE, OPEN = "not run", "not comparable", "cannot be told"
ELSEWHERE = " at another setting"  # than the document's, after shown, indicated, contradicted


@dataclass(frozen=True)
class Evidence:
    """Holds one comparison of a claim over the seeds."""

    panel: str  # "" where panels are compared
    words: str  # such as "FedACG against FedAvg"
    seeds: tuple[int, ...]
    margins: tuple[Margin, ...]
    tested: Tested  # of the margins less what is claimed: a positive one bears the claim out

    @property
    def found(self) -> Interval:
        """Return the lead, difference or value itself, at the level that decides the verdict.

        It is corrected where the comparison speaks against the claim.
        """
        values = [m.sign * m.least if m.least == m.most else math.nan for m in self.margins]
        decisive = self.tested.corrected if self.tested.side < 0 else self.tested.plain
        return interval(values, decisive.level)

    @property
    def word(self) -> str:
        """Return what this comparison says of the claim."""
        if self.tested.side > 0 and self.tested.shown_alone:
            return SHOWN
        if self.tested.side < 0 and self.tested.shown:
            return CONTRADICTED
        few = FEWEST_SIGNS if self.tested.signs else 2
        if len(self.seeds) < few and all(margin.holds for margin in self.margins):
            return INDICATED
        unknown = all(margin.holds is None for margin in self.margins)
        return OPEN if unknown else NOT_SHOWN

    def numbers(self, unit: str) -> str:
        """Return the mean with its interval and the seeds, or what the seeds say without one."""
        over = count_text(len(self.seeds), "seed")
        if self.tested.signs:
            holding = sum(margin.holds is True for margin in self.margins)
            why = "no interval, because a run diverged or missed its target"
            return f"comes out in {holding} of {over} ({why})"
        found = self.found
        mark = ", corrected" if found.level > LEVEL + 1e-9 else ""
        ends = "" if not found.text else f" ({found.text}{mark})"
        return f"{found.mean_text}{' ' * bool(unit)}{unit}{ends}, {over}"


def weigh(by_seed: Mapping[int, Margins]) -> list[Evidence]:
    """Return the evidence of each comparison from the margins of each seed."""
    places = dict.fromkeys(place for margins in by_seed.values() for place in margins)
    found: dict[tuple[str, str], dict[int, Margin]] = {}
    for place in places:
        each_seed = {seed: margins.get(place) for seed, margins in by_seed.items()}
        own = {seed: margin for seed, margin in each_seed.items() if margin is not None}
        if own:
            found[place] = own
    samples = {str(place): _excess([*own.values()]) for place, own in found.items()}
    tests = holm(samples)
    return [
        Evidence(*place, tuple(own), tuple(own.values()), tests[str(place)])
        for place, own in found.items()
    ]


def _excess(margins: Sequence[Margin]) -> list[float]:
    """Return each margin less what is claimed, infinite where it has only a sign, NaN without."""
    known = [m.least for m in margins if m.least == m.most and math.isfinite(m.least)]
    side = 1 if not known or fmean(known) >= 0 else -1
    return [_excess_of(margin, side) for margin in margins]


def _excess_of(margin: Margin, side: int) -> float:
    """Return the excess of one margin; with `within` that to the side on which the mean lies."""
    if math.isfinite(margin.least) and margin.least == margin.most:
        if margin.within is not None:
            return margin.within - side * margin.least
        return margin.least - (margin.wanted or 0.0)
    return {True: math.inf, False: -math.inf, None: math.nan}[margin.holds]


def word_of(evidence: Sequence[Evidence]) -> str:
    """Return the verdict on a claim, or on one panel of it, from its comparisons."""
    words = {each.word for each in evidence}
    if not words:
        return OPEN
    if CONTRADICTED in words:
        return CONTRADICTED
    for word in (NOT_SHOWN, OPEN, INDICATED):
        if word in words:
            return word
    return SHOWN


def at_setting(word: str, *, same: bool) -> str:
    """Return the verdict as it is told where data, network or rounds are not the document's."""
    told = word in (SHOWN, INDICATED, CONTRADICTED)
    return word if same or not told else word + ELSEWHERE


def deciding(evidence: Sequence[Evidence]) -> Evidence | None:
    """Return the comparison that decides the verdict: the least favourable one."""
    rank = {CONTRADICTED: 0, NOT_SHOWN: 1, OPEN: 2, INDICATED: 3, SHOWN: 4}

    def key(each: Evidence) -> tuple[int, float]:
        excess = each.tested.plain.mean
        return rank[each.word], math.inf if excess is None else excess

    return min(evidence, key=key, default=None)


def unit_of(claim: Claim) -> str:
    """Return the unit of what is compared in a claim."""
    if claim.factor is not None:
        return "times"
    unit = claim.quantity.unit
    if unit == "%":
        return "%" if claim.method is not None and claim.change is None else "points"
    return "times" if unit == "x" else unit


def reason(claim: Claim, evidence: Sequence[Evidence]) -> str:
    """Return the numbers that decide a verdict in one clause, "" without any."""
    each = deciding(evidence)
    if each is None:
        return ""
    place = f" ({each.panel})" if each.panel else ""
    count = len(evidence)
    many = "" if count == 1 else f"; the least favourable of {count} comparisons"
    return f"{each.words}{place}: {each.numbers(unit_of(claim))}{_asked(claim)}{many}"


def _asked(claim: Claim) -> str:
    if claim.within is not None:
        return f", within {claim.within:g} claimed"
    if claim.factor is not None:
        return f", {claim.factor:g} claimed"
    return "" if claim.by is None else f", {claim.by:g} claimed"
