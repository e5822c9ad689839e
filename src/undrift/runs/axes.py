"""Numeric axes of a grid: the value beyond an end, and the one between two neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from undrift.check import is_finite
from undrift.optim.schedules import Schedule, parse, starting_at


@dataclass(frozen=True)
class NumericAxis:
    """Holds the positive values of a field in ascending order; schedules go by their start."""

    path: str
    values: tuple[Any, ...]
    whole: bool  # whether all values are whole numbers
    closed: bool  # whether zero was among the values, so that nothing lies below them

    @classmethod
    def of(cls, path: str, values: Sequence[Any]) -> NumericAxis | None:
        """Return the axis of these values, or None if they are words or not two numbers."""
        numbers = {value: _number(value) for value in values}
        if None in numbers.values():
            return None
        starts: dict[float, Any] = {}
        for value, number in numbers.items():
            starts.setdefault(float(number or 0.0), value)
        positive = tuple(starts[start] for start in sorted(starts) if start > 0)
        whole = all(isinstance(value, int) for value in values)
        closed = min(starts, default=0.0) <= 0
        return cls(path, positive, whole, closed) if len(positive) > 1 else None

    def side(self, value: Any) -> int:
        """Return 1 for the largest value, -1 for the smallest, and 0 for one between others."""
        if value == self.values[-1]:
            return 1
        return -1 if value == self.values[0] and not self.closed else 0

    def beyond(self, value: Any) -> Any:
        """Return the value one step beyond this end of the axis, by the ratio of the last step."""
        neighbour = self.values[-2] if self.side(value) > 0 else self.values[1]
        return self._with(value, _start(value) ** 2 / _start(neighbour))

    def neighbours(self, value: Any) -> list[Any]:
        """Return the values before and after this one, as far as there are any."""
        if value not in self.values:
            return []
        i = self.values.index(value)
        return [*self.values[max(0, i - 1) : i], *self.values[i + 1 : i + 2]]

    def between(self, value: Any, other: Any) -> Any:
        """Return the geometric mean of two values, in the form of the first."""
        return self._with(value, math.sqrt(_start(value) * _start(other)))

    def _with(self, value: Any, number: float) -> Any:
        """Return the value with another number, which has two digits so that it can be read."""
        if self.whole:
            return round(number)
        readable = float(f"{number:.2g}")
        schedule = parse(value) if isinstance(value, str) else value
        return starting_at(schedule, readable).text if isinstance(schedule, Schedule) else readable


def _number(value: Any) -> float | None:
    """Return the number that a value is or starts from, or None if it is none."""
    try:
        number = parse(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return float(number) if is_finite(number) and number >= 0 else None


def _start(value: Any) -> float:
    return _number(value) or 1.0
