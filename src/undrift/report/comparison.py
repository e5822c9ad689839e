"""What a report is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.check import is_finite, require
from undrift.results.trial import Trial, by_label


@dataclass(frozen=True)
class Comparison:
    """Methods with their seeds on one task; the first label is what ratios refer to."""

    title: str
    trials: Sequence[Trial]
    target: float | Sequence[float] | None = None  # accuracies to be reached, as fractions
    command: str = ""  # that repeats it
    experiment: str = ""  # text of experiment.toml
    environment: Mapping[str, Any] = field(default_factory=dict)  # versions, git, machine, date
    notes: Mapping[str, str] = field(default_factory=dict)  # label -> what this method is
    partition: NDArray[np.int64] | None = None  # (clients, labels) samples
    labels: Sequence[str] = ()  # names of the partition's labels
    warnings: Sequence[str] = ()
    targets: tuple[float, ...] = field(init=False)  # ascending, each once

    def __post_init__(self) -> None:
        got = len(self.trials)
        require(got > 0, "Comparison", "at least one trial", got, "run an experiment first")
        object.__setattr__(self, "targets", _targets(self.target))
        if self.partition is not None:
            self._check_partition(np.asarray(self.partition))

    def _check_partition(self, counts: NDArray[np.int64]) -> None:
        table = counts.ndim == 2 and counts.size > 0 and counts.dtype.kind in "iu"
        expected = "a partition of whole numbers of shape (clients, labels)"
        got = f"{counts.dtype} of shape {counts.shape}"
        require(table and bool((counts >= 0).all()), "Comparison", expected, got)
        if self.labels:
            expected = f"{counts.shape[1]} names of labels, one a column of the partition"
            require(len(self.labels) == counts.shape[1], "Comparison", expected, len(self.labels))

    @property
    def methods(self) -> dict[str, list[Trial]]:
        return by_label(self.trials)

    @property
    def label_names(self) -> list[str]:
        if self.partition is None:
            return []
        return list(self.labels) or [str(k) for k in range(np.asarray(self.partition).shape[1])]


def _targets(given: Any) -> tuple[float, ...]:
    if given is None:
        return ()
    several: list[Any] = [given] if isinstance(given, Real | str) else [*given]
    for target in several:
        sound = is_finite(target) and 0 < target <= 1
        require(sound, "Comparison", "targets in (0, 1]", target, "write 80 % as 0.8")
    return tuple(sorted({float(target) for target in several}))
