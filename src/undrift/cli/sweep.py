"""`undrift sweep`: every cell of an experiment's sweep, or those that a search chooses."""

from pathlib import Path
from typing import Annotated, Any

import typer

from undrift.cli.shared import file_options, output_options, pick, spell_out

RATES = {"method.lr": [0.03, 0.1, 0.3]}  # of a sweep whose file names no values


def sweep(
    file: Annotated[Path | None, typer.Argument(help="An experiment with a sweep section.")] = None,
    *,
    search: Annotated[
        int, typer.Option(help="So many cells, chosen by Optuna, instead of all.")
    ] = 0,
    **options: Any,
) -> None:
    """Try every combination that the file's sweep section names; two fields give a heat map.

    A file without that section has its methods' learning rates swept.

    Example: undrift sweep experiment.toml --set training.rounds=20
    """
    from rich.console import Console

    from undrift.cli.run import read_file, run_and_print
    from undrift.config.experiment import Experiment
    from undrift.runs.jobs import read_choice

    output = output_options(**pick(options, output_options))
    changes = file_options(**pick(options, file_options))
    experiment = read_file(file, changes, output)
    if experiment.sweep.empty:
        experiment = Experiment.of({**experiment.values(), "sweep": {"grid": RATES}})
        ((path, values),) = RATES.items()
        rates = ", ".join(map(str, values))
        said = f"No [sweep] in the file: {path} takes the values {rates}."
        Console(stderr=True).print(said, highlight=False, markup=False, soft_wrap=True)
    choice = None if changes.resume is None else read_choice(changes.resume)
    search = search or (0 if choice is None else choice.count)
    run_and_print(
        experiment,
        "search" if search else "sweep",
        output,
        search=search,
        resume=changes.resume,
        only=changes.only,
        reads=[file] if file else [],
    )


spell_out(sweep, file_options, output_options)
