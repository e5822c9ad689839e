"""The tables of a comparison, in the shape that papers have, and one sentence before them."""

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
from undrift.results.trial import Trial

Methods = Mapping[str, list[Trial]]


@dataclass(frozen=True)
class Cell:
    text: str
    part: str = ""  # "2 of 3 seeds", where not all count
    best: bool = False


@dataclass(frozen=True)
class ReportTable:
    caption: str
    heads: list[str]  # of the columns after the method's
    rows: dict[str, list[Cell]]  # by label


@dataclass(frozen=True)
class Figures:
    """What the seeds of one method came to."""

    values: list[float]
    seeds: int

    @property
    def spread(self) -> Spread | None:
        return spread(self.values) if self.values else None

    @property
    def complete(self) -> bool:
        return len(self.values) == self.seeds

    @property
    def part(self) -> str:
        return (
            "" if self.complete or not self.values else f"{len(self.values)} of {self.seeds} seeds"
        )


Column = dict[str, Figures]  # by label


def _gather(methods: Methods, of: Callable[[Trial], float | None]) -> Column:
    found = {label: [of(trial) for trial in trials] for label, trials in methods.items()}
    return {
        label: Figures([v for v in values if v is not None and math.isfinite(v)], len(values))
        for label, values in found.items()
    }


def _best(column: Column, sign: int) -> set[str]:
    """Labels of the best mean, among those that all seeds contribute to; nobody if alone."""
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
    """`sign` is +1 where more is better, -1 where less is, 0 where nothing is to be praised."""
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
    """A mean of whole numbers: with a digit behind the point where it is not one."""
    return grouped(value.mean, 0 if float(value.mean).is_integer() else 1)


def primary(comparison: Comparison) -> str:
    """Accuracy, or loss where nothing was classified."""
    seen = (r.accuracy is not None for trial in comparison.trials for r in trial.records)
    return "accuracy" if any(seen) else "loss"


def done(trial: Trial) -> int:
    """Rounds."""
    return trial.records[-1].round if trial.records else 0


def ran(trial: Trial, rounds: int | None = None) -> bool:
    """Whether it got so far, or to its end."""
    return done(trial) >= (trial.rounds if rounds is None else rounds)


def reached(trial: Trial, round: int, metric: str) -> float | None:
    """At that round; None for a trial that ended before it."""
    return metrics.at_round(trial.records, round, metric=metric) if ran(trial, round) else None


