"""The claims of a paper, each with the verdict that our results give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from undrift.papers.claims import Lookup, Margins, everybody, holds, involved, margins, named
from undrift.papers.compare import chosen, relative_base, share, trials_of, value_of
from undrift.papers.estimate import hours
from undrift.papers.file import Paper, with_methods
from undrift.papers.parts import Claim
from undrift.papers.quantity import UNKNOWN, Quantity, Value
from undrift.papers.scales import PanelRun, plan
from undrift.papers.store import StoredPaper, canonical
from undrift.papers.verdicts import (
    NOT_COMPARABLE,
    NOT_RUN,
    Evidence,
    at_setting,
    reason,
    weigh,
    word_of,
)


@dataclass(frozen=True)
class Judged:
    """Holds a claim, whether the document's own numbers bear it out, and whether ours do."""

    claim: Claim
    published: bool | None
    verdict: str
    evidence: Sequence[Evidence] = ()
    panels: dict[str, str] = field(default_factory=dict)  # verdicts by panel, if there are several
    without: Sequence[str] = ()  # cells of the claim that were not run
    hours: float | None = None  # that it would take to run, if it was not

    @property
    def text(self) -> str:
        """Return the verdict in words, with the hours or cells that are missing."""
        if self.verdict == NOT_RUN:
            return NOT_RUN if self.hours is None else f"{NOT_RUN} (about {hours_text(self.hours)})"
        without = f", without {', '.join(self.without)}" if self.without else ""
        return self.verdict + without

    @property
    def reason(self) -> str:
        """Return the numbers that decide the verdict in one clause."""
        return reason(self.claim, self.evidence)

    @property
    def by_panel(self) -> str:
        """Return the verdicts by panel in words, "" if there is one panel or one verdict."""
        if len(set(self.panels.values())) < 2:
            return ""
        return "; ".join(f"{panel}: {word}" for panel, word in self.panels.items())


def hours_text(hours: float) -> str:
    """Return hours in words."""
    if hours < 1.45:
        return f"{max(1, round(60 * hours))} min"
    return f"{hours:.0f} h" if hours >= 9.5 else f"{hours:.2g} h"


def judge(paper: Paper, stored: StoredPaper | None) -> list[Judged]:
    """Return every claim with its verdict."""
    return [_judge(paper, claim, stored) for claim in paper.claims]


def published_lookup(paper: Paper, quantity: Quantity) -> Lookup:
    """Return the document's values of a quantity by panel and method."""
    cells = {
        (cell.panel, cell.method): cell.value
        for cell in paper.cells
        if canonical(cell.quantity, paper, cell.panel) == canonical(quantity, paper, cell.panel)
    }
    return lambda panel, method: cells.get((panel, method))


def _judge(paper: Paper, claim: Claim, stored: StoredPaper | None) -> Judged:
    published = holds(claim, paper, published_lookup(paper, claim.quantity))
    cells = [(p, method) for p in involved(claim, paper) for method in named(claim, paper, p)]
    run = set() if stored is None else {(trial.panel, trial.method) for trial in stored.trials}
    missing = [cell for cell in cells if cell not in run]
    lacking = _lacking(claim, missing)
    about = [panel for panel in involved(claim, paper) if panel not in lacking]
    if stored is None or not about or (lacking and (claim.across or claim.change)):
        return Judged(claim, published, NOT_RUN, hours=_hours(paper, claim, missing))
    same = not lacking and all(panel.same for panel in stored.panels if panel.panel in about)
    without = [f"{method} ({panel})" for panel, method in missing if panel not in lacking]
    without += list(lacking)
    evidence = weigh(_margins_by_seed(paper, claim, stored, about))
    bound = claim.method is not None and claim.relative_to is None
    if stored.scale == "glance" or (bound and not same):
        return Judged(claim, published, NOT_COMPARABLE, evidence, without=without)
    panels = {panel: _panel_word(panel, evidence, same=same) for panel in about}
    verdict = at_setting(word_of(evidence), same=same)
    return Judged(claim, published, verdict, evidence, panels, without)


def _lacking(claim: Claim, missing: Sequence[tuple[str, str]]) -> dict[str, None]:
    """Return the panels without a method that the claim names, which it cannot be judged on."""
    needed = {claim.across or name for name in claim.names}
    if claim.across is not None and everybody(claim):
        return {panel: None for panel, _ in missing if panel == claim.ahead}
    return {panel: None for panel, method in missing if method in needed}


def _panel_word(panel: str, evidence: Sequence[Evidence], *, same: bool) -> str:
    return at_setting(word_of([e for e in evidence if e.panel in ("", panel)]), same=same)


def _margins_by_seed(
    paper: Paper, claim: Claim, stored: StoredPaper, about: Sequence[str]
) -> dict[int, Margins]:
    """Return the margins of each seed, those of panels that can be judged."""
    seeds = sorted({trial.seed for trial in stored.trials if trial.panel in about})
    found = {s: margins(claim, paper, _seed_lookup(paper, claim, stored, s)) for s in seeds}
    kept = ("", *about)
    return {
        seed: {place: margin for place, margin in each.items() if place[0] in kept}
        for seed, each in found.items()
    }


def _seed_lookup(paper: Paper, claim: Claim, stored: StoredPaper, seed: int) -> Lookup:
    """Return the values of one seed; None where it was not run, unknown where its base has none."""

    def lookup(panel: str, method: str) -> Value | None:
        if claim.metric == "share":
            return share(stored, panel, method, claim.quantity, seed)
        trials = trials_of(stored, panel, method)
        mine = [trial for trial in chosen(trials) if trial.seed == seed] if trials else []
        if not mine:
            return None
        quantity = canonical(claim.quantity, paper, panel)
        value = value_of(mine[0], quantity, relative_base(quantity, stored, panel))
        relative = quantity.relative_to is not None and mine[0].value(quantity) is not None
        return UNKNOWN if value is None and relative else value

    return lookup


def _hours(paper: Paper, claim: Claim, missing: Sequence[tuple[str, str]]) -> float | None:
    """Return the hours on two cores for which one seed of the claim could be run, roughly.

    They are those of the panels that the small scale has, and what it says of cells that it leaves
    out where there are no others or where the claim compares panels.
    """
    if paper.experiment is None:
        return None
    runs = plan(paper, "full" if paper.small is None else "small", at_hand=lambda data: True)
    possible = {cell for run in runs for cell in _cells(run)}
    gone = _lacking(claim, [cell for cell in missing if cell not in possible])
    wanted = {cell for cell in missing if cell[0] not in gone}
    runnable = sum(
        hours(with_methods(run.experiment, own))
        for run in runs
        if (own := [m for p, m in wanted if p == run.panel and (p, m) in _cells(run)])
    )
    if runnable and not (claim.across or claim.change):
        return runnable
    left_out = paper.small.left_out if paper.small is not None else []
    return runnable + sum(
        each.hours
        for each in left_out
        if not each.grid
        and any(
            panel in gone and each.panel in (None, panel) and method in (each.methods or [method])
            for panel, method in missing
        )
    )


def _cells(run: PanelRun) -> set[tuple[str, str]]:
    return {(run.panel, method.title) for method in run.experiment.methods}
