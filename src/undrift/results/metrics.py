"""The numbers that papers report of a run, as functions of its records.

Rounds that were not evaluated have no accuracy and no loss and are left out. What is smoothed or
averaged goes by rounds, so it means the same however often a run was evaluated. Costs count in
every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from undrift.check import is_finite, is_whole, require, require_choice
from undrift.results.record import CLIENTS, NESTED, VALIDATION, PeerRecord, Record

METRICS = (
    *(
        field.name
        for field in fields(PeerRecord)
        if field.name not in ("round", "dropped", *NESTED)
    ),
    "stationarity",
)
COSTS = (
    "bytes",
    "gradients",
    "samples",
    "seconds",
    "evaluation_seconds",
    "all_seconds",
    "simulated_seconds",
)
_HIGHER = (
    "accuracy",
    "validation_accuracy",
    "node_accuracy",
    "sign_matching",
    "cka",
    "utilisation",
    "clients",
)


@dataclass(frozen=True)
class Curve:
    """Holds the values of a metric and the rounds in which it was measured."""

    rounds: tuple[int, ...]
    values: tuple[float, ...]


class Spread(NamedTuple):
    """Holds mean and standard deviation over seeds."""

    mean: float
    std: float | None  # of a sample, dividing by n - 1; None for a single value


DECAY, WINDOW = 0.9, 10  # of the documents: a moving average, and a window of rounds


def ema(values: Sequence[float], decay: float = DECAY) -> list[float]:
    """Return the moving average s_1 = v_1, s_k = decay s_(k-1) + (1 - decay) v_k."""
    require(is_finite(decay) and 0 <= decay < 1, "ema", "decay in [0, 1)", decay)
    return list(accumulate(values, lambda s, v: decay * s + (1 - decay) * v))


def window(values: Sequence[float], size: int = WINDOW) -> list[float]:
    """Return the mean of each value and up to `size` - 1 values before it."""
    require(is_whole(size) and size >= 1, "window", "size >= 1, a whole number", size)
    ends = range(1, len(values) + 1)
    return [math.fsum(part) / len(part) for part in (values[max(0, n - size) : n] for n in ends)]


def best_so_far(values: Sequence[float]) -> list[float]:
    """Return the largest value up to each value; NaN counts only where nothing else was before."""
    return [float(value) for value in np.fmax.accumulate(np.asarray(values, np.float64))]


Smoothing = Callable[[Sequence[int], Sequence[float]], list[float]]


def _ema_by_round(rounds: Sequence[int], values: Sequence[float]) -> list[float]:
    """Return `ema` over rounds: a value counts for all rounds since the one before it."""
    if not values:
        return []
    smoothed = [values[0]]
    for before, (now, value) in zip(rounds, zip(rounds[1:], values[1:], strict=True), strict=False):
        kept = DECAY ** (now - before)
        smoothed.append(kept * smoothed[-1] + (1 - kept) * value)
    return smoothed


def _window_by_round(rounds: Sequence[int], values: Sequence[float]) -> list[float]:
    """Return `window` over rounds: the mean of the values of the last ten rounds."""
    return _means_by_round(rounds, values, WINDOW)


def _means_by_round(rounds: Sequence[int], values: Sequence[float], size: int) -> list[float]:
    """Return at each of the rounds, which ascend, the mean of the values of the last `size`."""
    means, first = [], 0
    for place, now in enumerate(rounds):
        while rounds[first] <= now - size:
            first += 1
        recent = values[first : place + 1]
        means.append(math.fsum(recent) / len(recent))
    return means


# The documents smooth over rounds, so a curve that was measured every few rounds is, too.
SMOOTHINGS: Mapping[str, Smoothing] = MappingProxyType(
    {
        "raw": lambda rounds, values: list(values),
        "ema": _ema_by_round,
        "window": _window_by_round,
        "best": lambda rounds, values: best_so_far(values),
    }
)


SMOOTHING_NAMES: Mapping[str, str] = MappingProxyType(  # in tables
    {"raw": "raw", "ema": "EMA 0.9", "window": "window 10", "best": "best so far"}
)


def measured(records: Sequence[Record]) -> list[str]:
    """Return the names of the metrics that records have besides loss and accuracy."""
    return list(dict.fromkeys(name for record in records for name in record.metrics or ()))


def primary(records: Sequence[Record]) -> str:
    """Return the metric that stands for a run: accuracy, or the first of its own, or the loss."""
    if any(record.accuracy is not None for record in records):
        return "accuracy"
    return next(iter(measured(records)), "loss")


def rises(metric: str, records: Sequence[Record] = ()) -> bool:
    """Return whether more is better, as for accuracies and shares, not for losses and costs.

    Records tell it of the metrics that they have besides the fields of every record.
    """
    if metric in METRICS:
        return metric in _HIGHER
    if metric.startswith(CLIENTS) and any(value_of(r, metric) is not None for r in records):
        name, _, figure = metric.removeprefix(CLIENTS).rpartition("_")
        return figure in ("mean", "worst", "clients") and rises(name, records)
    own = measured(records)
    known = [*METRICS, *own, *(f"{VALIDATION}{name}" for name in own)]
    require_choice("A curve", "metric", metric, known)
    name = metric if metric in own else metric.removeprefix(VALIDATION)
    return not any(name in (record.lower or ()) for record in records)


def curve(records: Sequence[Record], metric: str = "accuracy", smoothing: str = "raw") -> Curve:
    """Return a metric's curve, which is empty if it was never measured.

    `metric` is any number of a record, one of its metrics, or "stationarity".
    """
    sign = 1 if rises(metric, records) else -1  # the best of a loss is its smallest
    require_choice("A curve", "smoothing", smoothing, SMOOTHINGS)
    measured = [(record.round, value_of(record, metric)) for record in records]
    points = [(round, sign * value) for round, value in measured if value is not None]
    rounds = [round for round, _ in points]
    smoothed = SMOOTHINGS[smoothing](rounds, [value for _, value in points])
    return Curve(tuple(rounds), tuple(sign * value for value in smoothed))


def value_of(record: Record, metric: str) -> float | None:
    """Return a record's metric as a number, or None if it was not measured or is not defined."""
    if metric == "stationarity":
        return stationarity(record)
    value = getattr(record, metric, None)
    if value is None:
        value = (record.metrics or {}).get(metric)
    if value is None and metric.startswith(VALIDATION):
        value = (record.validation_metrics or {}).get(metric.removeprefix(VALIDATION))
    if value is None and metric.startswith(CLIENTS):
        name, _, figure = metric.removeprefix(CLIENTS).rpartition("_")
        value = (record.client_metrics or {}).get(name, {}).get(figure)
    return None if value is None else float(value)


