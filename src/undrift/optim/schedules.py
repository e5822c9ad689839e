"""Hyper-parameters that change with the round.

A `Schedule` is the float of round 0 with a rule for the others, so it can be given wherever an
algorithm takes a number: `FedAvg(lr=exponential(0.1, 0.998))`. The engine replaces it once a round
(`resolve`); algorithm bodies only ever see plain floats.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from undrift.check import is_whole, require

A = TypeVar("A")
LONGEST = 10_000  # characters of a schedule; Python's parser has no bound of its own


class Schedule(float):
    """Is a number that depends on the round: `at(t)` returns it, `float(...)` that of round 0."""

    at: Callable[[int], float]
    text: str
    anonymous: bool

    def __new__(cls, at: Callable[[int], float], text: str | None = None) -> Schedule:
        self = super().__new__(cls, at(0))
        self.at = at
        self.anonymous = text is None  # only the function tells such a schedule from another
        self.text = text or f"Schedule({getattr(at, '__name__', repr(at))})"
        return self

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return False
        return self.at is other.at or (self.text == other.text and not self.anonymous)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[Any, ...]:
        return Schedule, (self.at, None if self.anonymous else self.text)


def _exponential(start: float, factor: float, t: int) -> float:
    """Return the value of an exponential schedule in round t."""
    return start * _power(factor, t)


def _power(factor: float, exponent: int) -> float:
    """Return the power, infinite beyond the largest number, which a method's checks refuse."""
    try:
        return float(factor) ** exponent
    except OverflowError:
        return math.inf


def _staircase(start: float, factor: float, every: int, t: int) -> float:
    """Return the value of a staircase in round t."""
    return start * _power(factor, t // every)


def _piecewise(start: float, changes: tuple[tuple[int, float], ...], t: int) -> float:
    """Return the value of a piecewise constant schedule in round t."""
    value = start
    for since, new in changes:
        if t >= since:
            value = new
    return value


def exponential(start: float, factor: float) -> Schedule:
    """Return the schedule start * factor**t, which the papers use for learning rates."""
    return Schedule(partial(_exponential, start, factor), f"exponential({start}, {factor})")


def staircase(start: float, factor: float, every: int) -> Schedule:
    """Return the schedule start * factor**(t // every), which changes once in `every` rounds.

    With every = period it is what Marsit's `decay` makes of lr and server_lr.
    """
    sound = is_whole(every) and every >= 1
    require(sound, "staircase", "every >= 1, a whole number of rounds", every)
    text = f"staircase({start}, {factor}, {every})"
    return Schedule(partial(_staircase, start, factor, every), text)


def piecewise(start: float, changes: Mapping[int, float]) -> Schedule:
    """Return `start`, then each value from its round on: `piecewise(0.1, {50: 0.5, 150: 1.0})`."""
    ordered = tuple(sorted(changes.items()))
    text = f"piecewise({start}, {dict(ordered)})"
    return Schedule(partial(_piecewise, start, ordered), text)


def starting_at(schedule: Schedule, start: float) -> Schedule:
    """Return a schedule of the same form from another start; what follows changes with it."""
    law: Any = schedule.at
    form: Any = getattr(law, "func", None)
    arguments: tuple[Any, ...] = getattr(law, "args", ())
    if form is _exponential:
        return exponential(start, arguments[1])
    if form is _staircase:
        return staircase(start, *arguments[1:])
    require(form is _piecewise, "starting_at", "a schedule of this module", schedule.text)
    before, changes = arguments
    return piecewise(start, {t: float(f"{v * start / before:.4g}") for t, v in changes})


def resolve(algorithm: A, t: int) -> A:
    """Return the algorithm with every schedule, also in nested fields, as its value in round t.

    Replacing runs the dataclass's own checks again, so a value that leaves its range is refused.
    """
    if not dataclasses.is_dataclass(algorithm) or isinstance(algorithm, type):
        return algorithm
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        now = value.at(t) if isinstance(value, Schedule) else resolve(value, t)
        if now is not value:
            changed[field.name] = now
    return dataclasses.replace(algorithm, **changed) if changed else algorithm


def scheduled(algorithm: object) -> bool:
    """Return whether any hyper-parameter changes with the round."""
    return resolve(algorithm, 0) is not algorithm


def parse(text: str) -> float:
    """Return the number or the schedule that prints so: `0.1`, `exponential(0.1, 0.998)`."""
    makers: dict[str, Callable[..., Schedule]] = {
        "exponential": exponential,
        "staircase": staircase,
        "piecewise": piecewise,
    }
    name, bracket, rest = text.strip().partition("(")
    try:
        if not bracket:
            return float(text)
        if len(text) > LONGEST:
            raise ValueError(f"more than {LONGEST:,} characters")
        arguments = ast.literal_eval(f"({rest.strip().removesuffix(')')},)")
        return makers[name.strip()](*arguments)
    except (ArithmeticError, AttributeError, KeyError, MemoryError, RecursionError, SyntaxError,
            TypeError, ValueError) as error:  # fmt: skip
        got = text if len(text) <= 100 else f"{text[:100]}..."
        raise ValueError(
            f"A hyper-parameter needs a number or a schedule such as exponential(0.1, 0.998), "
            f"staircase(0.03, 0.1, 100) or piecewise(0.1, {{50: 0.01}}), got {got!r}."
        ) from error
