"""Quantities that documents print: a metric, and where it is read off a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from undrift.check import require, require_choice

# The metrics by name: whether more is better, and the unit of what is printed.
METRICS: dict[str, tuple[bool, str]] = {
    "accuracy": (True, "%"),
    "last_accuracy": (True, "%"),
    "best_accuracy": (True, "%"),
    "share": (True, "%"),
    "rounds": (False, "rounds"),
    "megabytes_to": (False, "MB"),
    "gradients_to": (False, "gradients"),
    "seconds_to": (False, "s"),
    "simulated_to": (False, "simulated s"),
    "seconds_round": (False, "s a round"),
    "megabytes_round": (False, "MB a round"),
    "megabytes": (False, "MB"),
    "gradients": (False, "gradients"),
    "simulated_seconds": (False, "simulated s"),
    "loss": (False, ""),
    "train_loss": (False, ""),
    "variation": (False, ""),
    "divergence": (False, ""),
    "cka": (True, ""),
    "sign_matching": (True, "%"),
    "consensus": (False, ""),
    "sharpness": (False, ""),
    "hessian": (False, ""),
}
TO_TARGET = ("share", "rounds", "megabytes_to", "gradients_to", "seconds_to", "simulated_to")
AT_ROUND = ("share", "accuracy", "loss", "train_loss", "cka", "consensus")


@dataclass(frozen=True)
class Quantity:
    """Names what is read off a run: a metric at a round, or a cost to a target."""

    metric: str
    at: int | None = None  # the round; None: the last
    target: float | None = None  # the accuracy that is reached
    relative_to: str | None = None  # the method whose value divides it

    def __post_init__(self) -> None:
        require_choice("A published cell", "metric", self.metric, METRICS)
        needs, has = self.metric in TO_TARGET, self.target is not None
        expected = "a target" if needs else "no target"
        require(needs == has, f"metric = {self.metric!r}", expected, self.target)
        timed = self.at is None or self.metric in AT_ROUND
        require(timed, f"metric = {self.metric!r}", "no round (at)", self.at)

    @property
    def rises(self) -> bool:
        """Return whether more is better."""
        return METRICS[self.metric][0]

    @property
    def unit(self) -> str:
        """Return the unit of the printed value."""
        return "x" if self.relative_to else METRICS[self.metric][1]

    @property
    def text(self) -> str:
        """Return the quantity in words, such as "rounds to 81 %"."""
        name = self.metric.removesuffix("_to").replace("_", " ")
        at = "" if self.at is None else f" at {self.at}"
        to = "" if self.target is None else f" to {100 * self.target:g} %"
        of = "" if self.relative_to is None else f" relative to {self.relative_to}"
        return f"{name}{at}{to}{of}"


@dataclass(frozen=True)
class Value:
    """Holds a number, or the bound that a cost lies beyond where a target was not reached."""

    number: float
    beyond: bool = False  # whether the value lies above the number, as in a printed "1000+"

    @classmethod
    def of(cls, printed: Any) -> Value:
        """Return the value of a number, of ">1000", or of "diverges"."""
        if isinstance(printed, int | float) and not isinstance(printed, bool):
            return cls(float(printed))
        text = str(printed)
        if text == "diverges":
            return cls(math.nan)
        try:
            require(text.startswith(">"), "", "", "")
            return cls(float(text[1:]), beyond=True)
        except ValueError:
            raise ValueError(
                f"A published value needs a number, '>1000' or 'diverges', got {printed!r}."
            ) from None

    @property
    def plain(self) -> float | str:
        """Return the value as a file has it."""
        if math.isnan(self.number):
            return "diverges"
        return f">{self.number:g}" if self.beyond else self.number


UNKNOWN = Value(-math.inf, beyond=True)  # of a run that has a value which nobody can tell


def lead(
    better: Value, worse: Value, *, rises: bool, factor: bool = False
) -> tuple[float, float] | None:
    """Return the least and the most by which, or how many times, the first can be better.

    The two differ where a value lies beyond a bound. A run that diverged is worse than any that did
    not; None says that both did.
    """
    if math.isnan(better.number) and math.isnan(worse.number):
        return None
    if math.isnan(worse.number):
        return math.inf, math.inf
    if math.isnan(better.number):
        return -math.inf, -math.inf
    high, low = (better, worse) if rises else (worse, better)
    (least_high, most_high), (least_low, most_low) = _ends(high), _ends(low)
    if factor:
        return _ratio(least_high, most_low), _ratio(most_high, least_low)
    return least_high - most_low, most_high - least_low


def _ends(value: Value) -> tuple[float, float]:
    return value.number, math.inf if value.beyond else value.number


def _ratio(high: float, low: float) -> float:
    if math.isinf(low):
        return 0.0
    return high / low if low else math.inf
