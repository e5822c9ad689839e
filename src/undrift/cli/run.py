"""`undrift run METHOD` and `undrift run FILE.toml`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from undrift.check import require
from undrift.cli.names import SUMMARIES, flags_of, own_flags
from undrift.cli.options import OUTPUT, MaxRestartsOption, SeedOption, SeedsOption, TrustOption
from undrift.cli.shared import (
    FileChanges,
    Output,
    experiment_options,
    file_options,
    output_options,
    pick,
    signals_as_codes,
    spell_out,
)
from undrift.errors import DivergenceError

if TYPE_CHECKING:
    from undrift.config.experiment import Experiment


def command(name: str) -> Any:
    """Return the function of `undrift run NAME`: a method's, or that of `undrift run file`."""
    return run_file if name == "file" else _method_command(name)


def _method_command(method: str) -> Any:
    """Return the function of `undrift run METHOD`, with a flag for each field of the method."""
    flags = own_flags(method) if ":" in method else flags_of(method)

    def run_method(
        *,
        seed: SeedOption = 0,
        seeds: SeedsOption = None,
        checkpoint: Annotated[
            Path | None, typer.Option(help="Folder to save to.", rich_help_panel=OUTPUT)
        ] = None,
        checkpoint_every: Annotated[
            int | None,
            typer.Option(
                help="Rounds between saves: 1 with --checkpoint, by time with --out alone.",
                rich_help_panel=OUTPUT,
            ),
        ] = None,
        resume: Annotated[
            Path | None,
            typer.Option(
                help="Folder of checkpoints to go on from; saves there, too, unless --checkpoint "
                "is given.",
                rich_help_panel=OUTPUT,
            ),
        ] = None,
        max_restarts: MaxRestartsOption = 3,
        trust: TrustOption = False,
        **options: Any,
    ) -> None:
        from undrift.config.experiment import Experiment

        output = output_options(**pick(options, output_options))
        sections = experiment_options(**pick(options, experiment_options))
        sections["engine"]["max_restarts"] = max_restarts
        hyper_parameters = {flag.name: options[flag.name] for flag in flags}
        rates = str(hyper_parameters.get("lr"))
        several = "," in rates and "(" not in rates  # A schedule has commas, too.
        remedy = f"try several with undrift compare {method} --lr {rates}"
        require(not several, f"undrift run {method}", "one --lr", rates, remedy)
        methods = [{"name": method, **hyper_parameters}]
        once = seeds is None or seed == 0
        require(once, "--seeds", "no --seed beside it", seed, "leave one of them out")
        require(seeds is None or seeds >= 1, "--seeds", "a number >= 1", seeds)
        repeated = seeds is not None and seeds > 1
        folders = checkpoint is not None or resume is not None
        remedy = "runs are saved by themselves: go on with undrift run --resume FOLDER"
        require(not (repeated and folders), "--checkpoint", "one seed", seeds, remedy)
        if checkpoint_every is not None and not folders:
            sections["engine"]["checkpoint_every"] = checkpoint_every
        run_and_print(
            Experiment.of(
                {
                    "seeds": [seed] if seeds is None else list(range(seeds)),
                    "methods": methods,
                    **sections,
                }
            ),
            method.rpartition(":")[2].lower(),
            output,
            checkpoint=checkpoint or resume,
            checkpoint_every=1 if checkpoint_every is None else checkpoint_every,
            resume_from=resume,
            reads=[path for path in (checkpoint, resume) if path is not None],
        )

    run_method.__doc__ = SUMMARIES.get(method) or f"Run {method}, a method of your own."
    return spell_out(run_method, experiment_options, output_options, flags=flags)


