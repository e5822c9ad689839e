"""How a contestant and the runner talk: one line of JSON for each line of one word.

The runner writes "round", "accuracy" or "stop"; the contestant says {"ready": true, ...} once, and
then answers a round with {"seconds", "cpu_seconds", "peak_rss_bytes", "steps", "samples"}, and with
"execution" where it can tell how it computed. It waits between rounds in `Line.next`, also where a
framework owns the loop and calls it from a hook, so that rounds of all contestants can take turns.
Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.speed import usage

Accuracy = Callable[[], float | None]


@dataclass(frozen=True)
class Options:
    """Holds the options that a contestant is started with."""

    workload: str
    data: str
    threads: int | None
    processes: int
    variant: str

    @classmethod
    def parse(cls, arguments: Sequence[str] | None = None) -> Options:
        parser = argparse.ArgumentParser(description="One contestant; started by the runner.")
        parser.add_argument("--workload", required=True)
        parser.add_argument("--data", required=True)
        parser.add_argument("--threads", type=int)
        parser.add_argument("--processes", type=int, default=1)
        parser.add_argument("--variant", default="")
        return cls(**vars(parser.parse_args(arguments)))

    def arguments(self) -> list[str]:
        line = ["--workload", self.workload, "--data", self.data, "--variant", self.variant]
        line += ["--processes", str(self.processes)]
        return line if self.threads is None else [*line, "--threads", str(self.threads)]


class Line:
    """The contestant's end of the protocol; what a framework prints goes to stderr."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._ready = False
        self._playing: tuple[float, float, float] | None = None
        self._counts: tuple[int, int] | None = None
        self._execution: Mapping[str, str] = {}

    def worked(self, steps: int, samples: int, execution: Mapping[str, str] | None = None) -> None:
        """Note what the current round has done, over all clients, and how."""
        self._counts = steps, samples
        self._execution = execution or {}

    def next(self, accuracy: Accuracy = lambda: None) -> bool:
        """End the round that was played, if any; wait; whether another is to be played."""
        if self._playing is not None:
            self._report(*self._playing)
        elif not self._ready:
            self._say(ready=True, setup_seconds=time.perf_counter() - self._started)
        self._ready, self._playing, self._counts = True, None, None
        # Not `for line in sys.stdin`, which reads ahead.
        while (command := sys.stdin.readline().strip()) not in ("", "stop"):
            if command == "round":
                spent = usage.descendants_seconds()
                self._playing = spent, time.process_time(), time.perf_counter()
                return True
            if command == "accuracy":
                self._say(accuracy=accuracy())
            else:
                self._say(error=f"got {command!r}, which is no command")
        return False

    def refuse(self, why: str) -> None:
        """Take no part, and say why."""
        self._say(refused=why)

    def _report(self, spent: float, own: float, wall: float) -> None:
        wall, own = time.perf_counter() - wall, time.process_time() - own
        cpu = own + usage.descendants_seconds() - spent
        steps, samples = self._counts or (None, None)
        peak = usage.own_peak_bytes()
        facts = {"steps": steps, "samples": samples, "execution": dict(self._execution)}
        self._say(seconds=wall, cpu_seconds=cpu, peak_rss_bytes=peak, **facts)

    def _say(self, **facts: object) -> None:
        self._answers.write(json.dumps(facts) + "\n")
        self._answers.flush()
