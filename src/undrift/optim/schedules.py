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


def _cosine(start: float, rounds: int, end: float, t: int) -> float:
    """Return the value of a cosine schedule in round t."""
    share = min(t, rounds) / rounds
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def _warmup(value: float, rounds: int, t: int) -> float:
    """Return a value, or what a schedule has `rounds` later, after a linear rise to it."""
    if t < rounds:
        return float(value) * (t + 1) / (rounds + 1)
    return value.at(t - rounds) if isinstance(value, Schedule) else value


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


def cosine(start: float, rounds: int, end: float = 0.0) -> Schedule:
    """Return half a cosine from `start` in round 0 down to `end` after so many rounds."""
    sound = is_whole(rounds) and rounds >= 1
    require(sound, "cosine", "rounds >= 1, a whole number", rounds)
    text = f"cosine({start}, {rounds})" if end == 0 else f"cosine({start}, {rounds}, {end})"
    return Schedule(partial(_cosine, start, rounds, end), text)


def warmup(value: float, rounds: int) -> Schedule:
    """Return a linear rise over so many rounds to a value or to a schedule, which then begins.

    `warmup(cosine(0.1, 45), 5)` rises for 5 rounds and falls for 45.
    """
    sound = is_whole(rounds) and rounds >= 1
    require(sound, "warmup", "rounds >= 1, a whole number", rounds)
    anonymous = isinstance(value, Schedule) and value.anonymous
    text = None if anonymous else f"warmup({value!r}, {rounds})"
    return Schedule(partial(_warmup, value, rounds), text)


def starting_at(schedule: Schedule, start: float) -> Schedule:
    """Return a schedule of the same form from another start; what follows changes with it."""
    law: Any = schedule.at
    form: Any = getattr(law, "func", None)
    arguments: tuple[Any, ...] = getattr(law, "args", ())
    if form is _exponential:
        return exponential(start, arguments[1])
    if form is _staircase:
        return staircase(start, *arguments[1:])
    if form is _cosine:
        return cosine(start, *arguments[1:])
    if form is _warmup:
        inner, rounds = arguments
        scheduled_inner = isinstance(inner, Schedule)
        return warmup(starting_at(inner, start) if scheduled_inner else start, rounds)
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
    try:
        if "(" not in text:
            return float(text)
        if len(text) > LONGEST:
            raise ValueError(f"more than {LONGEST:,} characters")
        schedule: float = _called(ast.parse(text.strip(), mode="eval").body)
        return schedule
    except (ArithmeticError, AttributeError, KeyError, MemoryError, RecursionError, SyntaxError,
            TypeError, ValueError) as error:  # fmt: skip
        got = text if len(text) <= 100 else f"{text[:100]}..."
        raise ValueError(
            f"A hyper-parameter needs a number or a schedule such as exponential(0.1, 0.998), "
            f"cosine(0.1, 50), warmup(0.1, 5), staircase(0.03, 0.1, 100) or "
            f"piecewise(0.1, {{50: 0.01}}), got {got!r}."
        ) from error


_MAKERS: Mapping[str, Callable[..., Schedule]] = {
    "exponential": exponential,
    "cosine": cosine,
    "warmup": warmup,
    "staircase": staircase,
    "step": staircase,
    "piecewise": piecewise,
}


def _called(node: ast.expr) -> Any:
    """Return the schedule of a call, whose arguments are literals or calls themselves."""
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    require(not node.keywords, "A schedule", "no names of arguments", ast.unparse(node))
    return _MAKERS[node.func.id](*map(_called, node.args))  # type: ignore[attr-defined]
