"""A panel's experiment with each method's step size tuned, on samples that nobody trains on.

The step sizes that are tried are the printed one times some factors. A file's `[tune]` may name
other factors, further fields and values, and the panels and methods that are tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from undrift.config.experiment import Experiment, Method, is_named
from undrift.config.hyperparameters import DEFAULT_LR
from undrift.config.sweep import Sweep
from undrift.core import AllReduce
from undrift.optim.schedules import Schedule, parse, starting_at
from undrift.papers.file import with_methods
from undrift.papers.parts import Tune


def tuned_experiment(experiment: Experiment, tune: Tune) -> Experiment | None:
    """Return the experiment with a sweep that tunes its methods, or None if none of them is."""
    titles = [
        m.title for m in experiment.methods if tune.methods is None or m.title in tune.methods
    ]
    if not titles:
        return None
    kept = with_methods(experiment.model_copy(update={"sweep": Sweep()}), titles)
    named = {p: v for p, v in tune.grid.items() if any(_is_about(m, p) for m in kept.methods)}
    grid = {**_default_grid(kept.methods, named, tune.factors), **named}
    # Validation samples of a document's own grid are not split off: the final runs train on all.
    data = kept.data.model_copy(update={"validation": None})
    sweep = {"tune": True, "grid": grid, **tune.options}
    values = kept.model_copy(update={"data": data}).values()
    return Experiment.of({**values, "sweep": sweep})


def _default_grid(
    methods: Sequence[Method], named: Mapping[str, Any], factors: Sequence[float]
) -> dict[str, list[Any]]:
    """Return values for the step size of every method for which the file names none."""
    steps = {}
    for position, method in enumerate(methods):
        field = step_field(method)
        if not any(_is_about(method, path, field) for path in named):
            values = [_scaled(method.settings.get(field, DEFAULT_LR), factor) for factor in factors]
            steps[f"methods[{position}].{field}"] = values
    grids = [repr(values) for values in steps.values()]
    fields = {path.rpartition(".")[2] for path in steps}
    if len(steps) == len(methods) and len(set(grids)) == 1 and len(fields) == 1:
        return {f"method.{fields.pop()}": next(iter(steps.values()))}
    return steps


def step_field(method: Method) -> str:
    """Return the field that is a method's step size.

    Sign methods of all-reduce step by `server_lr`; their `lr` scales what they take the signs of.
    """
    signs = issubclass(method.cls, AllReduce) and "server_lr" in method.settings
    return "server_lr" if signs else "lr"


def _is_about(method: Method, path: str, field: str | None = None) -> bool:
    section, _, name = path.rpartition(".")
    common = section in ("method", "methods")
    return (common or is_named(method, section)) and field in (None, name)


def _scaled(value: Any, factor: float) -> Any:
    """Return a step size times a factor, with two digits; a schedule keeps its form."""
    number = parse(value) if isinstance(value, str) else value
    start = float(f"{factor * float(number):.2g}")
    return starting_at(number, start).text if isinstance(number, Schedule) else start
