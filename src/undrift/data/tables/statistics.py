"""Statistics of a table: counts, sums and sums of squares of numbers, and counts of words.

Sums are whole numbers in units of a power of two, so they lose nothing: those of several tables add
up to those of one table with all their rows, in any order, and so does what is fitted to them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from undrift.data.tables.kinds import Kind
from undrift.errors import DataError

MANTISSA = 53  # bits of a float64
LEAST_POWER, MOST_POWER = -1200, 1200  # of units; a float64 has exponents of -1074 to 1023
MOST_DIGITS = 2000  # hexadecimal, of a sum; a float64's square needs about 1,100
FORM = 1  # of the JSON; another number is another form


@dataclass(frozen=True)
class NumberSums:
    """Holds the exact sum of numbers in units of 2^power, and of their squares in 4^power."""

    count: int = 0
    total: int = 0
    squares: int = 0
    power: int = 0

    @classmethod
    def of(cls, numbers: NDArray[np.float64]) -> NumberSums:
        """Return the sums of finite numbers."""
        fractions, exponents = np.frexp(numbers)
        whole = np.ldexp(fractions, MANTISSA).astype(np.int64)
        powers = np.where(whole == 0, 0, exponents - MANTISSA)
        least = int(powers.min(initial=0))
        total = squares = 0
        for power in np.unique(powers).tolist():
            some = whole[powers == power].tolist()
            total += sum(some) << (power - least)
            squares += sum(each * each for each in some) << 2 * (power - least)
        return cls(len(numbers), total, squares, least)

    def plus(self, other: NumberSums) -> NumberSums:
        """Return the sums of both."""
        power = min(self.power, other.power)
        mine, theirs = self.power - power, other.power - power
        return NumberSums(
            self.count + other.count,
            (self.total << mine) + (other.total << theirs),
            (self.squares << 2 * mine) + (other.squares << 2 * theirs),
            power,
        )

    @property
    def mean(self) -> float:
        """Return the mean, 0 of no numbers and infinity where no float is as large."""
        return _rounded(Fraction(self.total, max(1, self.count)), self.power)

    def deviation(self, rows: int) -> float:
        """Return the deviation of so many rows of which the others are at the mean.

        It is 1 where all numbers are the same but for the rounding of floats.
        """
        scatter = Fraction(self.squares) - Fraction(self.total**2, max(1, self.count))
        variance = _rounded(scatter / max(1, rows), 2 * self.power)
        rounding = rows * self.mean * float(np.finfo(np.float64).eps)
        return math.sqrt(variance) if variance > rounding * rounding else 1.0


def _rounded(value: Fraction, power: int) -> float:
    """Return value * 2^power as the nearest float."""
    scaled = value * (Fraction(2**power) if power >= 0 else Fraction(1, 2**-power))
    try:
        return float(scaled)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class ColumnStatistics:
    """Holds what is known of a column: sums of its numbers, or counts of its words."""

    kind: Kind | None = None  # None where the table has no cell of it
    sums: NumberSums = NumberSums()
    words: Mapping[str, int] | None = None


@dataclass(frozen=True)
class TargetStatistics:
    """Holds what is known of the target: sums of numbers that are predicted, or the classes."""

    sums: NumberSums | None = None  # of the training rows
    words: Mapping[str, int] | None = None  # of all rows


@dataclass(frozen=True)
class TableStatistics:
    """Holds what one or several tables tell: no row of theirs is in it."""

    rows: int  # for training
    columns: Mapping[str, ColumnStatistics]
    target: TargetStatistics

    def to_json(self) -> str:
        """Return the statistics as JSON, which `from_json` reads."""
        columns = [
            {"name": name, "kind": each.kind, "sums": _sums_text(each.sums), "words": each.words}
            for name, each in self.columns.items()
        ]
        target = {"sums": _sums_text(self.target.sums), "words": self.target.words}
        return json.dumps({"form": FORM, "rows": self.rows, "columns": columns, "target": target})

    @classmethod
    def from_json(cls, text: str) -> TableStatistics:
        """Return what `to_json` has written, or raise `DataError`; text of others is checked."""
        try:
            values = json.loads(text)
            if values["form"] != FORM:
                raise ValueError(f"its form is {values['form']!r}, not {FORM}")
            columns = {_text(each["name"]): _column(each) for each in values["columns"]}
            if len(columns) != len(values["columns"]):
                raise ValueError("a column is there twice")
            aim = values["target"]
            target = TargetStatistics(_sums(aim["sums"]), _words(aim["words"]))
            if (target.sums is None) == (target.words is None):
                raise ValueError("a target has sums or words")
            return cls(_count(values["rows"]), columns, target)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"Statistics of a table need JSON as undrift writes it, got an error: {error}."
            ) from error


def joined_words(words: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return how often each word is there in all of them."""
    total: Counter[str] = Counter()
    for each in words:
        total.update(each)
    return dict(total)


def joined_sums(sums: Sequence[NumberSums]) -> NumberSums:
    """Return the sums of all of them."""
    total = NumberSums()
    for each in sums:
        total = each if total.count == 0 else total.plus(each)
    return total


def _sums_text(sums: NumberSums | None) -> list[Any] | None:
    if sums is None:
        return None
    return [sums.count, hex(sums.total), hex(sums.squares), sums.power]


def _sums(values: Any) -> NumberSums | None:
    if values is None:
        return None
    count, total, squares, power = values
    for text in (total, squares):
        if not isinstance(text, str) or len(text) > MOST_DIGITS:
            raise ValueError(f"sums have at most {MOST_DIGITS} digits")
    if not isinstance(power, int) or not LEAST_POWER <= power <= MOST_POWER:
        raise ValueError(f"a unit needs a power in {LEAST_POWER}...{MOST_POWER}")
    return NumberSums(_count(count), int(total, 16), int(squares, 16), power)


def _column(values: Mapping[str, Any]) -> ColumnStatistics:
    kind = values["kind"]
    if kind not in ("number", "category", None):
        raise ValueError(f"columns of kind number or category, got {kind!r}")
    sums = _sums(values["sums"]) or NumberSums()
    return ColumnStatistics(cast("Kind | None", kind), sums, _words(values["words"]))


def _words(values: Any) -> dict[str, int] | None:
    if values is None:
        return None
    return {_text(word): _count(count) for word, count in values.items()}


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 2**53:
        raise ValueError(f"a count is a whole number, got {value!r:.40}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a name is text, got {value!r:.40}")
    return value
