"""The tables of a comparison, as papers print them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from undrift.report.comparison import Comparison
from undrift.report.curves import SMOOTHINGS
from undrift.report.numerals import (
    NONE,
    amount,
    grouped,
    spread_amount,
    spread_percent,
    target,
)
from undrift.results import metrics
from undrift.results.metrics import Spread, spread
from undrift.results.record import CLIENTS
from undrift.results.trial import Trial

Methods = Mapping[str, list[Trial]]


@dataclass(frozen=True)
class Cell:
    """Holds the text of one cell."""

    text: str
    part: str = ""  # such as "2 of 3 seeds", where some seeds have no value
    best: bool = False


@dataclass(frozen=True)
class ReportTable:
    """Holds a table with one row per method."""

    caption: str
    heads: list[str]  # of the columns after the method's
    rows: dict[str, list[Cell]]  # by label


@dataclass(frozen=True)
class Figures:
    """Holds the values of one method's seeds."""

    values: list[float]
    seeds: int

    @property
    def spread(self) -> Spread | None:
        """Return mean and deviation, or None without values."""
        return spread(self.values) if self.values else None

    @property
    def complete(self) -> bool:
        """Return whether all seeds have a value."""
        return len(self.values) == self.seeds

    @property
    def part(self) -> str:
        """Return how many seeds have a value, if only some have."""
        return (
            "" if self.complete or not self.values else f"{len(self.values)} of {self.seeds} seeds"
        )


Column = dict[str, Figures]  # by label


def gather(methods: Methods, of: Callable[[Trial], float | None]) -> Column:
    """Return the finite values of each method's seeds."""
    by_label = {label: [of(trial) for trial in trials] for label, trials in methods.items()}
    return {
        label: Figures([v for v in values if v is not None and math.isfinite(v)], len(values))
        for label, values in by_label.items()
    }


def _best(column: Column, sign: int) -> set[str]:
    """Return the labels of the best mean among complete methods, if there are two or more."""
    means = {
        label: sign * each.spread.mean
        for label, each in column.items()
        if each.complete and each.spread is not None
    }
    top = max(means.values(), default=0.0)
    return {label for label, mean in means.items() if mean == top} if len(means) > 1 else set()


def _cells(
    column: Column,
    show: Callable[[Spread], str],
    sign: int = 0,
    missing: Callable[[str], str] = lambda label: NONE,
) -> dict[str, Cell]:
    """Return the cells of a column.

    `sign` is +1 if more is better, -1 if less is better, and 0 if no cell is marked as best.
    """
    best = _best(column, sign) if sign else set()
    return {
        label: Cell(
            missing(label) if each.spread is None else show(each.spread), each.part, label in best
        )
        for label, each in column.items()
    }


def _mean(value: Spread) -> str:
    return amount(value.mean)


def _count(value: Spread) -> str:
    return grouped(value.mean)


def _mean_count(value: Spread) -> str:
    """Return a mean of whole numbers, with one decimal unless it is whole."""
    return grouped(value.mean, 0 if float(value.mean).is_integer() else 1)


def primary(comparison: Comparison) -> str:
    """Return "accuracy", or where nothing was classified the first metric or the loss."""
    return metrics.primary(comparison.records)


def rising(comparison: Comparison) -> bool:
    """Return whether more is better of what stands for the methods."""
    return metrics.rises(primary(comparison), comparison.records)


def rounds_run(trial: Trial) -> int:
    """Return the number of rounds that a trial has run."""
    return trial.records[-1].round if trial.records else 0


def completed(trial: Trial, rounds: int | None = None) -> bool:
    """Return whether a trial has run so many rounds, or all of them."""
    return rounds_run(trial) >= (trial.rounds if rounds is None else rounds)


def reached(trial: Trial, round: int, metric: str, smoothing: str) -> float | None:
    """Return the smoothed metric at that round, or None for a trial that ended before it."""
    if not completed(trial, round):
        return None
    return metrics.at_round(trial.records, round, smoothing, metric)


