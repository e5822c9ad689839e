"""`undrift run METHOD` and `undrift run FILE.toml`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undrift.check import require
from undrift.cli.names import SUMMARIES, flags_of
from undrift.cli.options import (
    OUTPUT,
    RESTARTS,
    TIMEOUT,
    Force,
    Json,
    MaxRestarts,
    Out,
    Processes,
    Quiet,
    Resume,
    Seed,
    Settings,
    Timeout,
    Track,
    Verbose,
)
from undrift.cli.shared import engine, shared, spell_out
from undrift.errors import DivergenceError

if TYPE_CHECKING:
    from undrift.config.experiment import Experiment
    from undrift.runs.runner import ExperimentResult


def _make(method: str) -> Any:
    """The command `undrift run <method>`, with a flag for each of the method's fields."""
    flags = flags_of(method)

    def command(
        *,
        seed: Seed = 0,
        checkpoint: Annotated[
            Path | None, typer.Option(help="Folder to save to.", rich_help_panel=OUTPUT)
        ] = None,
        checkpoint_every: Annotated[
            int, typer.Option(help="Rounds between saves.", rich_help_panel=OUTPUT)
        ] = 1,
        resume: Annotated[
            Path | None,
            typer.Option(
                help="Folder of checkpoints to go on from; saves there, too, unless --checkpoint "
                "is given.",
                rich_help_panel=OUTPUT,
            ),
        ] = None,
        out: Out = None,
        force: Force = False,
        as_json: Json = False,
        quiet: Quiet = False,
        verbose: Verbose = False,
        track: Track = None,
        processes: Processes = None,
        max_restarts: MaxRestarts = RESTARTS,
        timeout: Timeout = TIMEOUT,
        **options: Any,
    ) -> None:
        from undrift.config.experiment import Experiment
        from undrift.runs.runner import RunOptions, conduct

        hyper = {flag.name: options.pop(flag.name) for flag in flags}
        sections = shared(**options)
        sections["engine"] |= engine(processes, max_restarts, timeout)
        values = {"seeds": [seed], "methods": [{"name": method, **hyper}], **sections}
        kept = {
            "checkpoint": checkpoint or resume,
            "checkpoint_every": checkpoint_every,
            "resume": resume,
        }
        reads = [path for path in (checkpoint, resume) if path is not None]
        asked = RunOptions(
            out, force, None, quiet, verbose, track or (), kept, reads, hashes=as_json
        )
        _finish(conduct(Experiment.of(values), method, asked), as_json=as_json)

    command.__doc__ = SUMMARIES[method]
    return spell_out(command, flags)


def run_file(
    file: Annotated[
        Path | None, typer.Argument(help="An experiment, as `undrift init` writes it.")
    ] = None,
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
    """What an experiment's file says: every method with every seed, in every cell of its sweep.

    Example: undrift run experiment.toml --set training.rounds=5 --out runs/short
    """
    from undrift.runs.jobs import read_choice
    from undrift.runs.runner import RunOptions, conduct

    if resume is not None and read_choice(resume) is not None:
        raise ValueError(
            f"run --resume needs a folder of runs, got a search in {str(resume)!r}; go on with "
            f"undrift sweep --resume {resume}."
        )
    experiment = read(file, resume, set_, out, processes)
    name = (file or resume or Path("experiment")).stem
    reads = [file] if file else []
    asked = RunOptions(out, force, resume, quiet, verbose, track or (), reads=reads, hashes=as_json)
    _finish(conduct(experiment, name, asked), as_json=as_json)


def read(
    file: Path | None,
    resume: Path | None,
    set_: list[str] | None,
    out: Path | None,
    processes: int | None,
) -> "Experiment":
    """The experiment of a file with changes, or the one that a folder was made with."""
    experiment = _read(file, resume, set_, out)
    return experiment if processes is None else experiment.changed({"engine.processes": processes})


def _read(
    file: Path | None, resume: Path | None, set_: list[str] | None, out: Path | None
) -> "Experiment":
    from undrift.config.experiment import Experiment, parse_changes
    from undrift.runs.runner import from_folder

    if (file is None) == (resume is None):
        raise ValueError(
            f"An experiment needs a file, or --resume FOLDER to go on, got "
            f"{'neither' if file is None else 'both'}; `undrift init` writes a file."
        )
    if resume is not None:
        if set_:
            raise ValueError(
                "--resume needs the experiment as it was, got --set; start anew with "
                f"undrift run {resume / 'experiment.toml'} --set {set_[0]}."
            )
        require(out is None, "--resume", "no --out, it goes on in its folder", str(out))
        return from_folder(resume)
    return Experiment.read(file or Path()).changed(parse_changes(set_ or []))


def _finish(conducted: "ExperimentResult", *, as_json: bool) -> None:
    from undrift.report.conclude import finish

    finish(conducted, as_json=as_json)
    trial = conducted.trials[0]
    if conducted.single and trial.status == "diverged":
        raise DivergenceError(
            trial.reason, round=len(trial.records) + 1, clients=[], everywhere=True
        )


def command(name: str) -> Any:
    """`undrift run NAME`: a method's, or `undrift run file`."""
    return run_file if name == "file" else _make(name)
