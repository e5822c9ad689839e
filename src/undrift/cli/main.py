"""The command line: `undrift run`, `compare`, `sweep`, `report`, `init`, `list` and others.

Nothing here imports torch until a command is called, so that help and completion answer at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from undrift import __version__
from undrift.cli import check, compare, export, init, lazy, report, sweep
from undrift.cli import list as listing
from undrift.cli.data import data_app
from undrift.cli.names import FILE_SUMMARY, SUMMARIES
from undrift.errors import UndriftError


def _of_run(name: str) -> Any:
    from undrift.cli.run import command

    return command(name)


app = typer.Typer(
    name="undrift",
    help="Training on heterogeneous data without client drift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
run_app = lazy.group(
    {**SUMMARIES, "file": FILE_SUMMARY},
    _of_run,
    no_args_is_help=True,
    help="Train with one method, or what a file says.\n\n"
    "Examples: undrift run fedspeed --lr 0.1 --rounds 50; undrift run experiment.toml",
)
app.add_typer(run_app, name="run")
app.command("compare")(lazy.telling(compare.command))
app.command("sweep")(lazy.telling(sweep.sweep))
app.command("report")(report.report)
app.command("init")(init.init)
app.command("list")(listing.list_methods)
app.add_typer(data_app, name="data")
app.command("check")(check.check)
app.command("export")(export.export)
app.command("schema")(init.schema)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
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
    if first.lower() in SUMMARIES:
        return ["run", first.lower(), *arguments[2:]]
    from undrift.config.experiment import SUFFIX
    from undrift.config.hyperparameters import method_class
    from undrift.runs.folder import EXPERIMENT

    if first.startswith("-") or any(word.endswith(SUFFIX) for word in arguments[1:]):
        return ["run", "file", *arguments[1:]]
    if (Path(first) / EXPERIMENT).is_file():
        raise ValueError(
            f"run needs a method or a file, got the folder {first!r}; repeat it with undrift run "
            f"{Path(first) / EXPERIMENT}, or go on with undrift run --resume {first}."
        )
    if ":" in first:
        method_class(first)
        raise ValueError(
            f"run needs a method of the library or a file, got {first!r}; write it into a file "
            f"with undrift init mine.toml --methods {first}."
        )
    method_class(first)  # which says what is nearest
    return arguments


def _several() -> bool:
    """Whether this process may be one of several; if not, there is no need to ask torch."""
    return "RANK" in os.environ or "torch" in sys.modules


def _leave(code: int, error: BaseException | None = None) -> None:
    if _several():
        from undrift.engine.processes import elastic

        elastic.leave(code, error)
    sys.exit(code)


def _say(text: str, error: BaseException, **style: Any) -> None:
    """Rank 0 hears of every process's error and says it; unless it is rank 0 that is lost."""
    from rich.console import Console

    heard = False
    if _several():
        from undrift.engine.processes import elastic
        from undrift.engine.processes.rendezvous import joined

        alive = joined() and 0 not in getattr(error, "ranks", [])
        heard = elastic.rank() != 0 and (alive or isinstance(error, KeyboardInterrupt))
    Console(stderr=True, quiet=heard).print(text, **style)


def main() -> None:
    """Entry point: user errors become one sentence and exit code 2, never a traceback."""
    if _several():
        from undrift.engine.processes import elastic

        elastic.end_with_parent()
    try:
        app(_routed(sys.argv[1:]))
    except (ValueError, UndriftError, OSError, ImportError) as error:
        _say(f"Error: {error}", error, style="red", highlight=False, markup=False)
        _leave(2 if isinstance(error, ValueError) else 1, error)
    except KeyboardInterrupt as error:
        _say("Stopped; what was done is kept.", error)
        _leave(130)
    except Exception as error:
        from undrift.engine.processes.rendezvous import launched

        if not launched():
            raise
        traceback.print_exc()  # a defect, which would come again
        _leave(1, error)
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else 0)


def __getattr__(name: str) -> Any:
    if name == "METHODS":
        return import_module("undrift.config.hyperparameters").METHODS
    raise AttributeError(f"undrift.cli.main has no {name!r}.", name=name)
