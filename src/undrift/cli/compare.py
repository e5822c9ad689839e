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

TUNING = "Tuning"


def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="Names, as `undrift list` shows them, mine.py:Class, or a file."),
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
    tune: Annotated[
        list[str] | None,
        typer.Option(
            help="Values to choose from on validation samples, for all methods or one, e.g. --tune "
            "lr=0.01,0.03,0.1,0.3 --tune fedavgm.beta=0.4,0.6. Every method has as many trials.",
            rich_help_panel=TUNING,
        ),
    ] = None,
    halving: Annotated[
        bool,
        typer.Option(
            "--halving",
            help="Tune with few rounds first, and with twice as many for the better half.",
            rich_help_panel=TUNING,
        ),
    ] = False,
    extend: Annotated[
        int | None,
        typer.Option(
            help="How often each method has one more value while a choice is at an edge. "
            "Default: 2.",
            rich_help_panel=TUNING,
        ),
    ] = None,
    **options: Any,
) -> None:
    """Compare methods on the same data, cohorts and batches, each at its tuned values.

    Examples: undrift compare fedavg scaffold fedacg --tune lr=0.01,0.03,0.1,0.3 --seeds 5;
    undrift compare fedavg scaffold fedspeed --lr 0.03,0.1,0.3 --seeds 3
    """
    from undrift.cli.run import run_and_print, run_file
    from undrift.config.experiment import SUFFIX

    own_options = pick(options, experiment_options)
    changes = file_options(**pick(options, file_options))
    is_file = methods is not None and any(name.endswith(SUFFIX) for name in methods)
    if not is_file and changes.resume is None:
        sections = experiment_options(**own_options)
        grid = _tuned(tune, sections, halving=halving, extend=extend) if tune else _lr_grid(lr)
        untuned = not (halving or extend is not None) or bool(tune)
        require(untuned, "--halving and --extend", "--tune beside them", "none")
        remedy = "write --tune lr=0.03,0.1,0.3"
        require(not (tune and lr), "--tune", "no --lr beside it", lr, remedy)
        experiment = _experiment(methods or [], grid, seeds, changes.changes, sections)
        output = output_options(**pick(options, output_options))
        run_and_print(experiment, "compare", output, only=changes.only)
        return
    plain = lr is None and seeds == 1 and are_defaults(own_options)
    plain = plain and not tune and not halving and extend is None
    remedy = "use --set, or names of methods instead of a file"
    require(plain, "compare", "no options of its own beside a file or --resume", "some", remedy)
    if methods and (len(methods) > 1 or not is_file):
        raise ValueError(f"compare needs one file, --resume or names of methods, got {methods}.")
    file_and_output = pick(options, file_options) | pick(options, output_options)
    run_file(Path(methods[0]) if methods else None, **file_and_output)


spell_out(compare, experiment_options, file_options, output_options)


def _lr_grid(lr: str | None) -> dict[str, Any]:
    """Return the sweep of `--lr`, or none where the methods decide the default."""
    if lr is None:
        return {}
    values = _values(lr)
    require(bool(values), "compare", "a learning rate", lr)
    return {"grid": {"method.lr": values}}


def _tuned(
    texts: Sequence[str], sections: dict[str, Any], *, halving: bool, extend: int | None
) -> dict[str, Any]:
    """Return the sweep of `--tune` and its options; `--validation` is then its share."""
    from undrift.config.experiment import from_text

    grid: dict[str, Any] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        name, values = name.strip(), [from_text(value) for value in _values(rest)]
        form = "a field and its values such as lr=0.01,0.03,0.1"
        require(bool(name and equals and values), "--tune", form, text)
        path = name if "." in name else f"method.{name}"
        require(path not in grid, "--tune", "every field once", path)
        grid[path] = values
    share = sections["data"].pop("validation")
    return {
        "grid": grid,
        "tune": True,
        "halving": halving,
        **({} if extend is None else {"extend": extend}),
        **({} if share is None else {"validation": share}),
    }


def _values(text: str) -> list[str]:
    """Return the values of a list; commas in brackets belong to a schedule."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _experiment(
    names: Sequence[str],
    sweep: dict[str, Any],
    seeds: int,
    texts: Sequence[str],
    sections: dict[str, Any],
) -> "Experiment":
    """Return the experiment that compares these methods over a grid."""
    from undrift.config.experiment import Experiment, parse_changes
    from undrift.config.hyperparameters import METHODS, method_class
    from undrift.core import AllReduce

    if not names:
        raise ValueError("compare needs methods, got none; try undrift compare fedavg scaffold.")
    classes = {
        name.lower() if name.lower() in METHODS else name: method_class(name) for name in names
    }
    twice = next((name for name in names if names.count(name) > 1), None)
    remedy = "for other values of one method write a file, with a label for each"
    require(len(classes) == len(names), "compare", "every method once", twice or names, remedy)
    require(seeds >= 1, "compare", "seeds >= 1", seeds)
    signs = any(issubclass(cls, AllReduce) for cls in classes.values())
    sweep = sweep or {"grid": {"method.lr": ["0.001", "0.01", "0.1"] if signs else ["0.1"]}}
    changes = parse_changes(texts)
    for path in changes:
        if path.partition(".")[2] == "lr" and "method.lr" in sweep["grid"]:
            raise ValueError(
                "--set needs values other than lr, whose grid is --lr or --tune for all methods."
            )
    experiment = Experiment.of(
        {
            "seeds": list(range(seeds)),
            "methods": [{"name": name} for name in classes],
            "sweep": sweep,
            **sections,
        }
    )
    return experiment.changed(changes)
