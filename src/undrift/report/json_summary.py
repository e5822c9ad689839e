"""The figures of trials that tables and `--json` show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from undrift.config.experiment import Experiment
from undrift.report.collect import cell_of
from undrift.results.metrics import curve, measured, rounds_to, spread
from undrift.results.trial import Trial, mean_reached

PEER_FIGURES = ("node_accuracy", "consensus", "bits", "sign_matching")


def peer_figures(seeds: Sequence[Trial]) -> dict[str, float]:
    """Return the means over seeds of what only peers record, over their last ten rounds."""
    values = {key: [trial.recent(key) for trial in seeds] for key in PEER_FIGURES}
    return {
        key: float(np.mean([value for value in recent if value is not None]))
        for key, recent in values.items()
        if any(value is not None for value in recent)
    }


def trial_summary(trial: Trial, smoothing: str = "raw") -> dict[str, Any]:
    """Return what `--json` prints of a single trial; its accuracy is that of the last test.

    Loss and accuracy are smoothed, and the summary says how, unless the smoothing is raw.
    """
    loss, accuracy, validation = (
        next(reversed(curve(trial.records, metric, smoothing).values), None)
        for metric in ("loss", "accuracy", "validation_accuracy")
    )
    up, down = trial.total("bytes_up"), trial.total("bytes_down")
    return {
        "method": trial.method,
        "seed": trial.seed,
        "status": trial.status,
        "round": trial.records[-1].round if trial.records else 0,
        "loss": loss,
        "accuracy": accuracy,
        **({} if validation is None else {"validation_accuracy": validation}),
        **_last_metrics(trial, smoothing),
        **_smoothing(smoothing),
        "bytes_up": round(up),
        "bytes_down": round(down),
        "bytes": round(up + down),
        "gradients": round(trial.total("gradients")),
        "seconds": trial.total("seconds"),
        "evaluation_seconds": trial.total("evaluation_seconds"),
        "simulated_seconds": trial.total("simulated_seconds") or None,
        "reason": trial.reason,
        **peer_figures([trial]),
        "model_sha256": trial.model_sha256,
    }


def _last_metrics(trial: Trial, smoothing: str) -> dict[str, Any]:
    """Return the metrics of the last test, nothing without any."""
    found = {
        name: next(reversed(curve(trial.records, name, smoothing).values), None)
        for name in metrics_of([trial])
    }
    return {"metrics": found} if found else {}


def comparison_summary(
    methods: Mapping[str, Sequence[Trial]], experiment: Experiment
) -> dict[str, Any]:
    """Return what `--json` prints of several methods: each one's figures over its seeds."""
    return {title: _figures(seeds, experiment) for title, seeds in methods.items()}


def _figures(seeds: Sequence[Trial], experiment: Experiment) -> dict[str, Any]:
    evaluation, smoothing = experiment.evaluation, experiment.evaluation.smoothing
    (first_target, *_) = evaluation.target
    return {
        "lr": str(seeds[0].settings.get("lr")),
        "cell": dict(cell_of(seeds[0])),
        "status": [trial.status for trial in seeds],
        **_accuracies(seeds, smoothing),
        **_metrics(seeds, smoothing),
        **_validation(seeds, smoothing),
        **_smoothing(smoothing),
        **peer_figures(seeds),
        "rounds_to_target": [rounds_to(trial.records, first_target, smoothing) for trial in seeds],
        "bytes": [round(trial.megabytes * 1e6) for trial in seeds],
        "gradients": [trial.total("gradients") for trial in seeds],
        "seconds": [trial.total("seconds") for trial in seeds],
        "evaluation_seconds": [trial.total("evaluation_seconds") for trial in seeds],
        "simulated_seconds": [trial.total("simulated_seconds") for trial in seeds],
        "model_sha256": [trial.model_sha256 for trial in seeds],
    }


def _accuracies(seeds: Sequence[Trial], smoothing: str) -> dict[str, Any]:
    """Return the accuracies of a method's seeds, None where it does not classify."""
    if any(t.records for t in seeds) and all(t.reached(smoothing) is None for t in seeds):
        return {"accuracy": None, "accuracy_std": None, "accuracies": [None] * len(seeds)}
    reached = [t.reached(smoothing) or 0.0 for t in seeds if t.status == "finished"]
    return {
        "accuracy": mean_reached(seeds, smoothing),
        "accuracy_std": spread(reached).std if len(reached) > 1 else None,
        "accuracies": [trial.reached(smoothing) or 0.0 for trial in seeds],
    }


def _metrics(seeds: Sequence[Trial], smoothing: str) -> dict[str, Any]:
    """Return the metrics besides accuracy with a value for each seed, nothing without any."""
    names = metrics_of(seeds)
    values = {name: [trial.reached(smoothing, name) for trial in seeds] for name in names}
    return {"metrics": values} if values else {}


def metrics_of(trials: Sequence[Trial]) -> list[str]:
    """Return the names of the metrics that trials have besides loss and accuracy."""
    return measured([record for trial in trials for record in trial.records])


def _smoothing(smoothing: str) -> dict[str, str]:
    """Return how figures were smoothed, nothing if they were not."""
    return {} if smoothing == "raw" else {"smoothing": smoothing}


def _validation(seeds: Sequence[Trial], smoothing: str) -> dict[str, float]:
    """Return the mean accuracy on validation samples, nothing where it was not measured."""
    metric = "validation_accuracy"
    if all(trial.recent(metric) is None for trial in seeds):
        return {}
    return {metric: mean_reached(seeds, smoothing, metric)}
