"""Models of one's own by name, such as `mine.py:Net`: a class, a function or a model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from undrift.check import require
from undrift.errors import first_line
from undrift.usercode.load import import_object

ALWAYS = ("shape", "classes")  # known from the data, and handed to who has such a parameter
_WHO = "A model"


def parameters(name: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the class or function of that name; a model has none."""
    target = import_object(name, _WHO)
    if isinstance(target, nn.Module):
        return {}
    remedy = "it is built from a class, a function that returns a model, or a model"
    require(callable(target), _WHO, "an nn.Module", target, remedy)
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):  # a class that is written in C has no signature
        return {}


def build(name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any]) -> nn.Module:
    """Return the model of that name; `shape` and `classes` go to who has such a parameter."""
    target, known = import_object(name, _WHO), parameters(name)
    if isinstance(target, nn.Module):
        return copy.deepcopy(target)
    values = {
        key: value for key, value in zip(ALWAYS, (shape, classes), strict=True) if key in known
    }
    values |= options
    missing = [key for key, each in known.items() if _is_required(each) and key not in values]
    expected, remedy = (
        f"values for {' and '.join(missing)}",
        f"say {name}:{'=..., '.join(missing)}=...",
    )
    require(not missing, name, expected, "none", remedy)
    try:
        model = target(**values)
    except Exception as error:  # a user's class may raise anything
        if isinstance(error, ValueError) and " needs " in str(error):
            raise
        given = f" from {values}" if values else ""
        raise ValueError(
            f"{name} needs to build a model{given}, got {first_line(error, named=True)}."
        ) from error
    require(isinstance(model, nn.Module), name, "to return an nn.Module", model)
    result: nn.Module = model
    return result


def _is_required(parameter: inspect.Parameter) -> bool:
    free = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not free