def rounds_to(
    records: Sequence[Record], target: float, smoothing: str = "raw", metric: str = "accuracy"
) -> int | None:
    """Return the first round at or beyond the target; a loss or an error must fall to it."""
    require(is_finite(target), "rounds_to", "a finite number as target", target)
    line = curve(records, metric, smoothing)
    sign = 1 if rises(metric, records) else -1
    points = zip(line.rounds, line.values, strict=True)
    return next((round for round, value in points if sign * value >= sign * target), None)


def cumulative(records: Sequence[Record], cost: str) -> list[float]:
    """Return what the run had cost after each of its rounds.

    "bytes" are those up and down, "all_seconds" those of training and of evaluation.
    """
    require_choice("cumulative", "cost", cost, COSTS)
    names = ("bytes_up", "bytes_down") if cost == "bytes" else (cost,)
    spent = [[getattr(record, name) for name in names] for record in records]
    timed = all(None not in each for each in spent)
    require(timed, "cumulative", f"records with {cost}", None, "run with a fleet to have a clock")
    return [float(total) for total in accumulate(sum(each) for each in spent)]


def cost_to(
    records: Sequence[Record],
    target: float,
    cost: str,
    smoothing: str = "raw",
    metric: str = "accuracy",
) -> float | None:
    """Return the cost up to the end of the round that reached the target, or None."""
    spent = cumulative(records, cost)
    reached = rounds_to(records, target, smoothing, metric)
    done = zip(records, spent, strict=True)
    return next((total for record, total in done if record.round == reached), None)


def at_round(
    records: Sequence[Record], round: int, smoothing: str = "raw", metric: str = "accuracy"
) -> float | None:
    """Return the value of the last evaluation up to that round, or None."""
    require(is_whole(round), "at_round", "a whole number as round", round)
    line = curve(records, metric, smoothing)
    values = [value for at, value in zip(line.rounds, line.values, strict=True) if at <= round]
    return values[-1] if values else None


def best(records: Sequence[Record], metric: str = "accuracy") -> float | None:
    """Return the largest value, or the smallest of a loss or an error; None if never measured."""
    values = curve(records, metric, "best").values
    return values[-1] if values else None


def last(records: Sequence[Record], count: int = 10, metric: str = "accuracy") -> float | None:
    """Return the mean over the last `count` rounds up to the last evaluation, None without one."""
    require(is_whole(count) and count >= 1, "last", "count >= 1, a whole number", count)
    line = curve(records, metric)
    means = _means_by_round(line.rounds, line.values, count)
    return means[-1] if means else None


def variation(records: Sequence[Record], size: int = 10) -> float | None:
    """Return the mean squared distance of accuracy from its moving average, in percentage points.

    The moving average is that of `window`. FedACG reports 2.26 for itself and 10.30 for FedAvgM,
    perhaps with another average.
    """
    require(is_whole(size) and size >= 1, "variation", "size >= 1, a whole number", size)
    line = curve(records)
    averages = _means_by_round(line.rounds, line.values, size)
    apart = [(100 * (v - a)) ** 2 for v, a in zip(line.values, averages, strict=True)]
    return math.fsum(apart) / len(apart) if apart else None


def stationarity(record: Record) -> float | None:
    """Return NET-FLEET's ||grad f(mean x)||^2 + (1/m) sum_i ||x_i - mean x||^2, or None.

    Peers measure the gradient only with `EvaluationOptions(gradient_norm=True)`.
    """
    gradient, consensus = (getattr(record, name, None) for name in ("gradient_norm", "consensus"))
    return None if gradient is None or consensus is None else float(gradient**2 + consensus)


def over_clients(values: Sequence[float], *, lower: bool) -> dict[str, float]:
    """Return how a metric spreads over clients: one that is NaN, not defined, is counted alone.

    `worst` is the mean of the worst tenth of the clients, of one client at least; `lower` says that
    less is better.
    """
    known = np.sort([value for value in values if not math.isnan(value)])
    undefined = len(values) - len(known)
    if not len(known):
        return {"clients": 0, "undefined": undefined}
    tenth = math.ceil(len(known) / 10)
    worst = known[-tenth:] if lower else known[:tenth]
    return {
        "mean": float(known.mean()),
        "std": float(known.std()),
        "worst": float(worst.mean()),
        "clients": len(known),
        "undefined": undefined,
    }


def spread(values: Sequence[float]) -> Spread:
    """Return mean and standard deviation of one value per seed."""
    require(len(values) > 0, "spread", "at least one value", list(values))
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), std)