def results(comparison: Comparison) -> ReportTable:
    """What the methods reached and what it cost."""
    methods, metric = comparison.methods, primary(comparison)
    show = spread_percent if metric == "accuracy" else spread_amount
    sign = 1 if metric == "accuracy" else -1
    unit = ",\u00a0%" if metric == "accuracy" else ""
    asked = {trial.rounds for trial in comparison.trials}
    half, end = (str(min(asked) // 2), str(min(asked))) if len(asked) == 1 else ("R/2", "R")
    columns: dict[str, dict[str, Cell]] = {}
    if len(asked) > 1:
        columns["rounds R"] = _cells(_gather(methods, lambda t: t.rounds), _count)
    if min(asked) > 1:
        middle = _gather(methods, lambda t: reached(t, t.rounds // 2, metric))
        columns[f"{metric} at {half}{unit}"] = _cells(middle, show, sign)
    last = _gather(methods, lambda t: reached(t, t.rounds, metric))
    columns[f"at {end}{unit}"] = _cells(last, show, sign)
    tail = _gather(methods, lambda t: metrics.last(t.records, metric=metric) if ran(t) else None)
    columns[f"last 10{unit}"] = _cells(tail, show, sign)
    best = _gather(methods, lambda t: metrics.best(t.records, metric))
    columns[f"best{unit}"] = _cells(best, show, sign)
    if metric == "accuracy":
        unsteady = _gather(methods, lambda t: metrics.variation(t.records) if ran(t) else None)
        columns["variation"] = _cells(unsteady, _mean)
    columns["MB"] = _cells(_gather(methods, lambda t: t.megabytes), _mean)
    columns["gradients"] = _cells(_gather(methods, lambda t: t.total("gradients")), _count)
    columns["seconds"] = _cells(_gather(methods, lambda t: t.total("seconds")), _mean)
    if any(timed(trial) for trial in comparison.trials):
        simulated = _gather(methods, lambda t: t.total("simulated_seconds") if timed(t) else None)
        columns["simulated\u00a0s"] = _cells(simulated, _mean)
    columns["ended"] = {label: Cell(status(trials)) for label, trials in methods.items()}
    return _table("What each method reached, and what it spent", methods, columns)


def to_target(comparison: Comparison, accuracy: float) -> ReportTable:
    """Rounds and costs to an accuracy; ratios to the first method."""
    methods = comparison.methods
    run = {label: max(done(trial) for trial in trials) for label, trials in methods.items()}
    columns: dict[str, dict[str, Cell]] = {}
    for key, name in SMOOTHINGS.items():
        rounds = _gather(methods, partial(_rounds, accuracy=accuracy, smoothing=key))
        columns["rounds" if key == "raw" else f"rounds, {name}"] = _cells(
            rounds, _mean_count, -1, lambda label: f"{grouped(run[label])}+"
        )
    for cost, head, scale in (("bytes", "MB", 1e6), ("gradients", "gradients", 1.0)):
        spent = _gather(methods, partial(_cost, accuracy=accuracy, cost=cost, scale=scale))
        columns[head] = _cells(spent, _mean if cost == "bytes" else _count)
        columns[f"{head}, ratio"] = _ratios(spent, _in_vain(methods, spent, cost, scale))
    if any(timed(trial) for trial in comparison.trials):
        waited = _gather(methods, partial(_cost, accuracy=accuracy, cost="simulated_seconds"))
        columns["simulated\u00a0s"] = _cells(waited, _mean)
    return _table(f"How soon {target(accuracy)} was reached", methods, columns)


def _rounds(trial: Trial, *, accuracy: float, smoothing: str) -> float | None:
    return metrics.rounds_to(trial.records, accuracy, smoothing)


def _cost(trial: Trial, *, accuracy: float, cost: str, scale: float = 1.0) -> float | None:
    if cost == "simulated_seconds" and not timed(trial):
        return None
    spent = metrics.cost_to(trial.records, accuracy, cost)
    return None if spent is None else spent / scale


def _in_vain(methods: Methods, spent: Column, cost: str, scale: float) -> float | None:
    """What the first method spent in all its rounds, where none of its seeds reached the target."""
    label, trials = next(iter(methods.items()))
    if spent[label].values or not all(trial.records and ran(trial) for trial in trials):
        return None
    return spread([metrics.cumulative(trial.records, cost)[-1] / scale for trial in trials]).mean


def _ratios(column: Column, in_vain: float | None) -> dict[str, Cell]:
    """Only of methods whose seeds all arrived: others would be flattered by the lucky ones."""
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
    rows = {label: [column[label] for column in columns.values()] for label in methods}
    return ReportTable(caption, list(columns), rows)


def timed(trial: Trial) -> bool:
    """Whether it ran on simulated devices."""
    return bool(trial.records) and all(r.simulated_seconds is not None for r in trial.records)


def status(trials: Sequence[Trial]) -> str:
    """ "finished", or how many did not."""
    if all(trial.status == "finished" for trial in trials):
        return "finished"
    parts = []
    for name in ("diverged", "stopped"):
        count = sum(trial.status == name for trial in trials)
        if count:
            parts.append(name if count == len(trials) == 1 else f"{count} of {len(trials)} {name}")
    return ", ".join(parts)


def endings(comparison: Comparison) -> list[str]:
    """A sentence for every trial that did not finish."""
    sentences = []
    for trial in comparison.trials:
        if trial.status != "finished":
            why = f": {trial.reason.strip()}" if trial.reason.strip() else "."
            sentences.append(
                f"{trial.label}, seed {trial.seed}, {trial.status} after {done(trial)} of "
                f"{trial.rounds} rounds{why}"
            )
    return sentences


def summary(comparison: Comparison) -> str:
    """One sentence."""
    methods, metric = comparison.methods, primary(comparison)
    runs = f"{_number(len(methods), 'method')}, {_number(len(comparison.trials), 'run')}"
    last = _gather(methods, lambda t: reached(t, t.rounds, metric))
    some = [label for label, each in last.items() if each.values]
    whole = [label for label in some if last[label].complete]
    ended = {label: spread(last[label].values) for label in whole or some}
    if not ended:
        return f"{runs}; none of them has a value at its last round."
    sign = 1 if metric == "accuracy" else -1
    label, top = max(ended.items(), key=lambda each: sign * each[1].mean)
    value = f"{spread_percent(top)}\u00a0%" if metric == "accuracy" else spread_amount(top)
    praise = "highest accuracy" if metric == "accuracy" else "lowest loss"
    alone = f"an accuracy of {value}" if metric == "accuracy" else f"a loss of {value}"
    text = f"{runs}: {label} ended with {f'the {praise}, {value}' if len(methods) > 1 else alone}"
    if comparison.targets and metric == "accuracy":
        text += _first_at(comparison, comparison.targets[-1], label)
    return text + "."


def _first_at(comparison: Comparison, accuracy: float, praised: str) -> str:
    rounds = _gather(comparison.methods, partial(_rounds, accuracy=accuracy, smoothing="raw"))
    there = {k: v.spread.mean for k, v in rounds.items() if v.complete and v.spread is not None}
    if not there:
        nobody = "no method" if len(rounds) > 1 else "it never"
        return f"; {nobody} reached {target(accuracy)} with every seed"
    least = min(there.values())
    first = [label for label, mean in there.items() if mean == least]
    who = ", and" if first == [praised] else f"; {' and '.join(first)}"
    place = " first," if len(rounds) > 1 else ""
    return f"{who} reached {target(accuracy)}{place} after {_number(least, 'round')}"


def _number(count: float, what: str) -> str:
    return f"{grouped(count)} {what}{'' if count == 1 else 's'}"
