"""A run whose loss stays at its start says so once, with what is likely to keep it there.

The first test from a tenth of the rounds on decides, in round 10 at the earliest and with three
tests so far. A run is at its start if every test has a loss within one per cent of the first
model's, and none an accuracy more than two points above that model's. The first model is tested
for this only where the losses of the tests are that close to each other, so other runs pay nothing.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from undrift.core import Vector
from undrift.engine.evaluate import Score
from undrift.engine.world import World
from undrift.errors import StallWarning
from undrift.optim.schedules import resolve
from undrift.results.record_log import RecordLog

SHARE, EARLIEST, TESTS = 0.1, 10, 3  # of the rounds, the first round, and tests before a decision
SAME_LOSS = 0.01  # share of the first model's loss by which a loss may differ from it
SAME_ACCURACY = 0.02  # by which an accuracy may be above the first model's


def decisive_round(rounds: int) -> int:
    """Return the first round whose test may show that a run of so many is still at its start."""
    return max(EARLIEST, math.ceil(SHARE * rounds))


def at_start(tests: Sequence[Score], start: Score) -> bool:
    """Return whether no test differs from that of the first model."""
    same = all(abs(test.loss - start.loss) <= SAME_LOSS * abs(start.loss) for test in tests)
    gains = [(test.accuracy or 0) - (start.accuracy or 0) for test in tests]
    return same and max(gains) <= SAME_ACCURACY


def likely_causes(algorithm: Any) -> str:
    """Return in words what may keep a method at its start."""
    own = getattr(algorithm, "stall_cause", "")
    inner = algorithm
    while hasattr(inner, "inner"):
        inner = inner.inner
    lr = getattr(inner, "lr", None)
    size = f"lr = {lr:g}" if isinstance(lr, int | float) else "the step size"
    return "; or ".join(filter(None, (own, f"{size} is too small or too large")))


def warn_of_stall(text: str) -> None:
    """Tell by a `StallWarning` whoever asks for the rounds."""
    warnings.warn(text, StallWarning, stacklevel=5)


class StallWatch(ABC):
    """Lets a run tell that its loss has not moved; `stalled` is the sentence, "" without one."""

    stalled: str = ""
    algorithm: Any
    rounds: int
    round: int
    records: RecordLog
    world: World
    _x0: Vector
    _is_decided = False
    _on_stall: Callable[[str], None] = staticmethod(warn_of_stall)

    @abstractmethod
    def _test(self, x: Vector) -> Score:
        """Return the score of a model as a round's record has it."""

    def tell_stall(self, tell: Callable[[str], None]) -> None:
        """Give the sentence to a function instead of a `StallWarning`."""
        self._on_stall = tell

    def _watch_for_stall(self) -> None:
        """Tell once if the run is still at its start."""
        if self._is_decided or self.round < decisive_round(self.rounds):
            return
        tests = [Score(r.loss, r.accuracy) for r in self.records if r.loss is not None]
        if len(tests) < TESTS or self.records[-1].loss is None:
            return
        self._is_decided = True
        losses = [test.loss for test in tests]
        # Losses that are all near the first model's are at most twice as far from each other.
        if not max(losses) - min(losses) <= 2 * SAME_LOSS * max(map(abs, losses)):
            return
        start = self._test(self._x0)
        if not at_start(tests, start):
            return
        now = resolve(self.algorithm, self.round - 1)
        self.stalled = (
            f"{type(now).__name__} needs a loss that moves, got {losses[-1]:.4g} after round "
            f"{self.round} of {self.rounds} where the first model has {start.loss:.4g}; likely "
            f"causes: {likely_causes(now)}."
        )
        if self.world.head:
            self._on_stall(self.stalled)
