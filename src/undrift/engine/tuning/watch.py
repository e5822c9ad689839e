"""A run's own cost is compared with what its calibration found, which may then be doubted."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from undrift.engine.tuning import memory
from undrift.engine.tuning.memory import Finding

ROUNDS = 3  # after which a run is compared at the earliest
SECONDS = 1.0  # of CPU time, likewise
FACTOR = 3.0  # between a run's cost and the trial's beyond which the trial is doubted
DOUBTS = 2  # after which the same finding stays
MARGIN = 0.9  # of the cost of the run that another execution must undercut


@dataclass
class CostWatch:
    """Collects what a run's gradients cost, and doubts the finding once they do not fit it."""

    key: str  # of the finding in the user's cache
    name: str  # of the execution that the run has
    finding: Finding
    _costs: list[float] = field(default_factory=list, init=False)  # of a gradient, round by round
    _seconds: float = field(default=0.0, init=False)
    _judged: bool = field(default=False, init=False)

    def add(self, seconds: float, gradients: int) -> None:
        """Take the CPU seconds of a round; a round without gradients tells nothing."""
        if self._judged or not gradients:
            return
        self._costs.append(seconds / gradients)
        self._seconds += seconds
        if len(self._costs) >= ROUNDS and self._seconds >= SECONDS:
            self._judged = True
            if self._doubtful(statistics.median(self._costs)):
                memory.doubt(self.key)

    def _doubtful(self, cost: float) -> bool:
        """Return whether another execution seems faster, or the trials were of another speed."""
        own = self.finding.seconds.get(self.name)
        if own is None or self.finding.doubts >= DOUBTS:
            return False
        others = [value for name, value in self.finding.seconds.items() if name != self.name]
        faster = bool(others) and min(others) < MARGIN * cost
        return faster or not own / FACTOR <= cost <= own * FACTOR
