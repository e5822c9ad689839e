"""`undrift compare`: several methods on the same data, cohorts and batches."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undrift.check import require
from undrift.cli.options import (
    RESTARTS,
    TIMEOUT,
    Force,
    Json,
    Out,
    Processes,
    Quiet,
    Resume,
    Settings,
    Timeout,
    Track,
    Verbose,
)
from undrift.cli.shared import engine, sections_given, shared, spell_out

if TYPE_CHECKING:
    from undrift.config.experiment import Experiment


def compare(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Names, as `undrift list` shows them, or a file.")
    ] = None,
    lr: Annotated[
        str | None,
        typer.Option(
            help="Grid of learning rates, the same for all. Default: 0.1; 0.001,0.01,0.1 where "
            "signs are sent."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Repetitions, the same seeds for all.")] = 1,
    set_: Settings = None,
    out: Out = None,
    force: Force = False,
    resume: Resume = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    track: Track = None,
    processes: Processes = None,
    timeout: Timeout = TIMEOUT,
    **options: Any,
) -> None:
    """Compare methods on the same data, cohorts and batches.

    Example: undrift compare fedavg scaffold fedspeed --lr 0.03,0.1,0.3 --seeds 3
    """
    from undrift.cli.run import run_file
    from undrift.config.experiment import SUFFIX
    from undrift.report.conclude import finish
    from undrift.runs.runner import RunOptions, conduct

    sections = shared(**options)
    sections["engine"] |= engine(processes, RESTARTS, timeout)
    file = methods is not None and any(name.endswith(SUFFIX) for name in methods)
    if file or resume is not None:
        said = lr is not None or seeds != 1 or timeout != TIMEOUT or sections_given(options)
        remedy = "use --set, or names of methods instead of a file"
        require(
            not said, "compare", "no options of its own beside a file or --resume", "some", remedy
        )
        if methods and (len(methods) > 1 or not file):
            raise ValueError(
                f"compare needs one file, --resume or names of methods, got {methods}."
            )
        path = Path(methods[0]) if methods else None
        run_file(path, set_, out, force, resume, as_json, quiet, verbose, track, processes)
        return
    experiment = _experiment(methods or [], lr, seeds, set_ or [], sections)
    asked = RunOptions(out, force, resume, quiet, verbose, track or (), hashes=as_json)
    finish(conduct(experiment, "compare", asked), as_json=as_json)


def _experiment(
    names: list[str], lr: str | None, seeds: int, texts: list[str], sections: dict[str, Any]
) -> "Experiment":
    from undrift.config.experiment import Experiment, parse_changes
    from undrift.config.hyperparameters import METHODS, method_class
    from undrift.core import AllReduce

    if not names:
        raise ValueError("compare needs methods, got none; try undrift compare fedavg scaffold.")
    classes = {
        name.lower() if name.lower() in METHODS else name: method_class(name) for name in names
    }
    signs = any(issubclass(cls, AllReduce) for cls in classes.values())
    lr = lr or ("0.001,0.01,0.1" if signs else "0.1")
    grid = [text.strip() for text in re.split(r",(?![^(]*\))", lr) if text.strip()]
    if seeds < 1 or not grid:
        raise ValueError(f"compare needs seeds >= 1 and a learning rate, got {seeds} and {lr!r}.")
    changes = parse_changes(texts)
    for path in changes:
        if path.partition(".")[2] == "lr":
            raise ValueError(
                "--set needs values other than lr, whose grid is --lr for all methods."
            )
    experiment = Experiment.of(
        {
            "seeds": list(range(seeds)),
            "methods": [{"name": name} for name in classes],
            "sweep": {"grid": {"method.lr": grid}},
            **sections,
        }
    )
    return experiment.changed(changes)


command = spell_out(compare)
