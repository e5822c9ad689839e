"""Losses as people write them: torch's modules and partial functions are read as plain functions.

`nn.CrossEntropyLoss()` and `functools.partial(F.cross_entropy, reduction="mean")` compute what
`F.cross_entropy` does, so they are replaced by it and have the same gradients from the same code.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from undrift.gradients.mlp import hooked
from undrift.tasks import MODULES, Loss


def plain_loss(loss: Loss) -> Loss:
    """Return torch's function that the loss is with other spelling, or else the loss itself."""
    if isinstance(loss, functools.partial):
        known = loss.func in MODULES.values() and not loss.args
        return loss.func if known and _at_defaults(loss.func, loss.keywords) else loss
    if not isinstance(loss, nn.Module):
        return loss
    function = MODULES.get(type(loss))  # A subclass may do anything.
    if function is None or _changed(loss):
        return loss
    options = {name: getattr(loss, name) for name in _parameters(function) if hasattr(loss, name)}
    return function if _at_defaults(function, options) else loss


def _changed(module: nn.Module) -> bool:
    """Return whether a user has replaced the module's forward pass or hooked into it."""
    return "forward" in vars(module) or hooked(module)


def _at_defaults(function: Loss, options: Mapping[str, Any]) -> bool:
    defaults = _parameters(function)
    same = (
        name in defaults and type(value) is type(defaults[name]) and value == defaults[name]
        for name, value in options.items()
    )
    return all(same)


def _parameters(function: Loss) -> dict[str, Any]:
    """Return the defaults of the function's options by their names."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}
