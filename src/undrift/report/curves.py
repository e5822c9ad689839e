"""Curves of methods over their seeds, against rounds and against costs.

At each round, mean and band are those of the seeds that have reached it. A cost is the sum of the
seeds' mean costs from one evaluation to the next, so that it never falls where a seed ends early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.report import style
from undrift.report.comparison import Comparison
from undrift.results import metrics
from undrift.results.trial import Trial

Floats = NDArray[np.float64]
Clocks = dict[str, list[tuple[NDArray[np.int64], Floats]]]


@dataclass(frozen=True)
class DrawnMetric:
    """Names a field of the records that is drawn."""

    key: str  # a record's field
    label: str
    percent: bool = False


@dataclass(frozen=True)
class Axis:
    """Names a cost against which metrics are drawn."""

    key: str
    label: str
    kind: str  # decides how numbers are written


METRICS = (
    DrawnMetric("accuracy", "accuracy", percent=True),
    DrawnMetric("loss", "loss"),
    DrawnMetric("validation_accuracy", "validation accuracy", percent=True),
    DrawnMetric("node_accuracy", "accuracy of the nodes", percent=True),
    DrawnMetric("consensus", "consensus error"),
)
AXES = (
    Axis("rounds", "rounds", "rounds"),
    Axis("bytes", "bytes sent", "bytes"),
    Axis("gradients", "gradients", "count"),
    Axis("samples", "training samples", "count"),
    Axis("seconds", "time", "seconds"),
    Axis("simulated_seconds", "simulated time", "seconds"),
)
# The best so far is a column of the page's table, and no curve.
SMOOTHINGS = {key: name for key, name in metrics.SMOOTHING_NAMES.items() if key != "best"}

NUMBERS = 240_000  # at most in a page; each takes about seven bytes
POINTS = 500  # of a curve at most, because a screen shows no more


@dataclass(frozen=True)
class Line:
    """Holds mean and band over the seeds; NaN stands where no seed has a finite value."""

    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Crash:
    """Marks the last value of a seed that diverged."""

    at: int
    values: Mapping[str, float]  # by smoothing


@dataclass(frozen=True)
class MethodCurve:
    """Holds one metric of one method over its seeds."""

    x: Mapping[str, Floats]  # by axis
    lines: Mapping[str, Line]  # by smoothing
    seeds: NDArray[np.int64]  # number of seeds that have a value
    crashes: Sequence[Crash]

    @property
    def points(self) -> int:
        """Return the number of points."""
        return len(self.seeds)

    def thinned(self, most: int) -> MethodCurve:
        """Return at most about `most` points, evenly chosen, with both ends and every crash."""
        if self.points <= most:
            return self
        even = np.linspace(0, self.points - 1, most).round().astype(np.int64)
        chosen = np.union1d(even, np.array([crash.at for crash in self.crashes], np.int64))
        new = {int(old): place for place, old in enumerate(chosen)}
        return MethodCurve(
            {axis: values[chosen] for axis, values in self.x.items()},
            {
                name: Line(line.mean[chosen], line.low[chosen], line.high[chosen])
                for name, line in self.lines.items()
            },
            self.seeds[chosen],
            [Crash(new[crash.at], crash.values) for crash in self.crashes],
        )


def curves(
    trials: Sequence[Trial], chosen: Sequence[DrawnMetric] = METRICS
) -> dict[str, MethodCurve]:
    """Return the curves of one method by metric, without those that were never measured."""
    clocks = _clocks(trials)
    measured = {metric.key: _curve(trials, metric.key, clocks) for metric in chosen}
    return {key: each for key, each in measured.items() if each is not None}


def _curve(trials: Sequence[Trial], metric: str, clocks: Clocks) -> MethodCurve | None:
    """Return the curve of one metric, or None if it was never measured."""
    by_seed = [metrics.curve(trial.records, metric) for trial in trials]
    grid = np.array(sorted({at for each in by_seed for at in each.rounds}), np.int64)
    if not len(grid):
        return None
    stacked = {}
    for name in SMOOTHINGS:
        stacked[name] = np.full((len(trials), len(grid)), np.nan)
        for row, each in zip(stacked[name], by_seed, strict=True):
            row[np.searchsorted(grid, each.rounds)] = metrics.SMOOTHINGS[name](
                each.rounds, each.values
            )
        stacked[name][~np.isfinite(stacked[name])] = np.nan
    return MethodCurve(
        _spent(clocks, grid),
        {name: _line(values) for name, values in stacked.items()},
        np.isfinite(stacked["raw"]).sum(axis=0),
        _crashes(trials, stacked),
    )


def _line(values: Floats) -> Line:
    """Return mean and extremes of values (seeds, points), in which NaN stands for no value."""
    finite = np.isfinite(values)
    some = finite.any(axis=0)
    mean = np.where(finite, values, 0).sum(axis=0) / np.maximum(finite.sum(axis=0), 1)
    low = np.where(finite, values, np.inf).min(axis=0)
    high = np.where(finite, values, -np.inf).max(axis=0)
    return Line(*(np.where(some, each, np.nan) for each in (mean, low, high)))


def _crashes(trials: Sequence[Trial], stacked: Mapping[str, Floats]) -> list[Crash]:
    """Return the last points of all seeds that diverged."""
    crashes = []
    for seed, trial in enumerate(trials):
        (finite,) = np.nonzero(np.isfinite(stacked["raw"][seed]))
        if trial.status == "diverged" and len(finite):
            at = int(finite[-1])
            values = {name: float(rows[seed, at]) for name, rows in stacked.items()}
            crashes.append(Crash(at, values))
    return crashes


def _clocks(trials: Sequence[Trial]) -> Clocks:
    """Return for every cost the rounds of each trial and what it had spent by then.

    A cost that some round lacks is left out.
    """
    runs = [trial.records for trial in trials if trial.records]
    clocks: Clocks = {}
    for axis in AXES[1:]:
        if all(getattr(r, axis.key, 0) is not None for records in runs for r in records):
            clocks[axis.key] = [
                (
                    np.array([r.round for r in records]),
                    np.array(metrics.cumulative(records, axis.key)),
                )
                for records in runs
            ]
    return clocks


def _spent(clocks: Clocks, grid: NDArray[np.int64]) -> dict[str, Floats]:
    """Return the mean costs at these rounds, by axis."""
    x = {"rounds": grid.astype(np.float64)}
    for axis, runs in clocks.items():
        totals = np.array(
            [
                np.where(grid > rounds[-1], np.nan, np.interp(grid, rounds, spent))
                for rounds, spent in runs
            ]
        )
        steps = _line(np.diff(totals, axis=1, prepend=0)).mean
        x[axis] = np.cumsum(np.nan_to_num(steps))
    return x


def for_script(comparison: Comparison) -> dict[str, Any]:
    """Return what the page's script draws, thinned so that the page stays small."""
    own = [DrawnMetric(name, name) for name in metrics.measured(comparison.records)]
    first = metrics.primary(comparison.records)  # The page opens with what stands for the methods.
    chosen = sorted([*METRICS, *own], key=lambda each: each.key != first)
    methods = {label: curves(trials, chosen) for label, trials in comparison.methods.items()}
    drawn = [each for by_metric in methods.values() for each in by_metric.values()]
    columns = sum(len(each.x) + 3 * len(each.lines) + 1 for each in drawn)
    most = int(np.clip(NUMBERS / max(columns, 1), 20, POINTS))
    measured = {key for by_metric in methods.values() for key in by_metric}
    return {
        "metrics": [
            {
                "key": each.key,
                "label": each.label,
                "percent": each.percent,
                "log": not each.percent,
                "targets": each.key == "accuracy",
            }
            for each in chosen
            if each.key in measured
        ],
        "axes": [vars(axis) for axis in AXES if any(_moves(each, axis) for each in drawn)],
        "smoothings": [{"key": key, "label": label} for key, label in SMOOTHINGS.items()],
        "targets": list(comparison.targets),
        "methods": [
            {
                "label": label,
                "colour": index % len(style.COLOURS),
                "dash": " ".join(f"{length:g}" for length in style.dash(index)) or "none",
                "curves": {key: _plain(each.thinned(most)) for key, each in by_metric.items()},
            }
            for index, (label, by_metric) in enumerate(methods.items())
        ],
        "points": most,
        "longest": max((each.points for each in drawn), default=0),
    }


def _moves(each: MethodCurve, axis: Axis) -> bool:
    """Return whether a cost rises at all."""
    return axis.key in each.x and bool(each.x[axis.key][-1] > 0)


def _plain(each: MethodCurve) -> dict[str, Any]:
    """Return a curve as JSON has it."""
    one = bool((each.seeds <= 1).all())  # a single seed has no band
    return {
        "x": {axis: _numbers(values, 7) for axis, values in each.x.items()},
        "y": {
            name: {"mean": _numbers(line.mean)}
            | ({} if one else {"low": _numbers(line.low), "high": _numbers(line.high)})
            for name, line in each.lines.items()
        },
        "seeds": each.seeds.tolist(),
        "diverged": [
            {"at": crash.at, "y": {key: _numbers([v])[0] for key, v in crash.values.items()}}
            for crash in each.crashes
        ],
    }


def _numbers(values: Any, digits: int = 5) -> list[float | int | None]:
    """Return numbers as JSON has them: null for NaN, whole numbers without a point."""
    rounded = [float(f"{value:.{digits}g}") for value in values]
    return [
        None if not np.isfinite(v) else int(v) if v.is_integer() and abs(v) < 1e15 else v
        for v in rounded
    ]
