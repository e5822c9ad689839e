"""Claims of documents become margins here: by how much each of their comparisons comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from undrift.papers.file import Paper
from undrift.papers.parts import Claim
from undrift.papers.quantity import UNKNOWN, Value, lead

Lookup = Callable[[str, str], Value | None]  # panel and method -> value
Values = Mapping[str, Value | None]


@dataclass(frozen=True)
class Margin:
    """Holds a lead, or a value of which a bound is claimed: the least and the most that it can be.

    The two differ where a value lies beyond a bound. The claim asks for `wanted` at least, for more
    than zero if nothing is asked for, or with `within` for no more than that in either direction.
    """

    least: float
    most: float
    wanted: float | None = None
    within: float | None = None
    sign: int = 1  # -1: the negative of a value that is claimed to be at most something

    @property
    def holds(self) -> bool | None:
        """Return whether it bears the claim out, or None where that is not known."""
        if self.within is not None:
            known = math.isfinite(self.least) and self.least == self.most
            return abs(self.least) <= self.within if known else None
        if self.wanted is None:
            return True if self.least > 0 else False if self.most <= 0 else None
        return True if self.least >= self.wanted else False if self.most < self.wanted else None


Margins = dict[tuple[str, str], Margin | None]  # by panel and words; None without values


def holds(claim: Claim, paper: Paper, lookup: Lookup) -> bool | None:
    """Return whether the claim is true of the values, or None where they do not tell.

    A claim about all other methods is about those that have values.
    """
    found = margins(claim, paper, lookup).values()
    results = [None if margin is None else margin.holds for margin in found]
    if any(result is False for result in results):
        return False
    return None if not results or any(result is None for result in results) else True


def margins(claim: Claim, paper: Paper, lookup: Lookup) -> Margins:
    """Return how each comparison of a claim comes out with some values."""
    return {
        (panel, words): margin
        for panel, values, rises in _groups(claim, paper, lookup)
        for words, margin in _compared(claim, values, rises)
    }


def _groups(claim: Claim, paper: Paper, lookup: Lookup) -> Iterator[tuple[str, Values, bool]]:
    """Yield the values that are compared with each other, and whether more of them is better.

    Their panel comes first, "" where panels are compared.
    """
    rises = claim.quantity.rises
    if claim.across is not None:
        names = paper.panel_names if everybody(claim) else claim.names
        values = {panel: lookup(panel, claim.across) for panel in names}
        yield "", _present(claim, values), rises
        return
    if claim.change is not None:
        before, after = claim.change
        names = _methods(claim, paper, before)
        lost = {name: _loss(lookup(before, name), lookup(after, name), rises) for name in names}
        yield "", _present(claim, lost), False
        return
    for panel in claim.panels or panels_of(claim, paper):
        values = {name: lookup(panel, name) for name in _methods(claim, paper, panel)}
        yield panel, _present(claim, values), rises


def everybody(claim: Claim) -> bool:
    """Return whether the claim is about one against all others."""
    return claim.ahead is not None and claim.of is None


def _present(claim: Claim, values: Values) -> Values:
    """Return the values that a claim compares: without those that nobody has of all others."""
    if not everybody(claim):
        return values
    return {n: value for n, value in values.items() if value is not None or n == claim.ahead}


def panels_of(claim: Claim, paper: Paper) -> list[str]:
    """Return the panels that have all methods which the claim names."""
    return [
        panel for panel in paper.panel_names if set(claim.names) <= set(methods_of(paper, panel))
    ]


def _methods(claim: Claim, paper: Paper, panel: str) -> list[str]:
    return methods_of(paper, panel) if everybody(claim) else claim.names


def methods_of(paper: Paper, panel: str) -> list[str]:
    """Return the methods of a panel."""
    entries = [entry for entry in paper.panels if entry.name == panel]
    if not entries:
        return paper.method_names
    names = [name for entry in entries for name in entry.methods or paper.method_names]
    return list(dict.fromkeys(names))


def _loss(before: Value | None, after: Value | None, rises: bool) -> Value | None:
    if before is None or after is None:
        return None
    if before.beyond or after.beyond:
        return UNKNOWN
    lost = before.number - after.number if rises else after.number - before.number
    return Value(lost)


def _compared(claim: Claim, values: Values, rises: bool) -> Iterator[tuple[str, Margin | None]]:
    """Yield the comparisons that a claim makes among some values, in words and as margins."""
    if claim.method is not None:
        yield from _bounds(claim, values.get(claim.method))
        return
    if claim.alike is not None:
        for a, b in combinations(claim.alike, 2):
            yield f"{a} and {b}", _apart(values.get(a), values.get(b), claim.within)
        return
    if claim.order is not None:
        pairs = list(zip(claim.order, claim.order[1:], strict=False))
    else:
        others = claim.of or [name for name in values if name != claim.ahead]
        pairs = [(str(claim.ahead), other) for other in others]
    for a, b in pairs:
        yield f"{a} against {b}", _ahead(claim, values.get(a), values.get(b), rises)


def _bounds(claim: Claim, value: Value | None) -> Iterator[tuple[str, Margin | None]]:
    """Yield a value's margins to the bounds of a claim; a run that diverged keeps none."""
    for bound, sign in ((claim.at_least, 1), (claim.at_most, -1)):
        if bound is None:
            continue
        words = f"{claim.method}, at {'least' if sign > 0 else 'most'} {bound:g}"
        if value is None:
            yield words, None
        elif math.isnan(value.number):
            yield words, Margin(-math.inf, -math.inf, sign * bound, sign=sign)
        else:
            # A value beyond a number is larger than it.
            low = math.nextafter(value.number, math.inf) if value.beyond else value.number
            high = math.inf if value.beyond else value.number
            ends = (low, high) if sign > 0 else (-high, -low)
            yield words, Margin(*ends, sign * bound, sign=sign)


def _apart(first: Value | None, second: Value | None, within: float | None) -> Margin | None:
    if first is None or second is None:
        return None
    gap = first.number - second.number
    known = not first.beyond and not second.beyond and math.isfinite(gap)
    ends = (gap, gap) if known else (-math.inf, math.inf)
    return Margin(*ends, within=within or 0.0)


def _ahead(claim: Claim, better: Value | None, worse: Value | None, rises: bool) -> Margin | None:
    if better is None or worse is None:
        return None
    wanted = claim.factor if claim.factor is not None else claim.by
    ends = None
    if UNKNOWN not in (better, worse):
        ends = lead(better, worse, rises=rises, factor=claim.factor is not None)
    return Margin(*(ends or (-math.inf, math.inf)), wanted)


def involved(claim: Claim, paper: Paper) -> list[str]:
    """Return the panels that a claim is about."""
    if claim.across is not None:
        return paper.panel_names if everybody(claim) else claim.names
    return claim.change or claim.panels or panels_of(claim, paper)


def named(claim: Claim, paper: Paper, panel: str) -> list[str]:
    """Return the methods of a panel that a claim compares."""
    return [claim.across] if claim.across is not None else _methods(claim, paper, panel)
