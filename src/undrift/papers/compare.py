"""A document's numbers and claims beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from undrift.papers.claims import involved, named
from undrift.papers.file import Paper
from undrift.papers.parts import PublishedCell
from undrift.papers.quantity import UNKNOWN, Quantity, Value
from undrift.papers.scales import PanelRun, plan
from undrift.papers.store import StoredPaper, StoredTrial, canonical
from undrift.results.metrics import spread
from undrift.results.statistics import Interval, interval


@dataclass(frozen=True)
class Ours:
    """Holds our value of a cell: a mean over seeds, or the bound that it lies beyond.

    Seeds that diverged are counted and not in the mean, unless all of them did.
    """

    value: Value
    interval: Interval  # of the mean, without ends where it has no size or seeds diverged
    deviation: float | None
    seeds: int
    cell: Mapping[str, Any]  # of the grid, empty without one
    diverged: int = 0  # of the seeds


@dataclass(frozen=True)
class ComparedCell:
    """Holds one cell of the document and ours."""

    cell: PublishedCell
    ours: Ours | None  # chosen on validation data where there is a grid
    as_published: Ours | None = None  # chosen on test data, as documents do; None without a grid
    located: Quantity | None = None  # what was read off our runs, if it is another

    @property
    def difference(self) -> float | None:
        """Return ours minus the document's, or None if there is no such number.

        At another round or to another target a difference would say nothing, and without the seeds
        that diverged it would flatter ours.
        """
        if self.ours is None or self.ours.value.beyond or self.cell.value.beyond:
            return None
        if self.ours.diverged:
            return None
        if self.located is not None:
            return None
        gap = self.ours.value.number - self.cell.value.number
        return None if math.isnan(gap) else gap


def rows(paper: Paper, stored: StoredPaper | None) -> list[ComparedCell]:
    """Return the document's numbers, each beside ours."""
    return _rows(paper, paper.cells, stored)


def claimed_rows(paper: Paper, stored: StoredPaper | None) -> list[ComparedCell]:
    """Return our values of what the document makes claims about without printing numbers.

    Panels of other readings, about which nothing is printed or claimed, have the values, too.
    """
    if stored is None:
        return []
    places = [
        (claim, panel, method)
        for claim in paper.claims
        for panel in involved(claim, paper)
        for method in named(claim, paper, panel)
    ]
    known = {cell.panel for cell in paper.cells} | {panel for _, panel, _ in places}
    parts = tuple(f"{panel} at " for panel in known)  # of a share that is searched for
    others = {(t.panel, t.method) for t in stored.trials if t.panel not in known}
    places += [
        (claim, panel, method)
        for panel, method in sorted(others)
        for claim in paper.claims
        if not panel.startswith(parts)
    ]
    cells = [
        PublishedCell(claim.quantity, panel, method, UNKNOWN, None, False, claim.where)
        for claim, panel, method in places
    ]
    by_place = {_place(paper, cell): cell for cell in cells}
    for cell in paper.cells:
        by_place.pop(_place(paper, cell), None)
    return [r for r in _rows(paper, [*by_place.values()], stored) if r.ours is not None]


def _place(paper: Paper, cell: PublishedCell) -> tuple[str, str, Quantity]:
    return cell.panel, cell.method, canonical(cell.quantity, paper, cell.panel)


def _rows(
    paper: Paper, cells: Sequence[PublishedCell], stored: StoredPaper | None
) -> list[ComparedCell]:
    found = [_row(paper, cell, stored) for cell in cells]
    if stored is None:
        return found
    runs = {run.panel: run for run in plan(paper, stored.scale, at_hand=lambda data: True)}
    return [replace(row, located=_located(row.cell, runs.get(row.cell.panel))) for row in found]


def _located(cell: PublishedCell, run: PanelRun | None) -> Quantity | None:
    """Return where a cell is read off our runs, or None if it is where the document reads it."""
    if run is None or cell.quantity.metric == "share":
        return None
    located = run.locate(cell.quantity)
    return None if located == cell.quantity else located


def _row(paper: Paper, cell: PublishedCell, stored: StoredPaper | None) -> ComparedCell:
    if stored is not None and cell.quantity.metric == "share":
        return ComparedCell(cell, _mean_share(stored, cell))
    trials = [] if stored is None else trials_of(stored, cell.panel, cell.method)
    if not trials:
        return ComparedCell(cell, None)
    quantity = canonical(cell.quantity, paper, cell.panel)
    base = relative_base(quantity, stored, cell.panel)
    ours = _mean(chosen(trials), quantity, base)
    if len(_by_cell(trials)) == 1:
        return ComparedCell(cell, ours)
    return ComparedCell(cell, ours, _mean(_best_on_test(trials, quantity), quantity, base))


def trials_of(stored: StoredPaper, panel: str, method: str) -> list[StoredTrial]:
    """Return the trials of one method in one panel."""
    return [t for t in stored.trials if t.panel == panel and t.method == method]


