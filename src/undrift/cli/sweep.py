"""`undrift sweep`: every cell of an experiment's grid, resumable; or a search by Optuna."""

from pathlib import Path
from typing import Annotated

import typer

from undrift.cli.options import Force, Json, Out, Processes, Quiet, Resume, Settings, Track, Verbose


def sweep(
    file: Annotated[Path | None, typer.Argument(help="An experiment with a sweep section.")] = None,
    search: Annotated[
        int, typer.Option(help="So many cells, chosen by Optuna, instead of all.")
    ] = 0,
    set_: Settings = None,
    out: Out = None,
    force: Force = False,
    resume: Resume = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    track: Track = None,
    processes: Processes = None,
) -> None:
    """Try every combination that the file's sweep section names; two fields give a heat map.

    Example: undrift sweep experiment.toml --set training.rounds=20
    """
    from undrift.cli.run import read
    from undrift.report.conclude import finish
    from undrift.runs.jobs import read_choice
    from undrift.runs.runner import RunOptions, conduct

    experiment = read(file, resume, set_, out, processes)
    if experiment.sweep.empty:
        raise ValueError(
            "sweep needs values to try, got an experiment without; add [sweep.grid] with a line "
            'such as "method.lr" = [0.03, 0.1, 0.3], or use undrift run.'
        )
    reads = [file] if file else []
    asked = RunOptions(out, force, resume, quiet, verbose, track or (), reads=reads, hashes=as_json)
    begun = None if resume is None else read_choice(resume)
    if search or begun is not None:
        from undrift.runs.search import searched

        conducted = searched(experiment, search or (begun.count if begun else 0), asked)
    else:
        conducted = conduct(experiment, "sweep", asked)
    finish(conducted, as_json=as_json)
