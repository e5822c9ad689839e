"""Trials by method and cell, and the words that a report has for them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from undrift.config.experiment import Experiment
from undrift.config.hyperparameters import METHODS
from undrift.report.catalogue import citation
from undrift.results.statistics import count_text
from undrift.results.trial import CellScore, Trial, by_label


def by_method(trials: Sequence[Trial]) -> dict[str, dict[str, list[Trial]]]:
    """Return the trials by method, then by cell of the sweep, each a list of seeds."""
    methods: dict[str, dict[str, list[Trial]]] = {}
    for label, seeds in by_label(trials).items():
        methods.setdefault(seeds[0].facts.get("title", label), {})[label] = seeds
    return methods


def best_cells(trials: Sequence[Trial], smoothing: str = "raw") -> dict[str, list[Trial]]:
    """Return for each method the seeds of the cell with the highest score."""
    score = CellScore.of(trials, smoothing)
    return {title: max(cells.values(), key=score) for title, cells in by_method(trials).items()}


def best_trials(trials: Sequence[Trial], smoothing: str = "raw") -> list[Trial]:
    """Return the trials of each method's best cell, labelled with the method's name alone."""
    return [
        replace(trial, label=title)
        for title, seeds in best_cells(trials, smoothing).items()
        for trial in seeds
    ]


def cell_of(trial: Trial) -> Mapping[str, Any]:
    """Return what a sweep has set for a trial: field -> value."""
    cell: Mapping[str, Any] = trial.facts.get("cell", {})
    return cell


def cell_text(trial: Trial) -> str:
    """Return a trial's cell as text, such as `lr=0.1, mu=1.0`."""
    return ", ".join(f"{path.rpartition('.')[2]}={v}" for path, v in cell_of(trial).items())


def left_out(methods: Mapping[str, Sequence[Trial]]) -> list[str]:
    """Return a sentence for each method of which updates were dropped or rounds were void."""
    sentences = []
    for label, seeds in methods.items():
        uploads = rounds = void = 0
        clients: set[tuple[int, str]] = set()
        for trial in seeds:
            for record in trial.records:
                rounds, void = rounds + 1, void + (record.clients == 0)
                uploads += len(record.dropped or ())
                clients |= {(trial.seed, client) for client in record.dropped or ()}
        parts = []
        if uploads:
            many = count_text(uploads, "update"), count_text(len(clients), "client")
            parts.append(f"dropped {many[0]} of {many[1]}")
        if void:
            parts.append(
                f"{void} of {count_text(rounds, 'round')} void: fewer clients answered than the "
                "round needs, so the model stayed as it was"
            )
        if parts:
            sentences.append(f"{label}: {'; '.join(parts)}.")
    return sentences


def title_of(experiment: Experiment | None, folder: Path) -> str:
    """Return the title of plots and pages: the experiment's own, its data, or the folder's name."""
    if experiment is None:
        return folder.name
    clients = experiment.data.clients
    return experiment.title or f"{experiment.data.title}{f', {clients} clients' if clients else ''}"


def method_notes(
    experiment: Experiment, shown: Sequence[Trial], every_trial: Sequence[Trial]
) -> dict[str, str]:
    """Return by label what the method is, its paper, and of how many cells it is the best."""
    classes = {method.title: METHODS.get(method.name) for method in experiment.methods}
    cells = by_method(every_trial)
    score = CellScore.of(every_trial, experiment.evaluation.smoothing)
    chosen = f", by {score.name}" if score.validated else ""
    notes = {}
    for trial in shown:
        title = trial.facts.get("title", trial.label)
        cls, tried = classes.get(title), len(cells.get(title, {}))
        parts = [] if cls is None else [*(inspect.getdoc(cls) or "").splitlines()[:1]]
        parts += [] if cls is None else [citation(cls)]
        shown_at = f"Shown at {cell_text(trial)}, the best of {tried} cells{chosen}."
        parts += [shown_at] if tried > 1 else []
        notes[trial.label] = " ".join(f"{part.removesuffix('.')}." for part in parts if part)
    return notes