def _by_cell(trials: Sequence[StoredTrial]) -> list[list[StoredTrial]]:
    groups: dict[str, list[StoredTrial]] = {}
    for trial in trials:
        groups.setdefault(str(sorted(trial.cell.items())), []).append(trial)
    return list(groups.values())


def chosen(trials: Sequence[StoredTrial]) -> list[StoredTrial]:
    """Return the seeds of the cell with the best mean accuracy on validation data."""

    def mean(seeds: Sequence[StoredTrial]) -> float:
        finished = [t.validation if t.status == "finished" else None for t in seeds]
        return sum(value or 0.0 for value in finished) / len(seeds)

    return max(_by_cell(trials), key=mean)


def _best_on_test(trials: Sequence[StoredTrial], quantity: Quantity) -> list[StoredTrial]:
    """Return the seeds of the cell whose value of the quantity is the best on test data."""
    sign = 1 if quantity.rises else -1

    def mean(seeds: Sequence[StoredTrial]) -> float:
        values = [trial.value(quantity) for trial in seeds]
        numbers = [_rank(value, sign) for value in values]
        return sum(numbers) / len(numbers)

    return max(_by_cell(trials), key=mean)


def _rank(value: Value | None, sign: int) -> float:
    if value is None or math.isnan(value.number):
        return -math.inf
    return sign * value.number - (1e-9 if value.beyond else 0.0)


def relative_base(
    quantity: Quantity, stored: StoredPaper | None, panel: str
) -> Mapping[int, float]:
    """Return by seed what a value is divided by, empty if the quantity is not relative.

    A base that diverged or did not reach its target gives nothing to divide by.
    """
    if quantity.relative_to is None or stored is None:
        return {}
    trials = trials_of(stored, panel, quantity.relative_to)
    found = {trial.seed: trial.value(quantity) for trial in chosen(trials)} if trials else {}
    return {
        seed: value.number
        for seed, value in found.items()
        if value is not None and not value.beyond and value.number > 0
    }


def value_of(trial: StoredTrial, quantity: Quantity, base: Mapping[int, float]) -> Value | None:
    """Return a trial's value, relative to the base method's of the same seed if there is one."""
    value = trial.value(quantity)
    if value is None or quantity.relative_to is None:
        return value
    if trial.seed not in base:
        return None
    return replace(value, number=value.number / base[trial.seed])


def _mean(
    trials: Sequence[StoredTrial], quantity: Quantity, base: Mapping[int, float]
) -> Ours | None:
    found = [value_of(trial, quantity, base) for trial in trials]
    values = [value for value in found if value is not None]
    if not values:
        return None
    seeds, grid_cell = len(values), trials[0].cell
    finite = [value for value in values if not math.isnan(value.number)]
    if not finite:
        nothing = interval([math.nan] * seeds)
        return Ours(Value(math.nan), nothing, None, seeds, grid_cell, diverged=seeds)
    beyond = any(value.beyond for value in finite)
    over = spread([value.number for value in finite])
    deviation = None if beyond else over.std
    sized = interval([math.inf if value.beyond else value.number for value in values])
    return Ours(Value(over.mean, beyond), sized, deviation, seeds, grid_cell, seeds - len(finite))


def _mean_share(stored: StoredPaper, cell: PublishedCell) -> Ours | None:
    seeds = sorted({trial.seed for trial in stored.trials if trial.method == cell.method})
    found = [share(stored, cell.panel, cell.method, cell.quantity, seed) for seed in seeds]
    values = [value.number for value in found if value is not None]
    if not values:
        return None
    over = spread(values)
    return Ours(Value(over.mean), interval(values), over.std, len(values), {})


def share(
    stored: StoredPaper, panel: str, method: str, quantity: Quantity, seed: int
) -> Value | None:
    """Return the largest X of the panels `PANEL at X %` that reach the target by the round `at`.

    A panel without such others stands for 100 % by itself; 0 says that none reaches the target.
    """
    reached: dict[str, bool] = {}
    rounds = Quantity("rounds", target=quantity.target)
    for trial in stored.trials:
        named = trial.panel == panel or trial.panel.startswith(f"{panel} at ")
        if not named or trial.method != method or trial.seed != seed:
            continue
        value = trial.value(rounds)
        if value is not None:
            in_time = quantity.at is None or value.number <= quantity.at
            reached[trial.panel] = not value.beyond and in_time
    if not reached:
        return None
    searched = {name: ok for name, ok in reached.items() if name != panel}
    if not searched:
        return Value(100.0 if reached[panel] else 0.0)
    shares = [float(name.removeprefix(f"{panel} at ").rstrip("% ")) for name in searched]
    return Value(max([s for s, ok in zip(shares, searched.values(), strict=True) if ok] or [0.0]))
