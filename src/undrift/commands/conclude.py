"""What is shown after the last round: the grid, the table, the plot, the report, the JSON."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from undrift import show
from undrift.commands.conduct import Conducted
from undrift.experiment import Experiment
from undrift.folder import REPORT, read
from undrift.heat import grids, plot_grids
from undrift.metrics import rounds_to
from undrift.report import write
from undrift.reporting import best_cells, by_method, chosen_of, comparison_of, mean_last
from undrift.result import Trial

Cells = Mapping[str, Sequence[Trial]]  # by label: one per seed
MOST_COLUMNS = 10


def conclude(conducted: Conducted, *, as_json: bool) -> None:
    """Print and write what came of it, by the process that does so."""
    if not conducted.head or not any(trial.records for trial in conducted.trials):
        return
    trials = [trial for trial in conducted.trials if trial.records]
    experiment, folder = conducted.experiment, conducted.folder
    console = show.paper(stderr=as_json)
    err = Console(stderr=True)
    chosen = best_cells(trials)
    swept = not experiment.sweep.empty
    if swept:
        _cells(by_method(trials), experiment, folder, console)
    extra = {title: cell_text(seeds[0]) for title, seeds in chosen.items()} if swept else None
    show.table(chosen, experiment.evaluation, console, extra=extra)
    show.plot(chosen, folder, err, experiment.title or _title(experiment))
    write_report(folder, err)
    console.print(f"Records and plots: {folder}", highlight=False)
    if as_json:
        one = conducted.single
        print(json.dumps(show.final(trials[0]) if one else summary(chosen, experiment)))


def _title(experiment: Experiment) -> str:
    return f"{experiment.data.name}, {experiment.data.clients} clients"


def cell_text(trial: Trial) -> str:
    cell = trial.facts.get("cell", {})
    if len(cell) == 1:
        return str(next(iter(cell.values())))
    return ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in cell.items())


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
        Console(stderr=True).print(f"Heat map: {path}", highlight=False)


def _best_first(methods: Mapping[str, Cells]) -> Table:
    """The best cells of each method, where there are too many for a column each."""
    shown = Table("method", "cell", "accuracy %", title=f"The best {MOST_COLUMNS} cells of each")
    for title, cells in methods.items():
        ranked = sorted(cells.values(), key=mean_last, reverse=True)[:MOST_COLUMNS]
        for seeds in ranked:
            shown.add_row(title, _heading(seeds[0]), f"{100 * mean_last(seeds):.2f}")
            title = ""
        shown.add_section()
    return shown


def _grid(methods: Mapping[str, Cells]) -> Table:
    columns = list(
        dict.fromkeys(_heading(seeds[0]) for cells in methods.values() for seeds in cells.values())
    )
    shown = Table("method", *columns, title="Accuracy %, * the best")
    for title, cells in methods.items():
        best = max(cells.values(), key=mean_last)
        found = {_heading(seeds[0]): seeds for seeds in cells.values()}
        shown.add_row(
            title,
            *(
                f"{100 * mean_last(found[column]):.2f}{' *' * (found[column] is best)}"
                if column in found
                else "-"
                for column in columns
            ),
        )
    return shown


def _heading(trial: Trial) -> str:
    cell = trial.facts.get("cell", {})
    return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in cell.items())


def summary(chosen: Cells, experiment: Experiment) -> dict[str, Any]:
    """What `--json` prints of several methods."""
    evaluation = experiment.evaluation
    (first, *_) = evaluation.target
    return {
        title: {
            "lr": str(seeds[0].settings.get("lr")),
            "cell": dict(seeds[0].facts.get("cell", {})),
            "accuracy": mean_last(seeds),
            **show.peer_figures(seeds),
            "rounds_to_target": [
                rounds_to(trial.records, first, evaluation.smoothing) for trial in seeds
            ],
            "bytes": [round(trial.megabytes * 1e6) for trial in seeds],
            "gradients": [trial.total("gradients") for trial in seeds],
            "seconds": [trial.total("seconds") for trial in seeds],
            "simulated_seconds": [trial.total("simulated_seconds") for trial in seeds],
            "model_sha256": [trial.model_sha256 for trial in seeds],
        }
        for title, seeds in chosen.items()
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
    console.print(f"Report: {folder / REPORT}", highlight=False)
