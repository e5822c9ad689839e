"""From a folder of results to the page and figures that a colleague reads."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.config.experiment import Data, Experiment
from undrift.report import Comparison
from undrift.report.catalogue import citation
from undrift.results.trial import Trial, by_label, write_result
from undrift.runs.build import dataset, deal, label_counts
from undrift.runs.folder import DEALT, EXPERIMENT, Results, repeat

MOST_CLIENTS = 1000  # of a heat map that can still be read


def keep_partition(folder: Path, data: Data, seed: int) -> None:
    """Write who holds what, so that a report needs no data."""
    clients = deal(data, seed)
    if len(clients) > MOST_CLIENTS:
        return
    source = dataset(data.name, data.folder)
    told = {
        "labels": list(source.labels or map(str, range(source.classes))),
        "samples": label_counts(clients, source.classes).tolist(),
    }
    write_result(folder / DEALT, json.dumps(told) + "\n")


def comparison_of(results: Results, trials: Sequence[Trial]) -> Comparison:
    """What the page shows of a folder: these trials, each under its method's name."""
    experiment = results.experiment
    counts, labels = _dealt(results.folder)
    damaged = sum(trial.damaged for trial in results.trials)
    path = results.folder / EXPERIMENT
    return Comparison(
        title=title_of(experiment, results.folder),
        trials=trials,
        target=None if experiment is None else experiment.evaluation.target,
        command="" if experiment is None else repeat(results.folder),
        experiment=path.read_text(encoding="utf-8") if path.is_file() else "",
        environment=results.environment,
        notes=_notes(experiment, trials, by_method(results.trials)),
        partition=counts,
        labels=labels,
        warnings=[f"{damaged} damaged lines of records were left out."] if damaged else [],
    )


def by_method(trials: Sequence[Trial]) -> dict[str, dict[str, list[Trial]]]:
    """By method, then by cell of the sweep."""
    methods: dict[str, dict[str, list[Trial]]] = {}
    for label, seeds in by_label(trials).items():
        methods.setdefault(seeds[0].facts.get("title", label), {})[label] = seeds
    return methods


def mean_last(seeds: Sequence[Trial]) -> float:
    """Mean over seeds; a run that diverged counts as nothing learned."""
    return float(np.mean([t.last if t.status == "finished" else 0.0 for t in seeds]))


def best_cells(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Each method at the best of its cells."""
    return {title: max(cells.values(), key=mean_last) for title, cells in by_method(trials).items()}


def chosen_of(trials: Sequence[Trial]) -> list[Trial]:
    """Each method at the best of its cells, under its own name."""
    return [
        replace(trial, label=title)
        for title, seeds in best_cells(trials).items()
        for trial in seeds
    ]


def cell_of(trial: Trial) -> Mapping[str, Any]:
    """What a sweep has set for a trial."""
    found: Mapping[str, Any] = trial.facts.get("cell", {})
    return found


def cell_text(trial: Trial) -> str:
    return ", ".join(f"{path.rpartition('.')[2]}={v}" for path, v in cell_of(trial).items())


def title_of(experiment: Experiment | None, folder: Path) -> str:
    if experiment is None:
        return folder.name
    clients = experiment.data.clients
    return experiment.title or f"{experiment.data.name}{f', {clients} clients' if clients else ''}"


def _notes(
    experiment: Experiment | None,
    trials: Sequence[Trial],
    cells: Mapping[str, Mapping[str, Sequence[Trial]]],
) -> dict[str, str]:
    """By label: what the method is, where it is from, and of which cells it is the best."""
    if experiment is None:
        return {}
    about = {method.title: method.cls for method in experiment.methods}
    notes = {}
    for trial in trials:
        title = trial.facts.get("title", trial.label)
        cls = about.get(title)
        said = [] if cls is None else [*(inspect.getdoc(cls) or "").splitlines()[:1], citation(cls)]
        tried = len(cells.get(title, {}))
        at = f"Shown at {cell_text(trial)}, the best of {tried} cells." if tried > 1 else ""
        notes[trial.label] = " ".join(f"{part.removesuffix('.')}." for part in (*said, at) if part)
    return notes


def _dealt(folder: Path) -> tuple[NDArray[np.int64] | None, Sequence[str]]:
    path = folder / DEALT
    if not path.is_file():
        return None, ()
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return np.array(told["samples"], dtype=np.int64), tuple(told["labels"])
    except (ValueError, KeyError, TypeError):
        return None, ()
