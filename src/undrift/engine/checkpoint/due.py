"""Checkpoints are due after so many rounds, or by time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 60.0  # between checkpoints by time, at least
SHARE = 0.03  # of a run's time that checkpoints by time may take


class SaveTimes:
    """Says after which rounds a run is saved: every so many, or with None by time.

    By time it is saved a minute after the start or the last checkpoint, and so rarely that saving
    takes less than `SHARE` of the time; not after the last round, when nothing is left to do.
    """

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._last, self._cost = time.monotonic(), 0.0

    @property
    def by_time(self) -> bool:
        """Return whether the clock decides."""
        return self._every is None

    def due(self, round: int, rounds: int) -> bool:
        """Return whether a run of so many rounds is to be saved after this one."""
        if self._every is not None:
            return round % self._every == 0 or round == rounds
        waited = time.monotonic() - self._last
        return 0 < round < rounds and waited >= max(SECONDS, self._cost / SHARE)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Count the time of a checkpoint that is saved in the block."""
        start = time.monotonic()
        yield
        self._last = time.monotonic()
        self._cost = self._last - start
