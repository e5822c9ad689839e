"""The hardware that computes a run: where its model, its data and its draws are."""

from __future__ import annotations

import torch
from torch import nn

from undrift.check import nearest, require
from undrift.errors import first_line
from undrift.fleet.presets import PRESETS

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
_MEANT = dict.fromkeys(("gpu", "gpu:0", "nvidia"), "; a GPU is 'cuda', or 'mps' on a Mac")
_WORDS = ("auto", "cpu", "cuda", "cuda:0", "mps", "xpu")


def as_device(device: str | torch.device) -> torch.device:
    """Return the device that is meant; "auto" is an accelerator that is here, or else the CPU."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    expected = 'device as "auto", "cpu", "cuda:0" or "mps"'
    require(isinstance(device, str | torch.device), "simulate", expected, device)
    try:
        found = torch.device(device)
    except RuntimeError as error:
        near = _MEANT.get(str(device).lower()) or nearest(str(device), _WORDS)
        if str(device).partition(":")[0] in PRESETS:
            near = f"; simulated hardware of clients is fleet={device!r} (--fleet {device})"
        raise ValueError(
            f"device needs to be auto, cpu, cuda:0 or mps, got {device!r}{near}."
        ) from error
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise _missing(device, "torch finds no MPS, which Macs have")
    try:
        torch.empty(1, device=found)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise _missing(device, first_line(error).partition(". ")[0]) from error
    return found


def _missing(device: str | torch.device, reason: str) -> ValueError:
    """Return the error for a device that this machine does not have."""
    return ValueError(
        f"device needs hardware that this machine has, got {str(device)!r} ({reason}); say cpu, or "
        "auto for what is there."
    )


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model on a device, or raise a sentence where it cannot be there."""
    try:
        return model.to(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"The device {device} needs a model that it can hold, got {first_line(error)}; use "
            "model.float(), or another device."
        ) from error


def as_precision(precision: str | None, dtype: torch.dtype) -> torch.dtype | None:
    """Return the type in which forward passes compute, None for that of the parameters.

    torch computes in another type only what is float32.
    """
    known = ", ".join(PRECISIONS)
    fits = precision is None or precision in PRECISIONS
    require(fits, "precision", f"one of {known}", precision)
    found = None if precision is None else PRECISIONS[precision]
    plain = found is None or dtype == torch.float32
    remedy = "use model.float()"
    require(plain, f"precision {precision}", "a model of float32", str(dtype), remedy)
    return found
