"""The numbers that figures of results show: curves by round, dots with intervals, heat maps.

A hash of the numbers stands in a figure's file, so that a test can tell whether it is up to date.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from undrift.papers.claims import methods_of
from undrift.papers.compare import ComparedCell, Ours, chosen, trials_of
from undrift.papers.curves import drawn_metrics
from undrift.papers.file import Paper
from undrift.papers.find import Side
from undrift.papers.heatmap import HeatMap, heat_maps
from undrift.papers.quantity import UNKNOWN, Quantity
from undrift.papers.store import StoredPaper, StoredTrial

FIGURES = 5  # of a number, so that another version of a library changes no hash
LABELS = {
    "accuracy": "accuracy, %",
    "sign_matching": "signs that agree, %",
    "loss": "loss",
    "train_loss": "training loss",
    "consensus": "distance to the mean model, squared",
    "cka": "CKA between clients",
    "seconds_round": "seconds of a round",
}


@dataclass(frozen=True)
class CurveBand:
    """Holds a curve: the mean over seeds, and the band between the least and the most."""

    label: str
    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    diverged: int = 0  # seeds whose curve ends early


@dataclass(frozen=True)
class Dot:
    """Holds a value beside a row's name: whose it is, and its interval if it has one."""

    whose: str
    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Plot:
    """Holds one part of a figure: curves, or rows of dots."""

    title: str
    axis: str
    lines: tuple[CurveBand, ...] = ()
    rows: tuple[tuple[str, tuple[Dot, ...]], ...] = field(default=())


def plots(paper: Paper, sides: Sequence[Side]) -> list[Plot] | list[HeatMap]:
    """Return the parts of a figure: curves for a figure of the document, dots for a table.

    A figure whose methods are a grid of two hyper-parameters is a heat map of their values.
    """
    if paper.item.startswith("Figure"):
        quantity = _main_quantity(sides)
        maps = [] if quantity is None else heat_maps(paper, sides, quantity)
        if maps:
            return maps
        found = _curve_plots(paper, sides)
        if found:
            return found
    return _dot_plots(paper, sides)


def digest(parts: Sequence[Plot] | Sequence[HeatMap]) -> str:
    """Return a hash of what a figure shows."""
    return hashlib.sha256(repr(list(parts)).encode()).hexdigest()[:16]


def _curve_plots(paper: Paper, sides: Sequence[Side]) -> list[Plot]:
    metric = drawn_metrics(paper)[0]
    found = []
    for side in sides:
        if side.stored is None:
            continue
        several = sum(each.stored is not None for each in sides) > 1
        for title, cells in _groups(paper):
            lines = [_line(side.stored, *cell, metric, label) for label, cell in cells.items()]
            drawn = tuple(line for line in lines if line is not None)
            if drawn:
                words = [title] * bool(title) + [side.name] * several
                found.append(Plot("\n".join(words), LABELS[metric], drawn))
    return found


def _groups(paper: Paper) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """Return the parts of a figure: a title, and by label the panel and method of each curve.

    Panels with several methods are parts by themselves. Panels of one method are curves; they make
    one part, or one for each word before a comma, as in "iid, 10 workers".
    """
    methods = {panel: methods_of(paper, panel) for panel in paper.panel_names}
    if any(len(names) > 1 for names in methods.values()) or len(methods) == 1:
        return [(p, {name: (p, name) for name in names}) for p, names in methods.items()]
    heads = Counter(panel.split(", ")[0] for panel in methods)
    shared = all(", " in panel and heads[panel.split(", ")[0]] > 1 for panel in methods)
    groups: dict[str, dict[str, tuple[str, str]]] = {}
    for panel, (method,) in methods.items():
        title, _, label = panel.partition(", ") if shared else ("", "", panel)
        groups.setdefault(title, {})[label] = (panel, method)
    return list(groups.items())


def _line(
    stored: StoredPaper, panel: str, method: str, metric: str, label: str
) -> CurveBand | None:
    """Return the curve of a method in a panel over its seeds, or None if it has none."""
    trials = trials_of(stored, panel, method)
    seeds = [trial for trial in chosen(trials) if metric in trial.curves] if trials else []
    by_round: dict[int, list[float]] = {}
    for trial in seeds:
        for at, value in zip(*trial.curves[metric], strict=True):
            by_round.setdefault(int(at), []).append(value)
    # Seeds that were thinned at other rounds, because they diverged, would make the mean jump.
    most = max((len(values) for values in by_round.values()), default=0)
    kept = sorted(at for at, values in by_round.items() if len(values) == most)
    if not kept:
        return None
    columns = [by_round[at] for at in kept]
    return CurveBand(
        label,
        tuple(kept),
        tuple(_rounded(sum(values) / len(values)) for values in columns),
        tuple(_rounded(min(values)) for values in columns),
        tuple(_rounded(max(values)) for values in columns),
        _diverged(seeds),
    )


def _diverged(seeds: Sequence[StoredTrial]) -> int:
    return sum(trial.status == "diverged" for trial in seeds)


def _dot_plots(paper: Paper, sides: Sequence[Side]) -> list[Plot]:
    quantity = _main_quantity(sides)
    if quantity is None:
        return []
    by_place: dict[tuple[str, str], list[tuple[Side, ComparedCell]]] = {}
    for side in sides:
        for row in side.all_rows:
            if row.cell.quantity.text == quantity.text:
                by_place.setdefault((row.cell.panel, row.cell.method), []).append((side, row))
    run = {place: found for place, found in by_place.items() if any(r.ours for _, r in found)}
    panels = list(dict.fromkeys(panel for panel, _ in run))
    unit = f", {quantity.unit}" if quantity.unit not in ("", "rounds", "gradients") else ""
    plain = quantity.target is None and quantity == Quantity(quantity.metric)
    axis = LABELS.get(quantity.metric, "") if plain else ""
    axis = axis or f"{quantity.text}{unit}"
    several = any(sum(panel == p for p, _ in run) > 1 for panel in panels)
    if not several:
        return [Plot("", axis, rows=tuple((panel, _dots(run[panel, m])) for panel, m in run))]
    return [
        Plot(panel, axis, rows=tuple((m, _dots(run[p, m])) for p, m in run if p == panel))
        for panel in panels
    ]


def _main_quantity(sides: Sequence[Side]) -> Quantity | None:
    """Return the quantity with the most values of ours, the last one of equally many."""
    rows = [row for side in sides for row in side.all_rows if row.ours is not None]
    counts = Counter(row.cell.quantity for row in rows)
    return max(reversed(counts), key=lambda quantity: counts[quantity], default=None)


def _dots(found: Sequence[tuple[Side, ComparedCell]]) -> tuple[Dot, ...]:
    """Return the document's value and ours, without those that diverged."""
    cell = found[0][1].cell
    dots = []
    if cell.value != UNKNOWN and math.isfinite(cell.value.number):
        dots.append(Dot("the document", _rounded(cell.value.number)))
    for side, row in found:
        if row.ours is not None and math.isfinite(row.ours.value.number):
            dots.append(_dot(side.name, row.ours))
    return tuple(dots)


def _dot(whose: str, ours: Ours) -> Dot:
    low, high = ours.interval.low, ours.interval.high
    if low is None or high is None:
        return Dot(whose, _rounded(ours.value.number))
    return Dot(whose, _rounded(ours.value.number), _rounded(low), _rounded(high))


def _rounded(value: float) -> float:
    return float(f"{value:.{FIGURES}g}")
