"""The learning rate of a method as torch's schedulers see and change it, between two rounds."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from undrift.optim.schedules import Schedule

M = TypeVar("M")


def lr_of(method: Any) -> float | None:
    """Return the learning rate of a method, or of the method inside a wrapper."""
    if hasattr(method, "lr"):
        return method.lr  # type: ignore[no-any-return]
    return lr_of(method.inner) if hasattr(method, "inner") else None


def with_lr(method: M, lr: float) -> M:
    """Return the method with another learning rate, if it has a number that differs.

    A `Schedule` stays: it says the rate of every round itself.
    """
    own = lr_of(method)
    if own is None or isinstance(own, Schedule) or own == lr:
        return method
    changes = {"lr": lr} if hasattr(method, "lr") else {"inner": with_lr(_inner(method), lr)}
    return dataclasses.replace(method, **changes)  # type: ignore[type-var]


def require_one_schedule(method: Any, lr: float, left: float) -> None:
    """Raise if a torch scheduler has changed the rate that a `Schedule` of the method sets."""
    own = lr_of(method)
    if isinstance(own, Schedule) and lr != left:
        raise ValueError(
            f"Outer needs one schedule of the learning rate, got lr={own!r} of the method and "
            f"{lr:g} in param_groups, from a torch scheduler or the script; leave the scheduler "
            "out, or give the method a number."
        )


def _inner(method: Any) -> Any:
    return method.inner
