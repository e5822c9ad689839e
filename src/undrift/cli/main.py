"""The command line: `undrift run`, `compare`, `sweep`, `papers`, `report`, `init` and others.

Nothing here imports torch until a command is called, so that help and completion answer at once.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from undrift import __version__
from undrift.cli import check, compare, export, init, predict, report, sweep
from undrift.cli import list as listing
from undrift.cli.data import data_app
from undrift.cli.federation import federation_app
from undrift.cli.foreign import Command, CommandGroup, MethodCommand
from undrift.cli.lazy import lazy_group
from undrift.cli.names import FILE_SUMMARY, SUMMARIES
from undrift.cli.papers import papers_app
from undrift.engine.processes.interrupts import signal_of
from undrift.errors import TaskWarning, UndriftError


def _load_run(name: str) -> Any:
    """Return the function of `undrift run NAME`."""
    from undrift.cli.run import command

    return command(name)


app = typer.Typer(
    cls=CommandGroup,
    name="undrift",
    help="Training on heterogeneous data without client drift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
run_app = lazy_group(
    {**SUMMARIES, "file": FILE_SUMMARY},
    _load_run,
    no_args_is_help=True,
    help="Train with one method, of the library or mine.py:Class, or what a file says.\n\n"
    "Examples: undrift run fedspeed --lr 0.1 --rounds 50; undrift run mine.py:Mine --lr 0.1; "
    "undrift run experiment.toml",
)
app.add_typer(run_app, name="run")
app.command("compare", cls=MethodCommand)(compare.compare)
app.command("sweep", cls=Command)(sweep.sweep)
app.command("report", cls=Command)(report.report)
app.command("init", cls=Command)(init.init)
app.command("list", cls=Command)(listing.list_methods)
app.add_typer(data_app, name="data")
app.add_typer(papers_app, name="papers")
app.add_typer(federation_app, name="federation")
app.command("check", cls=Command)(check.check)
app.command("export", cls=Command)(export.export)
app.command("predict", cls=Command)(predict.predict)
app.command("schema", cls=Command)(init.schema)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


def _routed(arguments: list[str]) -> list[str]:
    """Return the arguments with `run FILE` as `run file FILE`, and methods in lower case."""
    if len(arguments) < 2 or arguments[0] != "run":
        return arguments
    first = arguments[1]
    if first == "file" or first in ("--help", "-h"):
        return arguments
    if first.lower() in SUMMARIES:
        return ["run", first.lower(), *arguments[2:]]
    from undrift.config.experiment import SUFFIX
    from undrift.config.hyperparameters import method_class
    from undrift.results.filenames import EXPERIMENT

    if first.startswith("-") or any(word.endswith(SUFFIX) for word in arguments[1:]):
        return ["run", "file", *arguments[1:]]
    if (Path(first) / EXPERIMENT).is_file():
        raise ValueError(
            f"run needs a method or a file, got the folder {first!r}; repeat it with undrift run "
            f"{Path(first) / EXPERIMENT}, or go on with undrift run --resume {first}."
        )
    if ":" in first:
        method_class(first)  # It raises for what is no method.
        return arguments
    method_class(first)  # It raises, and names the nearest method.
    return arguments


def _may_have_others() -> bool:
    """Return whether this process may be one of several; if not, torch need not be imported."""
    return "RANK" in os.environ or "torch" in sys.modules


def _leave(code: int, error: BaseException | None = None) -> None:
    """Exit, and tell whoever has started this process whether to start it again."""
    if _may_have_others():
        from undrift.engine.processes import elastic

        elastic.leave(code, error)
    sys.exit(code)


def _print_error(text: str, error: BaseException, **style: Any) -> None:
    """Print an error once: rank 0 hears of every process's error, unless rank 0 is lost."""
    from rich.console import Console

    quiet = False
    if _may_have_others():
        from undrift.engine.processes import elastic
        from undrift.engine.processes.rendezvous import joined

        rank_0_knows = joined() and 0 not in getattr(error, "ranks", [])
        quiet = elastic.rank() != 0 and (rank_0_knows or isinstance(error, KeyboardInterrupt))
    Console(stderr=True, quiet=quiet).print(text, **style)


def _sentence(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return a warning as the command line prints it, without the place in the code."""
    return f"Warning: {message}\n"


def main() -> None:
    """Run the command line; a user's error becomes one sentence and exit code 2."""
    if _may_have_others():
        from undrift.engine.processes import elastic

        elastic.end_with_parent()
    warnings.formatwarning = _sentence
    warnings.simplefilter("ignore", TaskWarning)  # Commands say the task of a table themselves.
    try:
        app(_routed(sys.argv[1:]))
    except (ValueError, UndriftError, OSError, ImportError) as error:
        _print_error(f"Error: {error}", error, style="red", highlight=False, markup=False)
        _leave(2 if isinstance(error, ValueError) else 1, error)
    except KeyboardInterrupt as error:
        _print_error("Stopped; what was done is kept.", error)
        _leave(128 + signal_of(error))
    except Exception as error:
        from undrift.engine.processes.rendezvous import launched

        if not launched():
            raise
        traceback.print_exc()  # A defect would come again, so the process is not started again.
        _leave(1, error)
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else 0)
