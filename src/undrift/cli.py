"""The command line: `undrift run`, `compare`, `sweep`, `report`, `init`, `list` and others."""

import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import undrift as ud
from undrift import launch
from undrift.commands import check, compare, export, init, report, sweep
from undrift.commands import list as listing
from undrift.commands.data import data_app
from undrift.commands.run import run_app
from undrift.engine.meeting import joined, launched
from undrift.experiment import SUFFIX
from undrift.folder import EXPERIMENT
from undrift.method import METHODS, known

app = typer.Typer(
    name="undrift",
    help="Training on heterogeneous data without client drift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(run_app, name="run")
app.command("compare")(compare.command)
app.command("sweep")(sweep.command)
app.command("report")(report.report)
app.command("init")(init.init)
app.command("list")(listing.list_methods)
app.add_typer(data_app, name="data")
app.command("check")(check.check)
app.command("export")(export.export)
app.command("schema")(init.schema)


def _version(asked: bool) -> None:
    if asked:
        print(ud.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


def _routed(arguments: list[str]) -> list[str]:
    """`undrift run` takes a method in any case, a file, or a folder to go on with."""
    if len(arguments) < 2 or arguments[0] != "run":
        return arguments
    first = arguments[1]
    if first == "file" or first in ("--help", "-h"):
        return arguments
    if first.lower() in METHODS:
        return ["run", first.lower(), *arguments[2:]]
    if first.startswith("-") or any(word.endswith(SUFFIX) for word in arguments[1:]):
        return ["run", "file", *arguments[1:]]
    if (Path(first) / EXPERIMENT).is_file():
        raise ValueError(
            f"run needs a method or a file, got the folder {first!r}; repeat it with undrift run "
            f"{Path(first) / EXPERIMENT}, or go on with undrift run --resume {first}."
        )
    if ":" in first:
        known(first)
        raise ValueError(
            f"run needs a method of the library or a file, got {first!r}; write it into a file "
            f"with undrift init mine.toml --methods {first}."
        )
    known(first)  # which says what is nearest
    return arguments


def main() -> None:
    """Entry point: user errors become one sentence and exit code 2, never a traceback."""
    launch.end_with_parent()
    try:
        app(_routed(sys.argv[1:]))
    except (ValueError, ud.UndriftError, OSError, ImportError) as error:
        # Rank 0 hears of every process's error and says it; unless it is rank 0 that is lost.
        heard = launch.rank() != 0 and joined() and 0 not in getattr(error, "ranks", [])
        paper = Console(stderr=True, quiet=heard)
        paper.print(f"Error: {error}", style="red", highlight=False, markup=False)
        launch.leave(2 if isinstance(error, ValueError) else 1, error)
    except KeyboardInterrupt:
        Console(stderr=True, quiet=launch.rank() != 0).print("Stopped; what was done is kept.")
        launch.leave(130)
    except Exception as error:
        if not launched():
            raise
        traceback.print_exc()  # a defect, which would come again
        launch.leave(1, error)
    except SystemExit as end:
        launch.leave(end.code if isinstance(end.code, int) else 0)
