"""What is shown after the last round: the grid, the table, the plot, the report, the JSON."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from undrift.config.experiment import Experiment
from undrift.report import terminal, write
from undrift.report.collect import (
    best_cells,
    by_method,
    cell_of,
    cell_text,
    chosen_of,
    comparison_of,
    mean_last,
    title_of,
)
from undrift.report.sweep_heatmap import grids, plot_grids
from undrift.results.metrics import rounds_to, spread
from undrift.results.strictjson import dumps
from undrift.results.trial import Trial
from undrift.runs.folder import REPORT, read
from undrift.runs.runner import ExperimentResult

Cells = Mapping[str, Sequence[Trial]]  # by label: one per seed
MOST_COLUMNS = 10


def finish(conducted: ExperimentResult, *, as_json: bool) -> None:
    """Conclude, and leave as Ctrl-C does if that has ended it."""
    conclude(conducted, as_json=as_json)
    if conducted.stopped:
        raise typer.Exit(130)


def conclude(conducted: ExperimentResult, *, as_json: bool) -> None:
    """Print and write what came of it, by the process that does so."""
    if not conducted.head or not conducted.trials:
        return
    trials = conducted.trials
    experiment, folder = conducted.experiment, conducted.folder
    console = terminal.paper(stderr=as_json)
    err = Console(stderr=True)
    chosen = best_cells(trials)
    if not experiment.sweep.empty:
        _cells(by_method(trials), experiment, folder, console)
    terminal.table(chosen, experiment.evaluation, console, **_shown_at(experiment, chosen))
    if any(trial.records for trial in trials):
        drawn = {name: [t for t in seeds if t.records] for name, seeds in chosen.items()}
        named = {name: seeds for name, seeds in drawn.items() if seeds}
        terminal.plot(named, folder, err, title_of(experiment, folder))
        write_report(folder, err)
    console.print(f"Records and plots: {folder}", highlight=False, markup=False)
    if as_json:
        one = conducted.single
        print(dumps(terminal.final(trials[0]) if one else summary(chosen, experiment)))


def _shown_at(experiment: Experiment, chosen: Cells) -> dict[str, Any]:
    """The table's column of what the sweep has set, where it has set something."""
    paths = experiment.sweep.paths
    if not paths:
        return {}
    if len(paths) == 1:
        told = {t: str(next(iter(cell_of(s[0]).values()), "-")) for t, s in chosen.items()}
        return {"heading": paths[0].rpartition(".")[2], "extra": told}
    return {"heading": "at", "extra": {t: cell_text(s[0]) for t, s in chosen.items()}}


def _cells(
    methods: Mapping[str, Cells], experiment: Experiment, folder: Path, console: Console
) -> None:
    """Accuracy of each method in each cell; of two fields as heat maps."""
    if all(len(cells) == 1 for cells in methods.values()):
        return
    maps = grids(methods, experiment.sweep)
    if not maps:
        many = max(len(cells) for cells in methods.values()) > MOST_COLUMNS
        console.print(_best_first(methods) if many else _grid(methods))
        return
    for each in maps:
        console.print(each.table())
    for path in plot_grids(maps, folder):
        Console(stderr=True).print(f"Heat map: {path}", highlight=False, markup=False)


def _best_first(methods: Mapping[str, Cells]) -> Table:
    """The best cells of each method, where there are too many for a column each."""
    shown = Table("method", "cell", "accuracy %", title=f"The best {MOST_COLUMNS} cells of each")
    for title, cells in methods.items():
        ranked = sorted(cells.values(), key=mean_last, reverse=True)[:MOST_COLUMNS]
        for seeds in ranked:
            shown.add_row(Text(title), Text(_heading(seeds[0])), f"{100 * mean_last(seeds):.2f}")
            title = ""
        shown.add_section()
    return shown


def _grid(methods: Mapping[str, Cells]) -> Table:
    columns = list(
        dict.fromkeys(_heading(seeds[0]) for cells in methods.values() for seeds in cells.values())
    )
    shown = Table("method", *map(escape, columns), title="Accuracy %, * the best")
    for title, cells in methods.items():
        best = max(cells.values(), key=mean_last)
        found = {_heading(seeds[0]): seeds for seeds in cells.values()}
        shown.add_row(
            Text(title),
            *(
                f"{100 * mean_last(found[column]):.2f}{' *' * (found[column] is best)}"
                if column in found
                else "-"
                for column in columns
            ),
        )
    return shown


def _heading(trial: Trial) -> str:
    return cell_text(trial).replace("=", " ")


def summary(chosen: Cells, experiment: Experiment) -> dict[str, Any]:
    """What `--json` prints of several methods."""
    return {title: _figures(seeds, experiment) for title, seeds in chosen.items()}


def _figures(seeds: Sequence[Trial], experiment: Experiment) -> dict[str, Any]:
    evaluation = experiment.evaluation
    (first, *_) = evaluation.target
    reached = [trial.last for trial in seeds if trial.status == "finished"]
    return {
        "lr": str(seeds[0].settings.get("lr")),
        "cell": dict(cell_of(seeds[0])),
        "status": [trial.status for trial in seeds],
        "accuracy": mean_last(seeds),
        "accuracy_std": spread(reached).std if len(reached) > 1 else None,
        "accuracies": [trial.last for trial in seeds],
        **terminal.peer_figures(seeds),
        "rounds_to_target": [
            rounds_to(trial.records, first, evaluation.smoothing) for trial in seeds
        ],
        "bytes": [round(trial.megabytes * 1e6) for trial in seeds],
        "gradients": [trial.total("gradients") for trial in seeds],
        "seconds": [trial.total("seconds") for trial in seeds],
        "simulated_seconds": [trial.total("simulated_seconds") for trial in seeds],
        "model_sha256": [trial.model_sha256 for trial in seeds],
    }


def write_report(folder: Path, console: Console) -> None:
    """The page, where jinja2 is there."""
    if importlib.util.find_spec("jinja2") is None:
        console.print(
            "No report: jinja2 is not installed; pip install 'undrift[report]'.", markup=False
        )
        return
    results = read(folder)
    write(comparison_of(results, chosen_of(results.trials)), folder / REPORT)
    console.print(f"Report: {folder / REPORT}", highlight=False, markup=False)
