"""`undrift papers`: the documents' tables and figures, run, and shown beside what they print."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undrift.check import require
from undrift.cli.foreign import Command, CommandGroup
from undrift.cli.options import JobsOption, JsonOption, QuietOption
from undrift.cli.shared import signals_as_codes

if TYPE_CHECKING:
    from undrift.papers.catalogue import PaperEntry

papers_app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Run the documents' tables and figures. Example: undrift papers run fedacg/table4 --scale "
    "small",
)
NameArgument = Annotated[
    str, typer.Argument(help="DOCUMENT/ITEM, as `undrift papers list` has it.")
]
ScaleOption = Annotated[
    str, typer.Option(help="full: the document's own; small: for two cores; glance: two rounds.")
]
ResultsOption = Annotated[
    Path | None, typer.Option(help="Folder of results; default: runs/papers.")
]


PaperDataOption = Annotated[
    Path | None, typer.Option(help="Folder of data sets, in place of $UNDRIFT_DATA.")
]


@papers_app.command("list", cls=Command)
def list_papers(
    document: Annotated[str | None, typer.Argument(help="Of one document only.")] = None,
    data_dir: PaperDataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List every table and figure: what it is, how long it takes, what it needs."""
    from undrift.check import require_choice
    from undrift.papers import catalogue, listing
    from undrift.report.terminal import wide_console

    _look_into(data_dir)
    if document is not None:
        require_choice("papers list", "the document", document, catalogue.DOCUMENTS)
    found = [e for e in catalogue.entries() if document in (None, e.document)]
    papers = listing.listed(found)
    if as_json:
        print(json.dumps(papers))
    else:
        listing.print_list(papers, wide_console())


@papers_app.command("run", cls=Command)
def run_papers(
    name: NameArgument,
    scale: ScaleOption = "small",
    seeds: Annotated[
        str | None,
        typer.Option(help="Repetitions, or seeds as 10,11,12; default: what the file says."),
    ] = None,
    panel: Annotated[
        list[str] | None,
        typer.Option(help="Run this panel alone; may be repeated. Others keep their results."),
    ] = None,
    data_dir: PaperDataOption = None,
    jobs: JobsOption = None,
    out: ResultsOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace results of another version of the file.")
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Each method at its tuned step size, kept beside.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a table or figure; what an earlier start has finished is kept.

    Example: undrift papers run fedacg/table4 --scale small --seeds 3 --jobs 2
    """
    from undrift.cli.progress import ProgressBar
    from undrift.papers import catalogue
    from undrift.papers.run import run_paper
    from undrift.papers.scales import PanelRun
    from undrift.report.terminal import say

    entry, chosen = catalogue.find(name), _seeds(seeds)
    _look_into(data_dir)

    def announce(run: PanelRun, number: int, count: int) -> None:
        if not quiet:
            data = run.experiment.data.name
            instead = "" if run.stand_in is None else f" on {data}: {run.stand_in.why}"
            say(f"{number}/{count} {run.panel}{instead}")

    with signals_as_codes(), ProgressBar(quiet=quiet) as progress:
        run_paper(
            entry,
            scale,
            seeds=chosen,
            jobs=jobs,
            out=out,
            force=force,
            tune=tune,
            panels=panel or None,
            observer=progress,
            on_panel=announce,
        )
    _show(entry, scale, out, as_json=as_json)


@papers_app.command("show", cls=Command)
def show_paper(
    name: NameArgument,
    scale: Annotated[
        str | None,
        typer.Option(help="Results of this scale; default: the largest scale that was run."),
    ] = None,
    out: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the document's numbers and ours side by side, and which of its claims came out.

    Results are those of `undrift papers run` below the current folder, or else the package's, those
    at the printed and at the tuned step sizes each; yours come first.
    """
    from undrift.papers import catalogue

    _show(catalogue.find(name), scale, out, as_json=as_json)


@papers_app.command("pages", cls=Command)
def write_pages(
    out: Annotated[Path, typer.Option(help="Folder of the pages.")] = Path("docs/papers"),
    readme: Annotated[
        Path | None, typer.Option(help="File whose table of headline claims is replaced.")
    ] = None,
) -> None:
    """Write a page for each document from the package's results: tables, claims, figures.

    Example: undrift papers pages --out docs/papers --readme README.md
    """
    from undrift.papers import pages
    from undrift.report.terminal import say

    for path in pages.write_pages(out, readme):
        say(f"wrote {path}")


def _seeds(text: str | None) -> list[int] | None:
    """Return the seeds that were asked for: so many from 0 on, or those of a list."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    whole = all(part.isascii() and part.isdigit() for part in parts)
    fits = whole and (len(parts) > 1 or int(parts[0]) >= 1)
    require(fits, "--seeds", "a number >= 1, or seeds such as 10,11,12", text)
    return [int(part) for part in parts] if len(parts) > 1 else list(range(int(parts[0])))


def _look_into(data_dir: Path | None) -> None:
    """Set the folder of data sets, for this process and for those that it starts."""
    if data_dir is None:
        return
    require(data_dir.is_dir(), "--data-dir", "a folder of data sets", str(data_dir))
    os.environ["UNDRIFT_DATA"] = str(data_dir.absolute())


def _show(entry: PaperEntry, scale: str | None, out: Path | None, *, as_json: bool) -> None:
    from undrift.papers import terminal
    from undrift.papers.find import find_sides
    from undrift.report.terminal import wide_console
    from undrift.results.strictjson import dumps

    sides = find_sides(entry, scale, out)
    terminal.print_paper(entry.paper, sides, wide_console(stderr=as_json))
    if as_json:
        print(dumps(terminal.as_json(entry, sides)))
