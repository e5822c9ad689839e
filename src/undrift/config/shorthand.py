"""The short forms of the command line: steps:10, stragglers:0.1:5, resnet18-gn:stem=7."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from undrift import models
from undrift.check import require, require_choice
from undrift.data import Deadline, Epochs, GaussianSteps, Steps, UniformSteps, Work
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


def _deadline(seconds: float, epochs: float | None = None) -> Work:
    return Deadline(seconds, None if epochs is None else Epochs(epochs))


@lru_cache(maxsize=256)  # An experiment asks for the same text once for every method and cell.
def parse_work(text: str) -> Work:
    """Return the local work of a text such as `steps:10`, `epochs:5` or `deadline:60:5`."""
    makers: dict[str, tuple[Callable[..., Work], Callable[[str], Any]]] = {
        "steps": (Steps, int),
        "epochs": (Epochs, float),
        "gaussian": (GaussianSteps, float),
        "uniform": (UniformSteps, int),
        "deadline": (_deadline, float),
    }
    name, *parts = text.split(":")
    require_choice("work", "its first word", name, makers)
    maker, number = makers[name]
    modes = [part for part in parts if part in ("fixed", "random")]
    try:
        numbers = [number(part) for part in parts if part not in modes]
        inspect.signature(maker).bind(*numbers, *modes)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"work needs a form such as steps:10, epochs:5, gaussian:20:100, uniform:5:30 or "
            f"deadline:60:5, got {text!r}."
        ) from error
    return maker(*numbers, *modes)


def work_text(work: Work) -> str:
    """Return the text that `parse_work` reads as this work, or raise if there is none."""
    names = {Steps: "steps", Epochs: "epochs", GaussianSteps: "gaussian", UniformSteps: "uniform"}
    name = names.get(type(work))
    values = vars(work).values()
    with suppress(ValueError):
        text = ":".join(map(str, [name, *values]))
        if parse_work(text) == work:
            return text
    raise ValueError(
        f"work needs a form that can be written down, such as 'epochs:5', got {work!r}."
    )


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
