"""`undrift report`: the page of one or several folders of results, or their figures."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undrift.check import require
from undrift.cli.options import JsonOption
from undrift.results.strictjson import dumps

if TYPE_CHECKING:
    from undrift.results.trial import Trial
    from undrift.runs.result import ExperimentResult


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of results.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; default: report.html in the first folder.")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also PNG and PDF of the curves, for a paper.")
    ] = False,
    cells: Annotated[
        bool, typer.Option("--all", help="All cells of a sweep, not each method's best.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the page that a colleague can open, and the table; nothing is run.

    Examples: undrift report runs/demo --figures; undrift report runs/mine runs/theirs
    """
    from undrift import report as pages
    from undrift.report.json_summary import comparison_summary
    from undrift.report.terminal import print_paired, print_table, say, wide_console, with_paired
    from undrift.report.terminal_table import methods_table
    from undrift.results.filenames import FIGURES, REPORT
    from undrift.results.trial import by_label
    from undrift.runs.folder import read

    needs_out = len(folders) > 1 and out is None
    require(not needs_out, "report", "--out for a page of several folders", "none", "name a file")
    results = [read(folder) for folder in folders]
    trials, first = _labelled(results, cells=cells), results[0]
    methods = by_label(trials)
    comparison = first.comparison(trials)
    if len(results) > 1:  # Differences are within a folder, whose methods have the same seeds.
        comparison = replace(comparison, paired=None)
    if first.experiment is not None:
        console = wide_console(stderr=as_json)
        print_table(methods_table(methods, first.experiment.evaluation), console)
        if comparison.paired is not None:
            print_paired(comparison.paired, console)
    path = out or folders[0] / REPORT
    pages.write(comparison, path)
    say(f"Report: {path}")
    if figures:
        for figure in pages.figures(comparison, path.parent / FIGURES):
            say(f"Figure: {figure}")
    if as_json and first.experiment is not None:
        summary = comparison_summary(methods, first.experiment)
        print(dumps(with_paired(summary, comparison.paired)))


def _labelled(results: "list[ExperimentResult]", *, cells: bool) -> "list[Trial]":
    """Return the trials of all folders, each label with the name of its folder if needed."""
    from undrift.report.collect import best_trials

    trials = []
    for result in results:
        shown = list(result.trials) if cells else best_trials(result.trials, result.smoothing)
        suffix = f" ({_folder_name(result.folder, results)})" if len(results) > 1 else ""
        trials += [replace(trial, label=trial.label + suffix) for trial in shown]
    return trials


def _folder_name(folder: Path, results: "list[ExperimentResult]") -> str:
    """Return the folder's name, or its whole path if another folder has the same name."""
    names = [result.folder.resolve().name for result in results]
    own = folder.resolve().name
    return own if names.count(own) == 1 else str(folder)
