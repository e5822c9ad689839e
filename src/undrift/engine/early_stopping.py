"""Stopping a run that no longer becomes better, and the best model that it had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from undrift.check import is_finite, is_whole, require
from undrift.core import Vector
from undrift.results.metrics import primary, rises, value_of
from undrift.results.record import VALIDATION, Record


@dataclass(frozen=True)
class EarlyStopping:
    """Stops a run after so many tests without a better one, and keeps the best model.

    patience: tests in a row that may be no better than the best.
    metric: what is compared, such as "rmse", "loss" or "validation_accuracy"; by default what
        stands for the run (docs/tasks.md), on validation samples where there are some.
    min_delta: by how much a test must be better to count.
    """

    patience: int = 10
    metric: str | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        patient = is_whole(self.patience) and self.patience >= 1
        require(patient, "EarlyStopping", "patience >= 1, a whole number of tests", self.patience)
        sound = is_finite(self.min_delta) and self.min_delta >= 0
        require(sound, "EarlyStopping", "min_delta >= 0", self.min_delta)

    @classmethod
    def of(cls, value: EarlyStopping | int) -> EarlyStopping:
        """Return the rule that a user has given, perhaps as its patience alone."""
        if isinstance(value, EarlyStopping):
            return value
        expected = "a number of tests, or EarlyStopping(patience=10, metric='loss')"
        require(is_whole(value), "early_stopping", expected, value)
        return cls(value)


class BestModel(NamedTuple):
    """Holds the best model of a run so far."""

    round: int
    metric: str
    value: float
    x: Vector


class BestWatch:
    """Compares the tests of a run: `best` is the best so far, `stale` counts the tests since."""

    def __init__(self, rule: EarlyStopping) -> None:
        self.rule = rule
        self.best: BestModel | None = None
        self.stale = 0

    def add(self, records: Sequence[Record], x: Any) -> bool:
        """Take the last record and a function that returns its model; return whether to stop."""
        record = records[-1]
        metric = self.rule.metric or self._metric(records)
        rising = rises(metric, records)  # It raises for a metric that the run does not have.
        value = value_of(record, metric)
        if value is None:
            return False
        sign = 1 if rising else -1
        if self.best is None or sign * (value - self.best.value) > self.rule.min_delta:
            self.best, self.stale = BestModel(record.round, metric, value, x().clone()), 0
            return False
        self.stale += 1
        return self.stale >= self.rule.patience

    @staticmethod
    def _metric(records: Sequence[Record]) -> str:
        metric = primary(records)
        validated = any(value_of(record, f"{VALIDATION}{metric}") is not None for record in records)
        return f"{VALIDATION}{metric}" if validated else metric