def run_file(
    file: Annotated[
        Path | None, typer.Argument(help="An experiment, as `undrift init` writes it.")
    ] = None,
    **options: Any,
) -> None:
    """Run what an experiment's file says: every method with every seed, in every cell of its sweep.

    Example: undrift run experiment.toml --set training.rounds=5 --out runs/short
    """
    from undrift.runs.jobs import read_choice

    output = output_options(**pick(options, output_options))
    changes = file_options(**pick(options, file_options))
    resume = changes.resume
    if resume is not None and read_choice(resume) is not None:
        raise ValueError(
            f"run --resume needs a folder of runs, got a search in {str(resume)!r}; go on with "
            f"undrift sweep --resume {resume}."
        )
    experiment = read_file(file, changes, output)
    name = (file or resume or Path("experiment")).stem
    reads = [file] if file else []
    run_and_print(experiment, name, output, resume=resume, only=changes.only, reads=reads)


spell_out(run_file, file_options, output_options)


def read_file(file: Path | None, changes: FileChanges, output: Output) -> "Experiment":
    """Return the experiment of a file with changes, or the one that a folder was made with."""
    from undrift.config.experiment import Experiment, parse_changes
    from undrift.runs.folder import read_experiment
    from undrift.runs.spelling import FLAGS

    resume = changes.resume
    if (file is None) == (resume is None):
        raise ValueError(
            f"An experiment needs a file, or --resume FOLDER to go on, got "
            f"{'neither' if file is None else 'both'}; `undrift init` writes a file."
        )
    if resume is None:
        return Experiment.read(file or Path(), trust=changes.trust).changed(
            parse_changes(changes.changes)
        )
    if changes.changes:
        raise ValueError(
            "--resume needs the experiment as it was, got --set; start anew with "
            f"undrift run {resume / 'experiment.toml'} --set {changes.changes[0]}."
        )
    require(output.out is None, "--resume", "no --out, it goes on in its folder", str(output.out))
    return read_experiment(resume, FLAGS, changes.trust)


def run_and_print(experiment: "Experiment", name: str, output: Output, **options: Any) -> None:
    """Run an experiment with a progress bar, and print and write what came of it.

    `options` are those of `RunOptions`.
    """
    from undrift.cli.progress import ProgressBar
    from undrift.report.terminal import print_results
    from undrift.runs.options import RunOptions
    from undrift.runs.runner import run_experiment
    from undrift.runs.spelling import FLAGS

    def start_processes(folder: Path, experiment: "Experiment") -> NoReturn:
        saves = experiment.engine.checkpoint_every != 0 or run_options.checkpoint is not None
        keeps_folder = run_options.resume is not None
        _start_processes(None if keeps_folder else folder, experiment, saves=saves)

    if output.processes is not None:
        experiment = experiment.changed({"engine.processes": output.processes})
    bar = ProgressBar(quiet=output.quiet, verbose=output.verbose)
    with signals_as_codes(), bar:
        run_options = RunOptions(
            out=output.out,
            force=output.force,
            jobs=output.jobs,
            track=output.track,
            hash_always=output.as_json,
            arguments=sys.argv[1:],
            spelling=FLAGS,
            observer=bar,
            start_processes=start_processes,
            **options,
        )
        result = run_experiment(experiment, name, run_options)
    if result.head and result.trials and result.experiment is not None:
        comparison, as_json = result.comparison(), output.as_json
        print_results(result.trials, result.experiment, result.folder, comparison, as_json=as_json)
    if result.stopped:
        raise typer.Exit(128 + result.stopped)
    if result.single and result.trials[0].status == "diverged":
        (trial,) = result.trials
        raise DivergenceError(
            trial.reason, round=len(trial.records) + 1, clients=[], everywhere=True
        )


def _start_processes(folder: Path | None, experiment: "Experiment", *, saves: bool) -> NoReturn:
    """Run this command in several processes, with `folder` as its --out, and exit as they do."""
    from undrift.engine.processes import elastic

    arguments = sys.argv[1:]
    if folder is not None:
        arguments = [*elastic.without_option(arguments, "--out"), "--out", str(folder)]
    engine = experiment.engine
    code = elastic.in_processes(arguments, engine.processes, engine.max_restarts if saves else 0)
    raise typer.Exit(code)
