"""Argument checks that say what was expected, what came, and what to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


def require(condition: bool, who: str, expected: str, got: Any, remedy: str = "") -> None:
    """Raise `ValueError("<who> needs <expected>, got <got>; <remedy>.")` unless condition."""
    if not condition:
        raise ValueError(f"{who} needs {expected}, got {got!r}{'; ' + remedy if remedy else ''}.")


def require_positive(who: str, **values: float) -> None:
    for name, value in values.items():
        require(is_finite(value) and value > 0, who, f"{name} > 0, a finite number", value)


def require_nonnegative(who: str, **values: float) -> None:
    for name, value in values.items():
        require(is_finite(value) and value >= 0, who, f"{name} >= 0, a finite number", value)


def is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def is_probability(value: Any) -> bool:
    """Return whether the value is a number in [0, 1]."""
    return is_finite(value) and 0 <= value <= 1


def is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_choice(who: str, name: str, value: str, choices: Iterable[str]) -> None:
    known = list(choices)
    if value not in known:
        raise ValueError(
            f"{who} needs {name} to be one of {', '.join(known)}, got {value!r}"
            f"{nearest(value, known)}."
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a clause that names the nearest known name, or "" when none is near."""
    near = difflib.get_close_matches(str(name).lower(), list(known), n=1, cutoff=0.5)
    return f"; the nearest is {near[0]!r}" if near else ""
