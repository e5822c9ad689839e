"""Curves by round, thinned so that results stay small files."""

from __future__ import annotations

import math

from undrift.papers.file import Paper
from undrift.results.metrics import curve
from undrift.results.trial import Trial

POINTS = 60  # of a curve
FIGURES = 5  # of a number
# Metrics of documents that are fields of records, and what a value is multiplied by.
DRAWN = {
    "accuracy": ("accuracy", 100.0),
    "last_accuracy": ("accuracy", 100.0),
    "best_accuracy": ("accuracy", 100.0),
    "sign_matching": ("sign_matching", 100.0),
    "loss": ("loss", 1.0),
    "train_loss": ("train_loss", 1.0),
    "consensus": ("consensus", 1.0),
    "cka": ("cka", 1.0),
}


def drawn_metrics(paper: Paper) -> list[str]:
    """Return the fields of records that a paper prints or makes claims about, accuracy always."""
    named = [*(cell.quantity.metric for cell in paper.cells), *(c.metric for c in paper.claims)]
    found = [DRAWN[name][0] for name in named if name in DRAWN]
    return list(dict.fromkeys([*found, "accuracy"]))


def thin_curves(paper: Paper, trial: Trial, smoothing: str) -> dict[str, list[list[float]]]:
    """Return rounds and values of a trial's curves, smoothed as the document's numbers are."""
    scales = dict(DRAWN.values())
    found: dict[str, list[list[float]]] = {}
    for name in drawn_metrics(paper):
        line = curve(trial.records, name, smoothing)
        points = [
            (round, float(f"{scales[name] * value:.{FIGURES}g}"))
            for round, value in zip(line.rounds, line.values, strict=True)
            if math.isfinite(value)
        ]
        if points:
            kept = [points[place] for place in thinned(len(points))]
            found[name] = [[round for round, _ in kept], [value for _, value in kept]]
    return found


def thinned(count: int, most: int = POINTS) -> list[int]:
    """Return at most so many places of a list, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]
