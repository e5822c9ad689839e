"""`undrift report`: the page of one or several folders of results, or their figures."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undrift.check import require
from undrift.cli.options import Json
from undrift.results.strictjson import dumps

if TYPE_CHECKING:
    from undrift.results.trial import Trial
    from undrift.runs.folder import Results


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
    as_json: Json = False,
) -> None:
    """Make the page that a colleague can open, and the table; nothing is run.

    Examples: undrift report runs/demo --figures; undrift report runs/mine runs/theirs
    """
    from rich.console import Console

    from undrift import report as pages
    from undrift.report import terminal
    from undrift.report.collect import comparison_of
    from undrift.report.conclude import summary
    from undrift.results.trial import by_label
    from undrift.runs.folder import FIGURES, REPORT, read

    several = len(folders) > 1 and out is None
    require(not several, "report", "--out for a page of several folders", "none", "name a file")
    found = [read(folder) for folder in folders]
    trials = _together(found, cells=cells)
    first = found[0]
    console, err = terminal.paper(stderr=as_json), Console(stderr=True)
    evaluation = first.experiment.evaluation if first.experiment else None
    shown = by_label(trials)
    if evaluation is not None:
        terminal.table(shown, evaluation, console)
    comparison = comparison_of(first, trials)
    path = out or folders[0] / REPORT
    pages.write(comparison, path)
    err.print(f"Report: {path}", highlight=False, markup=False)
    if figures:
        for figure in pages.figures(comparison, path.parent / FIGURES):
            err.print(f"Figure: {figure}", highlight=False, markup=False)
    if as_json and first.experiment is not None:
        print(dumps(summary(shown, first.experiment)))


def _together(found: "list[Results]", *, cells: bool) -> "list[Trial]":
    """Trials of all folders; of several folders, each label with its folder's name."""
    from undrift.report.collect import chosen_of

    together = []
    for results in found:
        chosen = list(results.trials) if cells else chosen_of(results.trials)
        mark = f" ({_told_apart(results.folder, found)})" if len(found) > 1 else ""
        together += [replace(trial, label=trial.label + mark) for trial in chosen]
    return together


def _told_apart(folder: Path, found: "list[Results]") -> str:
    """The folder's name, or its whole path where another has the same name."""
    names = [results.folder.resolve().name for results in found]
    own = folder.resolve().name
    return own if names.count(own) == 1 else str(folder)
