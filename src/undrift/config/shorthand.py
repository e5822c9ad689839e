"""The short forms of the command line: steps:10, stragglers:0.1:5, resnet18-gn:stem=7."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from undrift import models
from undrift.check import require, require_choice
from undrift.data.availability import Availability, Replaced, Resampled
from undrift.fleet import Jitter, Stragglers


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


def parse_model(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a text such as `resnet18-gn:stem=7,projection=256`."""
    name, _, rest = text.partition(":")
    require_choice("model", "its name", name, models.MODELS)
    options: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        paired = bool(key and equals and value)
        require(paired, "model", "options such as resnet18-gn:stem=7", text)
        options[key] = _literal(value)
    return name, options


def _literal(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
