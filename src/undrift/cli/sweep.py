"""`undrift sweep`: every cell of an experiment's sweep, or those that a search chooses."""

from pathlib import Path
from typing import Annotated, Any

import typer

from undrift.cli.shared import file_options, output_options, pick, spell_out


def sweep(
    file: Annotated[Path | None, typer.Argument(help="An experiment with a sweep section.")] = None,
    *,
    search: Annotated[
        int, typer.Option(help="So many cells, chosen by Optuna, instead of all.")
    ] = 0,
    **options: Any,
) -> None:
    """Try every combination that the file's sweep section names; two fields give a heat map.

    Example: undrift sweep experiment.toml --set training.rounds=20
    """
    from undrift.cli.run import read_file, run_and_print
    from undrift.runs.jobs import read_choice

    output = output_options(**pick(options, output_options))
    changes = file_options(**pick(options, file_options))
    experiment = read_file(file, changes, output)
    if experiment.sweep.empty:
        raise ValueError(
            "sweep needs values to try, got an experiment without; add [sweep.grid] with a line "
            'such as "method.lr" = [0.03, 0.1, 0.3], or use undrift run.'
        )
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
