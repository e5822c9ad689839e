"""Stopping a run that no longer becomes better, and the best model that it had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from undrift.check import is_finite, is_whole, require, require_choice
from undrift.engine.settings import BestModel
from undrift.results.metrics import METRICS, primary, rises, value_of
from undrift.results.record import CLIENTS, VALIDATION, Record


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

    def check(
        self, metrics: Sequence[str], *, labels: bool, validated: bool, over_clients: bool
    ) -> None:
        """Raise a ValueError if no test of the run measures what is compared.

        `metrics` are the names of the run's own; `labels` says whether accuracy is measured. The
        figures over clients are known only when they are measured.
        """
        if self.metric is None or (over_clients and self.metric.startswith(CLIENTS)):
            return
        plain = ["loss", *(["accuracy"] if labels else []), *metrics]
        held_out = [f"{VALIDATION}{name}" for name in plain]
        missing = self.metric in held_out and not validated
        expected, remedy = f"validation samples for {self.metric}", "give the clients some"
        require(not missing, "EarlyStopping", expected, None, remedy)
        known = [*plain, *held_out] if validated else plain
        if self.metric not in METRICS or self.metric.endswith("accuracy"):
            require_choice("EarlyStopping", "metric", self.metric, known)


class BestWatch:
    """Compares the tests of a run: `best` is the best so far, which counts the tests since.

    A run that goes on from a checkpoint begins with the best that it had, if that is of the rule's
    metric.
    """

    def __init__(self, rule: EarlyStopping, best: BestModel | None = None) -> None:
        self.rule = rule
        comparable = best is not None and rule.metric in (None, best.metric)
        self.best: BestModel | None = best if comparable else None

    @property
    def over(self) -> bool:
        """Return whether as many tests were no better as the rule has patience for."""
        return self.best is not None and self.best.stale >= self.rule.patience

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
            self.best = BestModel(record.round, metric, value, x().clone())
            return False
        self.best = self.best._replace(stale=self.best.stale + 1)
        return self.over

    @staticmethod
    def _metric(records: Sequence[Record]) -> str:
        metric = primary(records)
        validated = any(value_of(record, f"{VALIDATION}{metric}") is not None for record in records)
        return f"{VALIDATION}{metric}" if validated else metric
