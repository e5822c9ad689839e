"""The short forms of the command line: steps:10, stragglers:0.1:5, resnet18-gn:stem=7."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from undrift import models
from undrift.check import nearest, require, require_choice
from undrift.data.availability import Availability, Replaced, Resampled
from undrift.data.tables.files import is_table
from undrift.fleet import Jitter, Stragglers
from undrift.usercode.names import is_code


def parse_participation(text: str, name: str = "participation") -> float | int:
    """Return `0.5` as a fraction of the clients and `10` as a count."""
    try:
        return int(text) if text.strip().isdigit() else float(text)
    except ValueError as error:
        raise ValueError(
            f"{name} needs a fraction such as 0.5 or a count such as 10, got {text!r}."
        ) from error


def parse_slowdown(text: str) -> Stragglers | Jitter:
    """Return the slowdown of `stragglers:0.1:5` or `jitter:0.3`."""
    makers: dict[str, Callable[..., Stragglers | Jitter]] = {
        "stragglers": Stragglers,
        "jitter": Jitter,
    }
    name, *parts = text.split(":")
    require_choice("slowdown", "its first word", name, makers)
    try:
        numbers = [float(part) for part in parts]
        inspect.signature(makers[name]).bind(*numbers)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"slowdown needs a form such as stragglers:0.1:5 or jitter:0.3, got {text!r}."
        ) from error
    return makers[name](*numbers)


def parse_availability(text: str, seed: int) -> Availability:
    """Return the availability of `resampled:ACTIVE:EVERY` or `replaced:ACTIVE:EVERY:CHANCE`."""
    makers: dict[str, Callable[..., Availability]] = {"resampled": Resampled, "replaced": Replaced}
    name, *parts = text.split(":")
    require_choice("availability", "its first word", name, makers)
    try:
        numbers = [*map(int, parts[:2]), *map(float, parts[2:])]
        inspect.signature(makers[name]).bind(*numbers, seed=seed)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"availability needs a form such as resampled:250:100 or replaced:250:100:0.5, got "
            f"{text!r}."
        ) from error
    return makers[name](*numbers, seed=seed)


def parse_data(text: str) -> dict[str, Any]:
    """Return the fields of a text such as `mnist`, `mine.py:load` or `patients.csv:target=died`.

    Several columns are separated by +, as in `drop=id+admitted`.
    """
    path, _, rest = text.partition(":")
    if not is_table(path):
        return {"name": text}
    options = _options(rest, "data", "patients.csv:target=died", literal=False)
    fields: dict[str, Any] = {"path": path, **options}
    if "test_fraction" in fields:
        fields["test_fraction"] = _literal(fields["test_fraction"])
    for name in ("drop", "categorical"):
        if name in fields:
            fields[name] = fields[name].split("+")
    if "here" in fields:
        require(fields["here"] in ("true", "false"), "data", "here=true or here=false", text)
        fields["here"] = fields["here"] == "true"
    return fields


def parse_model(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a text such as `resnet18-gn:stem=7,projection=256`.

    A model of one's own is `mine.py:Net` or `mine.py:Net:hidden=64`.
    """
    name, _, rest = text.partition(":")
    if name not in models.MODELS:
        place, _, rest = text.partition(":")
        own, _, rest = rest.partition(":")
        name = f"{place}:{own}" if is_code(f"{place}:{own}") else name
    if not is_code(name) and name not in models.MODELS:
        known, near = ", ".join(models.MODELS), nearest(name, models.MODELS)
        own = f"{place}:Net" if place.endswith(".py") else "mine.py:Net"
        raise ValueError(f"model needs one of {known}, or code such as {own}, got {text!r}{near}.")
    return name, _options(rest, "model", "resnet18-gn:stem=7")


def _options(text: str, who: str, form: str, *, literal: bool = True) -> dict[str, Any]:
    """Return the options of a text such as `stem=7,projection=256`, numbers if `literal`.

    A comma that no `name=` follows belongs to a value, so that `decimal=,` can be said.
    """
    options: dict[str, Any] = {}
    for part in re.split(r",\s*(?=\w+=)", text) if text else ():
        key, equals, value = part.partition("=")
        require(bool(key and equals and value), who, f"options such as {form}", text)
        commas = re.sub(r":(\w+=)", r",\1", text)
        require(commas == text, who, f"options such as {form}", text, f"write commas: {commas}")
        options[key] = _literal(value) if literal else value
    return options


def _literal(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