def results(comparison: Comparison) -> ReportTable:
    """Return the table of what the methods reached and what it cost."""
    methods, metric, smoothing = comparison.methods, primary(comparison), comparison.smoothing
    show = spread_percent if metric == "accuracy" else spread_amount
    sign = 1 if rising(comparison) else -1
    unit = ",\u00a0%" if metric == "accuracy" else ""
    planned = {trial.rounds for trial in comparison.trials}
    smoothed = f", {comparison.smoothing_name}" if comparison.smoothing_name else ""
    half, end = (str(min(planned) // 2), str(min(planned))) if len(planned) == 1 else ("R/2", "R")
    columns: dict[str, dict[str, Cell]] = {}
    if len(planned) > 1:
        columns["rounds R"] = _cells(gather(methods, lambda t: t.rounds), _count)
    if min(planned) > 1:
        middle = gather(methods, lambda t: reached(t, t.rounds // 2, metric, smoothing))
        columns[f"{metric} at {half}{smoothed}{unit}"] = _cells(middle, show, sign)
    last = gather(methods, lambda t: reached(t, t.rounds, metric, smoothing))
    columns[f"at {end}{smoothed}{unit}"] = _cells(last, show, sign)
    tail = gather(
        methods, lambda t: metrics.last(t.records, metric=metric) if completed(t) else None
    )
    columns[f"last 10{unit}"] = _cells(tail, show, sign)
    best = gather(methods, lambda t: metrics.best(t.records, metric))
    columns[f"best{unit}"] = _cells(best, show, sign)
    if metric == "accuracy":
        unsteady = gather(methods, lambda t: metrics.variation(t.records) if completed(t) else None)
        columns["variation"] = _cells(unsteady, _mean)
    for name in metrics.measured(comparison.records):
        if name != metric:
            other = gather(methods, partial(_reached_at_end, metric=name, smoothing=smoothing))
            best_sign = 1 if metrics.rises(name, comparison.records) else -1
            columns[name.replace("_", " ")] = _cells(other, spread_amount, best_sign)
    columns["MB"] = _cells(gather(methods, lambda t: t.megabytes), _mean)
    columns["gradients"] = _cells(gather(methods, lambda t: t.total("gradients")), _count)
    columns["training\u00a0s"] = _cells(gather(methods, lambda t: t.total("seconds")), _mean)
    tests = gather(methods, lambda t: t.total("evaluation_seconds"))
    columns["tests\u00a0s"] = _cells(tests, _mean)
    columns["seconds"] = _cells(
        gather(methods, lambda t: t.total("seconds") + t.total("evaluation_seconds")), _mean
    )
    if any(timed(trial) for trial in comparison.trials):
        simulated = gather(methods, lambda t: t.total("simulated_seconds") if timed(t) else None)
        columns["simulated\u00a0s"] = _cells(simulated, _mean)
    columns["ended"] = {label: Cell(status(trials)) for label, trials in methods.items()}
    return _table("What each method reached, and what it spent", methods, columns)


def _reached_at_end(trial: Trial, *, metric: str, smoothing: str) -> float | None:
    return reached(trial, trial.rounds, metric, smoothing)


def to_target(comparison: Comparison, accuracy: float) -> ReportTable:
    """Return the table of rounds and costs to an accuracy, with ratios to the first method.

    Rounds are shown for every smoothing, costs for that of the comparison.
    """
    methods = comparison.methods
    cost_to = partial(_cost, accuracy=accuracy, smoothing=comparison.smoothing)
    run = {label: max(rounds_run(trial) for trial in trials) for label, trials in methods.items()}
    columns: dict[str, dict[str, Cell]] = {}
    for key, name in SMOOTHINGS.items():
        rounds = gather(methods, partial(rounds_to_target, accuracy=accuracy, smoothing=key))
        columns["rounds" if key == "raw" else f"rounds, {name}"] = _cells(
            rounds, _mean_count, -1, lambda label: f"{grouped(run[label])}+"
        )
    for cost, head, scale in (("bytes", "MB", 1e6), ("gradients", "gradients", 1.0)):
        spent = gather(methods, partial(cost_to, cost=cost, scale=scale))
        columns[head] = _cells(spent, _mean if cost == "bytes" else _count)
        columns[f"{head}, ratio"] = _ratios(spent, _spent_in_vain(methods, spent, cost, scale))
    if any(timed(trial) for trial in comparison.trials):
        waited = gather(methods, partial(cost_to, cost="simulated_seconds"))
        columns["simulated\u00a0s"] = _cells(waited, _mean)
    by = f", costs by {comparison.smoothing_name}" if comparison.smoothing_name else ""
    return _table(f"How soon {target(accuracy)} was reached{by}", methods, columns)


def rounds_to_target(trial: Trial, *, accuracy: float, smoothing: str) -> float | None:
    """Return the rounds to an accuracy, or None."""
    return metrics.rounds_to(trial.records, accuracy, smoothing)


def _cost(
    trial: Trial, *, accuracy: float, smoothing: str, cost: str, scale: float = 1.0
) -> float | None:
    """Return the cost to a smoothed accuracy, or None."""
    if cost == "simulated_seconds" and not timed(trial):
        return None
    spent = metrics.cost_to(trial.records, accuracy, cost, smoothing)
    return None if spent is None else spent / scale


def _spent_in_vain(methods: Methods, spent: Column, cost: str, scale: float) -> float | None:
    """Return what the first method spent in all rounds if no seed reached the target, or None."""
    label, trials = next(iter(methods.items()))
    if spent[label].values or not all(trial.records and completed(trial) for trial in trials):
        return None
    return spread([metrics.cumulative(trial.records, cost)[-1] / scale for trial in trials]).mean


def _ratios(column: Column, in_vain: float | None) -> dict[str, Cell]:
    """Return ratios to the first method.

    A method has one only if all its seeds reached the target; the lucky ones would flatter it.
    """
    means = {
        label: each.spread.mean
        for label, each in column.items()
        if each.complete and each.spread is not None
    }
    reference = means.get(next(iter(column)), in_vain)
    known = {label: mean / reference for label, mean in means.items()} if reference else {}
    least = min(known.values(), default=0.0)
    sign = "" if in_vain is None else "<\u00a0"
    cells = {
        label: Cell(f"{sign}{ratio:.2f}", best=len(known) > 1 and ratio == least)
        for label, ratio in known.items()
    }
    return {label: cells.get(label, Cell(NONE)) for label in column}


def _table(
    caption: str, methods: Methods, columns: Mapping[str, Mapping[str, Cell]]
) -> ReportTable:
    """Return a table from its columns."""
    rows = {label: [column[label] for column in columns.values()] for label in methods}
    return ReportTable(caption, list(columns), rows)


def over_clients(comparison: Comparison) -> ReportTable | None:
    """Return the table of how metrics spread over clients, None where that was not measured."""
    records = [record for record in comparison.records if record.client_metrics]
    if not records:
        return None
    methods, columns = comparison.methods, {}
    names = dict.fromkeys(name for record in records for name in record.client_metrics or ())
    for name in sorted(names, key=lambda name: name != primary(comparison)):
        percent = name == "accuracy"
        show, unit = (spread_percent, ",\u00a0%") if percent else (spread_amount, "")
        sign = 1 if metrics.rises(name, records) else -1
        for figure, head in (("mean", "mean"), ("std", "deviation"), ("worst", "worst tenth")):
            key = f"{CLIENTS}{name}_{figure}"
            best = 0 if figure == "mean" else -1 if figure == "std" else sign
            found = gather(methods, partial(_recent, key=key))
            columns[f"{name.replace('_', ' ')}, {head}{unit}"] = _cells(found, show, best)
        lost = gather(methods, partial(_recent, key=f"{CLIENTS}{name}_undefined"))
        if any(value for each in lost.values() for value in each.values):
            columns[f"{name.replace('_', ' ')}, clients without"] = _cells(lost, _mean_count)
    which = records[-1].client_samples
    return _table(f"How it spreads over the clients, on their {which} samples", methods, columns)


def _recent(trial: Trial, *, key: str) -> float | None:
    return trial.recent(key)


def timed(trial: Trial) -> bool:
    """Return whether a trial ran on simulated devices."""
    return bool(trial.records) and all(r.simulated_seconds is not None for r in trial.records)


def status(trials: Sequence[Trial]) -> str:
    """Return "finished", or how many trials did not finish."""
    if all(trial.status == "finished" for trial in trials):
        return "finished"
    parts = []
    for name in ("diverged", "stopped"):
        count = sum(trial.status == name for trial in trials)
        if count:
            parts.append(name if count == len(trials) == 1 else f"{count} of {len(trials)} {name}")
    return ", ".join(parts)
