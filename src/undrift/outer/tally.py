"""Counts of a rank in the course of a round."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from undrift.outer.gradients import StepGradients


class Tally:
    """Counts the losses, gradients and seconds of a round's local steps."""

    def __init__(self) -> None:
        self._loss: Any = 0.0
        self._losses = 0
        self.gradients = self.steps = 0
        self._began = self.ended = time.perf_counter()

    def count(self, source: StepGradients) -> None:
        """Count a step that has succeeded."""
        self.steps += 1
        self.gradients += source.asked
        if isinstance(source.loss, Tensor):
            self._loss = self._loss + source.loss.detach()  # without a wait for the device
            self._losses += 1

    @property
    def loss(self) -> float:
        """Return the mean loss of the steps."""
        return float(self._loss) / max(1, self._losses)

    def end(self) -> None:
        """End the local steps, unless another pass follows."""
        self.ended = time.perf_counter()

    @property
    def local_seconds(self) -> float:
        """Return the seconds from the beginning of the round to the end of its steps."""
        return self.ended - self._began

    @property
    def seconds_a_step(self) -> float:
        """Return the seconds of a local step, 0 without one."""
        return self.local_seconds / self.steps if self.steps else 0.0
