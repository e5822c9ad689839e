"""Claims of documents are held against a set of values here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from undrift.papers.file import Paper
from undrift.papers.parts import Claim
from undrift.papers.quantity import Value, lead

Lookup = Callable[[str, str], Value | None]  # panel and method -> value
SHOWN, CONTRADICTED, UNDECIDED = "shown", "contradicted", "undecided"
NOT_RUN, NOT_COMPARABLE, OPEN = "not run", "not comparable", "cannot be told"
ELSEWHERE, NOT_ELSEWHERE = "shown at another setting", "not shown at another setting"


def holds(claim: Claim, paper: Paper, lookup: Lookup) -> bool | None:
    """Return whether the claim is true of the values, or None where they do not tell.

    A claim about all other methods is about those that have values.
    """
    results = [
        _holds_among(claim, values, rises) for values, rises in _groups(claim, paper, lookup)
    ]
    if not results:
        return None
    if any(result is False for result in results):
        return False
    return None if any(result is None for result in results) else True


def _groups(
    claim: Claim, paper: Paper, lookup: Lookup
) -> Iterator[tuple[Mapping[str, Value | None], bool]]:
    """Yield the values that are compared with each other, by name, and whether more is better."""
    rises = claim.quantity.rises
    if claim.across is not None:
        names = paper.panel_names if _everybody(claim) else claim.names
        values = {panel: lookup(panel, claim.across) for panel in names}
        yield _compared(claim, values), rises
        return
    if claim.change is not None:
        before, after = claim.change
        names = _methods(claim, paper, before)
        lost = {name: _loss(lookup(before, name), lookup(after, name), rises) for name in names}
        yield _compared(claim, lost), False
        return
    for panel in claim.panels or panels_of(claim, paper):
        values = {name: lookup(panel, name) for name in _methods(claim, paper, panel)}
        yield _compared(claim, values), rises


def _everybody(claim: Claim) -> bool:
    return claim.ahead is not None and claim.of is None


def _compared(claim: Claim, values: Mapping[str, Value | None]) -> Mapping[str, Value | None]:
    """Return the values that a claim compares: without those that nobody has of all others."""
    if not _everybody(claim):
        return values
    return {n: value for n, value in values.items() if value is not None or n == claim.ahead}


def panels_of(claim: Claim, paper: Paper) -> list[str]:
    """Return the panels that have all methods which the claim names."""
    return [
        panel for panel in paper.panel_names if set(claim.names) <= set(methods_of(paper, panel))
    ]


def _methods(claim: Claim, paper: Paper, panel: str) -> list[str]:
    return methods_of(paper, panel) if _everybody(claim) else claim.names


def methods_of(paper: Paper, panel: str) -> list[str]:
    """Return the methods of a panel."""
    entries = [entry for entry in paper.panels if entry.name == panel]
    if not entries:
        return paper.method_names
    names = [name for entry in entries for name in entry.methods or paper.method_names]
    return list(dict.fromkeys(names))


def _loss(before: Value | None, after: Value | None, rises: bool) -> Value | None:
    if before is None or after is None or before.beyond or after.beyond:
        return None
    lost = before.number - after.number if rises else after.number - before.number
    return Value(lost)


def _holds_among(claim: Claim, values: Mapping[str, Value | None], rises: bool) -> bool | None:
    if claim.method is not None:
        return _within_bounds(claim, values.get(claim.method))
    if claim.alike is not None:
        found = [values.get(name) for name in claim.alike]
        numbers = [value.number for value in found if value is not None and not value.beyond]
        if len(numbers) < len(found) or any(math.isnan(number) for number in numbers):
            return None
        return max(numbers) - min(numbers) <= (claim.within or 0.0)
    return _leads(claim, values, rises)


def _within_bounds(claim: Claim, value: Value | None) -> bool | None:
    if value is None:
        return None
    if math.isnan(value.number):
        return False
    if value.beyond:
        if claim.at_most is not None and value.number >= claim.at_most:
            return False
        enough = claim.at_least is not None and value.number >= claim.at_least
        return True if enough and claim.at_most is None else None
    above = claim.at_least is None or value.number >= claim.at_least
    below = claim.at_most is None or value.number <= claim.at_most
    return above and below


def _leads(claim: Claim, values: Mapping[str, Value | None], rises: bool) -> bool | None:
    if claim.order is not None:
        pairs = list(zip(claim.order, claim.order[1:], strict=False))
    else:
        others = claim.of or [name for name in values if name != claim.ahead]
        pairs = [(str(claim.ahead), other) for other in others]
    results = [_is_ahead(claim, values.get(a), values.get(b), rises) for a, b in pairs]
    if any(result is False for result in results):
        return False
    return None if not results or any(result is None for result in results) else True


def _is_ahead(claim: Claim, better: Value | None, worse: Value | None, rises: bool) -> bool | None:
    if better is None or worse is None:
        return None
    ends = lead(better, worse, rises=rises, factor=claim.factor is not None)
    if ends is None:
        return None
    least, most = ends
    wanted = claim.factor if claim.factor is not None else claim.by
    if wanted is None:  # any lead at all
        return True if least > 0 else False if most <= 0 else None
    return True if least >= wanted else False if most < wanted else None


def involved(claim: Claim, paper: Paper) -> list[str]:
    """Return the panels that a claim is about."""
    if claim.across is not None:
        return paper.panel_names if _everybody(claim) else claim.names
    return claim.change or claim.panels or panels_of(claim, paper)


def named(claim: Claim, paper: Paper, panel: str) -> list[str]:
    """Return the methods of a panel that a claim compares."""
    return [claim.across] if claim.across is not None else _methods(claim, paper, panel)


def verdict(
    results: Sequence[bool | None], *, ran: bool, same: bool, stand_in: bool, bound: bool
) -> str:
    """Return the verdict on a claim from what each seed says.

    `ran` says that what the claim names was run, `same` that data, network, rounds and tests are
    the document's, `stand_in` that other data were taken. A bound on a value says nothing about
    another network.
    """
    if not results or not ran:
        return NOT_RUN
    if bound and not same:
        return NOT_COMPARABLE
    if all(result is None for result in results):
        return OPEN
    if all(result is True for result in results):
        return ELSEWHERE if stand_in else SHOWN
    if all(result is False for result in results):
        return NOT_ELSEWHERE if stand_in else CONTRADICTED
    return UNDECIDED
