"""Losses by name, as the shell and files have them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from undrift.check import nearest
from undrift.usercode.load import import_object

Loss = Callable[[Tensor, Tensor], Tensor]

LOSSES: MappingProxyType[str, Loss] = MappingProxyType(
    {
        "cross_entropy": F.cross_entropy,
        "bce": F.binary_cross_entropy_with_logits,
        "mse": F.mse_loss,
        "mae": F.l1_loss,
        "huber": F.huber_loss,
        "smooth_l1": F.smooth_l1_loss,
    }
)
NUMBER_LOSSES = frozenset(LOSSES[name] for name in ("mse", "mae", "huber", "smooth_l1"))
MODULES: MappingProxyType[type[nn.Module], Loss] = MappingProxyType(
    {
        nn.CrossEntropyLoss: F.cross_entropy,
        nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits,
        nn.MSELoss: F.mse_loss,
        nn.L1Loss: F.l1_loss,
        nn.HuberLoss: F.huber_loss,
        nn.SmoothL1Loss: F.smooth_l1_loss,
    }
)
_OTHER_NAMES = {  # what torch and others call them -> the name here
    **{function.__name__: name for name, function in LOSSES.items()},
    "crossentropy": "cross_entropy",
    "ce": "cross_entropy",
    "bce_with_logits": "bce",
    "bcewithlogits": "bce",
    "l1": "mae",
    "l2": "mse",
    "smoothl1": "smooth_l1",
}


def named_loss(name: str) -> Loss:
    """Return the loss of a name such as "cross_entropy", "mse_loss" or "CrossEntropyLoss".

    `file.py:function` names a function of outputs and targets of one's own.
    """
    if ":" in name:
        own: Loss = as_loss(import_object(name, "loss"))
        return own
    known = name.lower().rpartition(".")[2].replace("-", "_").replace(" ", "_")
    for form in (known, known.removesuffix("_loss"), known.removesuffix("loss")):
        if (form := _OTHER_NAMES.get(form, form)) in LOSSES:
            return LOSSES[form]
    raise ValueError(
        f"loss needs a function of outputs and targets, file.py:function or one of "
        f"{', '.join(LOSSES)}, got {name!r}{nearest(name, LOSSES)}."
    )


def torch_loss(loss: Any) -> Loss | None:
    """Return the loss of the library that a name, or torch's function or module, stands for.

    Options such as weights or a reduction make no difference. None stands for any other loss.
    """
    if isinstance(loss, str):
        return None if ":" in loss else named_loss(loss)
    function = loss.func if isinstance(loss, functools.partial) else loss
    if isinstance(function, nn.Module):
        function = MODULES.get(type(function))
    return next((each for each in LOSSES.values() if each is function), None)


def as_loss(loss: Any) -> Loss:
    """Return the loss that a user has given as a function or by name."""
    if isinstance(loss, str):
        return named_loss(loss)
    if isinstance(loss, type):
        raise ValueError(
            f"loss needs a function of outputs and targets, got the class {loss.__name__}; make an "
            f"object of it: {loss.__name__}()."
        )
    if not callable(loss):
        raise ValueError(
            f"loss needs a function of outputs and targets or one of {', '.join(LOSSES)}, got "
            f"{loss!r}."
        )
    function: Loss = loss
    return function
