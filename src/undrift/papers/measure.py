"""Quantities that documents print are read off the records of trials here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from undrift.papers.quantity import Quantity, Value
from undrift.results import metrics
from undrift.results.trial import Trial

_COSTS = {  # quantity -> the cost of `metrics.cost_to`, and its unit
    "megabytes_to": ("bytes", 1e6),
    "gradients_to": ("gradients", 1.0),
    "seconds_to": ("seconds", 1.0),
    "simulated_to": ("simulated_seconds", 1.0),
}


def measure(trial: Trial, quantity: Quantity, smoothing: str) -> Value | None:
    """Return the quantity's value in a trial, or None if the trial did not measure it."""
    if trial.status == "diverged":
        return Value(math.nan)
    if trial.status != "finished" or not trial.records:
        return None
    if quantity.target is not None:
        return _to_target(trial, quantity, quantity.target, smoothing)
    value = _plain(trial, quantity, smoothing)
    return None if value is None else Value(value)


def _to_target(trial: Trial, quantity: Quantity, target: float, smoothing: str) -> Value | None:
    if quantity.metric == "rounds":
        reached = metrics.rounds_to(trial.records, target, smoothing)
        return Value(trial.rounds, beyond=True) if reached is None else Value(reached)
    cost, unit = _COSTS[quantity.metric]
    if cost == "simulated_seconds" and trial.records[0].simulated_seconds is None:
        return None
    spent = metrics.cost_to(trial.records, target, cost, smoothing)
    if spent is not None:
        return Value(spent / unit)
    return Value(metrics.cumulative(trial.records, cost)[-1] / unit, beyond=True)


def _plain(trial: Trial, quantity: Quantity, smoothing: str) -> float | None:
    records, at = trial.records, quantity.at or trial.rounds
    name = quantity.metric
    if name == "accuracy":
        return _percent(metrics.at_round(records, at, smoothing))
    if name == "last_accuracy":
        return _percent(metrics.last(records))
    if name == "best_accuracy":
        return _percent(metrics.best(records))
    if name == "sign_matching":
        return _percent(trial.recent("sign_matching"))
    if name == "variation":
        return metrics.variation(records)
    if name in ("seconds_round", "megabytes_round"):
        total = trial.total("seconds") if name == "seconds_round" else trial.megabytes
        return total / len(records)
    if name in ("gradients", "simulated_seconds"):
        return trial.total(name)
    if name == "divergence":
        recent = trial.facts.get("drift", {}).get("divergence")
        return None if recent is None else float(recent)
    if name == "megabytes":
        return trial.megabytes
    return _last_of(records, name, at)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _last_of(records: Sequence[object], name: str, at: int) -> float | None:
    """Return a record's field at the last round up to `at` that has it."""
    values = [
        value
        for record in records
        if getattr(record, "round", 0) <= at and (value := getattr(record, name, None)) is not None
    ]
    return float(values[-1]) if values else None
