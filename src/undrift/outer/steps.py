"""The local steps of each rank between two meetings: numbers, or what fits into a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from undrift.check import is_whole, require, require_positive
from undrift.core import AllReduce, Peer


@dataclass(frozen=True)
class Seconds:
    """Makes rounds last about so many seconds: `every=Seconds(60)`.

    Each rank's steps are set before a round, from the seconds of its steps in the round before. The
    first round has one step.
    """

    seconds: float

    def __post_init__(self) -> None:
        require_positive("Seconds", seconds=self.seconds)


def first_counts(every: Any, size: int, method: Any) -> tuple[int, ...]:
    """Return the local steps of each rank in the first round."""
    if isinstance(every, Seconds):
        return (_least(method),) * size
    who, expected = "Outer", "every >= 1, a whole number of local steps, or one for each rank"
    if isinstance(every, Sequence) and not isinstance(every, str):
        require(len(every) == size, who, f"every with {size} numbers, one for each rank", every)
        require(all(map(_positive, every)), who, expected, every)
        return tuple(int(count) for count in every)
    require(_positive(every), who, f"{expected}, or Seconds(60)", every)
    return (int(every),) * size


def next_counts(
    every: Any, counts: Sequence[int], seconds: Sequence[float], method: Any
) -> tuple[int, ...]:
    """Return the local steps of each rank in the next round.

    `seconds` are what a step of the last round took on each rank, 0 where nothing was measured.
    """
    if not isinstance(every, Seconds):
        return tuple(counts)
    new = [
        max(_least(method), round(every.seconds / each)) if each > 0 else count
        for each, count in zip(seconds, counts, strict=True)
    ]
    return (min(new),) * len(new) if _together(method) else tuple(new)


def check_counts(method: Any, counts: Sequence[int]) -> None:
    """Raise for unequal steps where ranks would wait for each other inside a round."""
    if not isinstance(method, Peer) or len(set(counts)) == 1:
        return
    if _together(method) or min(counts) < method.meetings:
        raise ValueError(
            f"{type(method).__name__} needs the same number of local steps on every rank, got "
            f"{list(counts)}; use one number as every."
        )


def _together(method: Any) -> bool:
    """Return whether all ranks need the same number of steps."""
    return isinstance(method, AllReduce) or (isinstance(method, Peer) and method.every_step)


def _least(method: Any) -> int:
    return max(1, method.meetings) if isinstance(method, Peer) else 1


def _positive(count: Any) -> bool:
    return is_whole(count) and count >= 1
