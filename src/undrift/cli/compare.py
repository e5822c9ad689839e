"""`undrift compare`: several methods on the same data, cohorts and batches."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undrift.check import require
from undrift.cli.shared import (
    are_defaults,
    experiment_options,
    file_options,
    output_options,
    pick,
    spell_out,
)

if TYPE_CHECKING:
    from undrift.config.experiment import Experiment


def compare(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Names, as `undrift list` shows them, or a file.")
    ] = None,
    *,
    lr: Annotated[
        str | None,
        typer.Option(
            help="Grid of learning rates, the same for all. Default: 0.1; 0.001,0.01,0.1 where "
            "signs are sent."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Repetitions, the same seeds for all.")] = 1,
    **options: Any,
) -> None:
    """Compare methods on the same data, cohorts and batches.

    Example: undrift compare fedavg scaffold fedspeed --lr 0.03,0.1,0.3 --seeds 3
    """
    from undrift.cli.run import run_and_print, run_file
    from undrift.config.experiment import SUFFIX

    own_options = pick(options, experiment_options)
    changes = file_options(**pick(options, file_options))
    is_file = methods is not None and any(name.endswith(SUFFIX) for name in methods)
    if not is_file and changes.resume is None:
        sections = experiment_options(**own_options)
        experiment = _experiment(methods or [], lr, seeds, changes.changes, sections)
        run_and_print(experiment, "compare", output_options(**pick(options, output_options)))
        return
    plain = lr is None and seeds == 1 and are_defaults(own_options)
    remedy = "use --set, or names of methods instead of a file"
    require(plain, "compare", "no options of its own beside a file or --resume", "some", remedy)
    if methods and (len(methods) > 1 or not is_file):
        raise ValueError(f"compare needs one file, --resume or names of methods, got {methods}.")
    file_and_output = pick(options, file_options) | pick(options, output_options)
    run_file(Path(methods[0]) if methods else None, **file_and_output)


spell_out(compare, experiment_options, file_options, output_options)


def _experiment(
    names: Sequence[str],
    lr: str | None,
    seeds: int,
    texts: Sequence[str],
    sections: dict[str, Any],
) -> "Experiment":
    """Return the experiment that compares these methods over a grid of learning rates."""
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
