"""The findings of a tuned comparison: means with intervals, paired differences, and sentences.

Terminal, JSON and page take their numbers and words from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from undrift.report.collect import best_cells, cell_text
from undrift.report.terminal_table import ResultsTable
from undrift.results.record import plain
from undrift.results.statistics import Difference, Interval, count_text, interval, paired
from undrift.results.trial import Trial
from undrift.results.tuning import TriedCell, Tuning


@dataclass(frozen=True)
class PairedRow:
    """Holds a method's mean over seeds, and how far it is ahead of the first method."""

    label: str
    cell: str  # where it is shown, as text
    mean: Interval
    difference: Difference | None  # None of the first method, and of one that has no runs


@dataclass(frozen=True)
class PairedComparison:
    """Holds the rows of a tuned comparison, its sentences and every cell that was tried."""

    metric: str  # "accuracy", in per cent, or "loss"
    rows: Sequence[PairedRow]
    tuning: Tuning
    unfinished: Mapping[str, Sequence[int]] = field(default_factory=dict)  # method -> seeds

    @property
    def first(self) -> str:
        """Return the method that the others are compared with: the first that has runs."""
        return next(row.label for row in self.rows if row.mean.count or row.mean.diverged)

    @property
    def findings(self) -> list[str]:
        """Return a sentence on every difference, for a reader to quote."""
        return [f"{_upper(row.difference.sentence)}." for row in self.rows if row.difference]

    @property
    def remarks(self) -> list[str]:
        """Return what a reader must know of the seeds and of the choice of cells."""
        return [*self._on_seeds(), *self.tuning.sentences]

    def _on_seeds(self) -> Iterator[str]:
        most = max(row.mean.count + row.mean.diverged for row in self.rows)
        if most < 2:
            yield "An interval needs two seeds or more, got one; nothing is shown by it."
        for label, left in self.unfinished.items():
            which = ", ".join(map(str, left))
            yield (
                f"{label} has not ended with {count_text(len(left), 'seed')} ({which}), which "
                "its mean and its difference leave out; all of this may change when it has."
            )
        for row in self.rows:
            lost, seeds = row.mean.diverged, row.mean.count + row.mean.diverged
            if lost:
                yield (
                    f"{row.label} diverged with {lost} of {count_text(seeds, 'seed')}, so its mean "
                    "has no interval; a run that diverged counts as behind every other."
                )

    @property
    def unit(self) -> str:
        """Return the unit of the values in the heads of columns."""
        return " %" if self.metric == "accuracy" else ""

    def table(self) -> ResultsTable:
        """Return the means and the differences."""
        points = ", points" if self.metric == "accuracy" else ""
        columns = [
            "method",
            "at",
            f"{self.metric}{self.unit}, mean (95 % interval)",
            f"minus {self.first}{points} (95 % interval, Holm)",
            "p (Holm)",
        ]
        rows = [
            [row.label, row.cell, _mean(row.mean), *_difference(row.difference)]
            for row in self.rows
        ]
        return ResultsTable(columns, rows, "", "Paired comparison after tuning")

    def tried_table(self) -> ResultsTable:
        """Return every cell that was tried, in the order in which it was."""
        tried = self.tuning.tried
        halved = len({each.rounds for each in tried}) > 1
        columns = ["method", "cell", *(["rounds"] if halved else []), f"validation {self.metric}"]
        columns[-1] += self.unit
        rows = [
            [
                each.method,
                each.text,
                *([str(each.rounds)] if halved else []),
                self._validated(each),
                each.outcome,
            ]
            for each in tried
        ]
        return ResultsTable([*columns, ""], rows, "", "What was tried")

    def _validated(self, each: TriedCell) -> str:
        value = each.accuracy if self.metric == "accuracy" else each.loss
        return "-" if value is None else plain(value) if not self.unit else f"{100 * value:.2f}"

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return by method what `--json` prints besides the figures of its runs."""
        methods = self.tuning.methods
        return {
            row.label: {
                "mean": _numbers(row.mean),
                "difference": _summary(row.difference),
                "tried": [_without_method(each) for each in methods.get(row.label, ())],
                "remarks": [text for text in self.remarks if text.startswith(f"{row.label} ")],
            }
            for row in self.rows
        }


def paired_comparison(
    trials: Sequence[Trial], smoothing: str, tuning: Tuning, seeds: Sequence[int] = ()
) -> PairedComparison:
    """Return what the final runs of a tuned comparison have shown.

    Runs that have not ended are left out, those of `seeds` that have not begun, too.
    """
    methods = best_cells(trials, smoothing)
    classified = any(trial.reached(smoothing) is not None for trial in trials)
    metric, scale = ("accuracy", 100.0) if classified else ("loss", 1.0)
    values = {
        title: {t.seed: scale * _value(t, smoothing, metric) for t in runs if t.ended}
        for title, runs in methods.items()
    }
    planned = {title: {*seeds, *(t.seed for t in runs)} for title, runs in methods.items()}
    unfinished = {
        title: sorted(planned[title] - own.keys())
        for title, own in values.items()
        if planned[title] - own.keys()
    }
    values = {title: own for title, own in values.items() if own}
    better, unit = ("higher", "points") if classified else ("lower", "")
    found = paired(values, next(iter(values)), better=better, unit=unit) if values else []
    differences = {each.label: each for each in found}
    rows = [
        PairedRow(
            title,
            cell_text(methods[title][0]),
            interval(list(own.values())),
            differences.get(title),
        )
        for title, own in values.items()
    ]
    lost = [PairedRow(title, "", interval([]), None) for title in tuning.diverged]
    return PairedComparison(metric, [*rows, *lost], tuning, unfinished)


def _value(trial: Trial, smoothing: str, metric: str) -> float:
    """Return what a run has reached, NaN if it diverged."""
    reached = trial.reached(smoothing, metric) if trial.status == "finished" else None
    return math.nan if reached is None else reached


def _mean(found: Interval) -> str:
    if found.mean is None:
        return "diverged"
    bounds = f" ({found.low:.2f} to {found.high:.2f})" if found.low is not None else ""
    return f"{found.mean:.2f}{bounds}"


def _difference(found: Difference | None) -> tuple[str, str]:
    """Return the difference with its corrected interval, and its p."""
    if found is None:
        return "", ""
    plain, corrected = found.tested.plain, found.tested.corrected
    if found.tested.signs or plain.mean is None:
        return "-", "-"
    bounds = f" ({corrected.low:.2f} to {corrected.high:.2f})" if corrected.low is not None else ""
    adjusted = found.tested.adjusted
    return f"{plain.mean:+.2f}{bounds}", "-" if adjusted is None else f"{adjusted:.2g}"


def _numbers(found: Interval) -> dict[str, Any]:
    return {key: value for key, value in asdict(found).items() if key != "level"}


def _summary(found: Difference | None) -> dict[str, Any] | None:
    """Return a difference as plain values."""
    if found is None:
        return None
    tested = found.tested
    return {
        "to": found.first,
        "mean": tested.plain.mean,
        "low": tested.corrected.low,
        "high": tested.corrected.high,
        "p": tested.p,
        "p_holm": tested.adjusted,
        "shown": tested.shown,
        "sentence": found.sentence,
    }


def _without_method(each: TriedCell) -> Mapping[str, Any]:
    return {key: value for key, value in asdict(each).items() if key != "method"}


def _upper(sentence: str) -> str:
    """Return a sentence that begins with a word in upper case; names stay as they are."""
    return f"N{sentence[1:]}" if sentence.startswith("no ") else sentence
