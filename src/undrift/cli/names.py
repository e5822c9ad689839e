"""The names that help and completion show, read from names.json, because the classes need torch.

`make names` writes the file from the classes (`undrift.cli.generate`); a test fails if it is stale.
"""

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer

_NAMES: dict[str, Any] = json.loads(
    Path(__file__).with_name("names.json").read_text(encoding="utf-8")
)

SUMMARIES: dict[str, str] = {name: each["summary"] for name, each in _NAMES["methods"].items()}
FAMILIES: dict[str, str] = {name: each["family"] for name, each in _NAMES["methods"].items()}
FILE_SUMMARY = (
    "Run what an experiment's file says: every method with every seed, in every cell of its sweep."
)
DATA_SETS = ", ".join(_NAMES["data_sets"])
MODELS = ", ".join(_NAMES["models"])
FLEETS = ", ".join(_NAMES["fleets"])


def flags_of(method: str) -> list[inspect.Parameter]:
    """Return an option of `undrift run METHOD` for each hyper-parameter of the method."""
    entry = _NAMES["methods"][method]
    panel = f"{entry['class']}'s hyper-parameters"
    return [_flag(panel, parameter) for parameter in entry["parameters"]]


def own_flags(method: str) -> list[inspect.Parameter]:
    """Return an option for each hyper-parameter of a method of one's own, `file.py:Class`."""
    from dataclasses import MISSING

    from undrift.config.hyperparameters import as_text, method_class, parameters_of

    cls = method_class(method)
    entries = [
        {**each._asdict(), "default": "" if each.default is MISSING else as_text(each.default)}
        for each in parameters_of(cls)
    ]
    panel = f"{cls.__name__}'s hyper-parameters"
    flags = [_flag(panel, entry) for entry in entries]
    required = [entry["default"] == "" for entry in entries]
    empty = inspect.Parameter.empty
    return [
        flag.replace(default=empty) if needed else flag
        for flag, needed in zip(flags, required, strict=True)
    ]


def _flag(panel: str, parameter: dict[str, Any]) -> inspect.Parameter:
    """Return the option of one hyper-parameter, whose text `Experiment` reads."""
    default, switch = parameter["default"], parameter["kind"] == "switch"
    option = typer.Option(
        rich_help_panel=panel,
        help=parameter["help"],
        metavar=None if switch else _metavar(parameter),
    )
    return inspect.Parameter(
        parameter["name"],
        inspect.Parameter.KEYWORD_ONLY,
        default=default if switch else "none" if default is None else str(default),
        annotation=Annotated[bool if switch else str, option],
    )


def _metavar(parameter: dict[str, Any]) -> str:
    """Return what stands for the value of an option in its help."""
    words = parameter["choices"] or ["NUMBER"]
    return "|".join([*words, *(["none"] if parameter["optional"] else [])])
