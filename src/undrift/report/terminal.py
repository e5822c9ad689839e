"""The command prints here what came of an experiment: the sweep, the table, where files are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from undrift.config.experiment import Experiment
from undrift.errors import import_or_none
from undrift.report import plots
from undrift.report.collect import best_cells, by_method, cell_text, title_of
from undrift.report.comparison import Comparison
from undrift.report.html import write
from undrift.report.json_summary import comparison_summary, trial_summary
from undrift.report.paired import PairedComparison
from undrift.report.sweep_heatmap import grids, plot_grids
from undrift.report.terminal_table import WIDTH, ResultsTable, results_table
from undrift.results.filenames import CURVES, REPORT
from undrift.results.strictjson import dumps
from undrift.results.trial import CellScore, Trial

Cells = Mapping[str, Sequence[Trial]]  # the seeds of each cell, by label
MOST_CELLS = 10  # A table with a column for each cell has at most so many.


def wide_console(*, stderr: bool = False) -> Console:
    """Return a console for tables: as wide as the terminal, or wide if there is no terminal."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH)


def say(text: str, console: Console | None = None) -> None:
    """Print a sentence as it is, by default to stderr."""
    (console or Console(stderr=True)).print(text, highlight=False, markup=False)


def say_missing(what: str, package: str, console: Console | None = None) -> None:
    """Print that there is no plot, page or picture, because a package is not installed."""
    say(f"No {what}: {package} is not installed; pip install 'undrift[report]'.", console)


def print_table(table: ResultsTable, console: Console) -> None:
    """Print the table of results and what its first figure is."""
    console.print(table.rich())
    if table.note:
        console.print(table.note, style="dim")


def print_paired(paired: PairedComparison, console: Console) -> None:
    """Print every cell that was tried, the differences between methods and what was shown."""
    print_table(paired.tried_table(), console)
    print_table(paired.table(), console)
    for sentence in paired.findings:
        say(sentence, console)
    for remark in paired.remarks:
        console.print(remark, style="dim", highlight=False, markup=False)


def with_paired(summary: dict[str, Any], paired: PairedComparison | None) -> dict[str, Any]:
    """Return what `--json` prints of methods, with their differences if they were tuned."""
    if paired is None:
        return summary
    added = paired.summary()
    titles = dict.fromkeys([*summary, *added])
    return {title: {**summary.get(title, {}), **added.get(title, {})} for title in titles}


def print_results(
    trials: Sequence[Trial],
    experiment: Experiment,
    folder: Path,
    comparison: Comparison,
    *,
    as_json: bool = False,
) -> None:
    """Print the tables of an experiment, write its plots and its page, and print the JSON last.

    `comparison` is what the page shows. Tables go to stderr if stdout is for the JSON.
    """
    console, smoothing = wide_console(stderr=as_json), experiment.evaluation.smoothing
    if not experiment.sweep.empty:
        _print_sweep(trials, experiment, folder, console)
    print_table(results_table(trials, experiment), console)
    if comparison.paired is not None:
        print_paired(comparison.paired, console)
    if any(trial.records for trial in trials):
        _plot_curves(best_cells(trials, smoothing), folder, title_of(experiment, folder))
        _write_page(comparison, folder / REPORT)
    say(f"Records and plots: {folder}", console)
    if as_json:
        single = len(trials) == 1 and experiment.sweep.empty
        if single:
            print(dumps(trial_summary(trials[0], smoothing)))
        else:
            summary = comparison_summary(best_cells(trials, smoothing), experiment)
            print(dumps(with_paired(summary, comparison.paired)))


def _plot_curves(methods: Cells, folder: Path, title: str) -> None:
    seeds = {name: [t.records for t in trials if t.records] for name, trials in methods.items()}
    runs = {name: records for name, records in seeds.items() if records}
    if not plots.curves(runs, folder / CURVES, title):
        say_missing("plot", "matplotlib")


def _write_page(comparison: Comparison, path: Path) -> None:
    if import_or_none("jinja2") is None:
        say_missing("report", "jinja2")
        return
    write(comparison, path)
    say(f"Report: {path}")


def _print_sweep(
    trials: Sequence[Trial], experiment: Experiment, folder: Path, console: Console
) -> None:
    """Print the score of each method in each cell; two swept fields give heat maps.

    It is the one by which cells are chosen: on validation samples where these were measured.
    """
    methods, score = by_method(trials), CellScore.of(trials, experiment.evaluation.smoothing)
    if all(len(cells) == 1 for cells in methods.values()):
        return
    maps = grids(methods, experiment.sweep, score)
    mapped = {each.method for each in maps}
    rest = {title: cells for title, cells in methods.items() if title not in mapped}
    if any(len(cells) > 1 for cells in rest.values()):
        many = len(_headings(rest)) > MOST_CELLS
        console.print(_best_cells_table(rest, score) if many else _cells_table(rest, score))
    for each in maps:
        console.print(each.table())
    for path in plot_grids(maps, folder):
        say(f"Heat map: {path}")


def _best_cells_table(methods: Mapping[str, Cells], score: CellScore) -> Table:
    """Return the best cells of each method, a row each."""
    table = Table("method", "cell", score.heading, title=f"The best {MOST_CELLS} cells of each")
    for title, cells in methods.items():
        ranked = sorted(cells.values(), key=score, reverse=True)[:MOST_CELLS]
        for i, seeds in enumerate(ranked):
            row = "" if i else title, _heading(seeds[0]), score.text(seeds)
            table.add_row(*map(Text, row))
        table.add_section()
    return table


def _cells_table(methods: Mapping[str, Cells], score: CellScore) -> Table:
    """Return a row for each method and a column for each cell."""
    columns = _headings(methods)
    table = Table(
        "method",
        *map(escape, columns),
        title=f"{score.heading[0].upper()}{score.heading[1:]}, * the best",
    )
    for title, cells in methods.items():
        best = max(cells.values(), key=score)
        by_heading = {_heading(seeds[0]): seeds for seeds in cells.values()}
        table.add_row(
            Text(title),
            *(
                f"{score.text(by_heading[column])}{' *' * (by_heading[column] is best)}"
                if column in by_heading
                else "-"
                for column in columns
            ),
        )
    return table


def _headings(methods: Mapping[str, Cells]) -> list[str]:
    """Return the different cells of all methods in their order."""
    headings = (_heading(seeds[0]) for cells in methods.values() for seeds in cells.values())
    return list(dict.fromkeys(headings))


def _heading(trial: Trial) -> str:
    return cell_text(trial).replace("=", " ")
