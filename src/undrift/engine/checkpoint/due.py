"""Checkpoints are due after so many rounds, or by time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 60.0  # between checkpoints by time, at least
SHARE = 0.03  # of a run's time that checkpoints by time may take
SHORTEST = 300.0  # seconds that a run is taken to last, so that the first checkpoint need not wait


class SaveTimes:
    """Says after which rounds a run is saved: every so many, or with None by time.

    By time it is saved a minute after the start or the last checkpoint at the earliest, and only
    if all checkpoints, this one included, take less than `SHARE` of the time since the start or of
    five minutes, even if it takes twice as long as expected. What is expected follows from the
    bytes to be saved and from what the last checkpoint took, or a trial before the first one. After
    the last round nothing is left to do.
    """

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._start = self._last = time.monotonic()
        self._cost, self._bytes = 0.0, 0  # of the last checkpoint or trial
        self._total = 0.0  # seconds of all

    @property
    def by_time(self) -> bool:
        """Return whether the clock decides."""
        return self._every is None

    @property
    def cost_is_known(self) -> bool:
        """Return whether there was a checkpoint or a trial."""
        return self._bytes > 0

    def waited(self, round: int, rounds: int) -> bool:
        """Return whether a run of so many rounds may be saved again after this one."""
        if self._every is not None:
            return round % self._every == 0 or round == rounds
        return 0 < round < rounds and time.monotonic() - self._last >= SECONDS

    def affordable(self, nbytes: int) -> bool:
        """Return whether so many bytes can be saved within the share of time."""
        if self._every is not None or not self.cost_is_known:
            return True
        expected = self._cost * max(1.0, nbytes / self._bytes)
        elapsed = max(SHORTEST, time.monotonic() - self._start)
        return self._total + 2 * expected <= SHARE * elapsed

    @contextmanager
    def saving(self, nbytes: int) -> Iterator[None]:
        """Count the time of a checkpoint of so many bytes that is saved in the block."""
        with self.trying(nbytes):
            yield
        self._last = time.monotonic()

    @contextmanager
    def trying(self, nbytes: int) -> Iterator[None]:
        """Count the time of a trial; the block writes so many bytes."""
        start = time.monotonic()
        yield
        self._cost, self._bytes = time.monotonic() - start, max(1, nbytes)
        self._total += self._cost
