"""`Effort` is what work costs: wall time, and CPU time, which other processes do not lengthen."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Effort(NamedTuple):
    """Holds what work has taken, or the readings of the clocks at a moment."""

    wall: float  # seconds
    process: float  # CPU seconds of all threads
    thread: float  # CPU seconds of the calling thread

    @classmethod
    def now(cls) -> Effort:
        """Return the readings of the clocks."""
        return cls(time.perf_counter(), time.process_time(), time.thread_time())

    def spent(self) -> Effort:
        """Return what was taken since these readings."""
        return Effort(*(now - then for now, then in zip(Effort.now(), self, strict=True)))

    def path(self, threads: int) -> float:
        """Return the CPU seconds of the busiest of so many threads that have shared the work.

        On an idle machine that is the wall time, unless threads have waited for each other.
        """
        return max(self.thread, self.process / threads)


def machine_seconds() -> float | None:
    """Return the CPU seconds that all processes of the machine have taken, None if unknown."""
    with suppress(OSError, ValueError, IndexError):
        first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, _, _, irq, softirq, steal = map(int, first[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return None
