"""The content of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.check import is_finite, require, require_choice
from undrift.results.metrics import SMOOTHING_NAMES
from undrift.results.record import Record
from undrift.results.trial import Trial, by_label

if TYPE_CHECKING:
    from undrift.report.paired import PairedComparison


@dataclass(frozen=True)
class Comparison:
    """Holds methods with their seeds on one task; ratios refer to the first label."""

    title: str
    trials: Sequence[Trial]
    target: float | Sequence[float] | None = None  # accuracies to be reached, as fractions
    command: str = ""  # that repeats the comparison
    experiment: str = ""  # text of experiment.toml
    environment: Mapping[str, Any] = field(default_factory=dict)  # versions, git, machine, date
    notes: Mapping[str, str] = field(default_factory=dict)  # label -> description of the method
    partition: NDArray[np.int64] | None = None  # (clients, labels) samples
    labels: Sequence[str] = ()  # names of the partition's labels
    warnings: Sequence[str] = ()
    paired: PairedComparison | None = None  # what was shown after tuning
    smoothing: str = "raw"  # of the accuracies at R/2 and R and of those held against targets
    targets: tuple[float, ...] = field(init=False)  # ascending, each once

    def __post_init__(self) -> None:
        got = len(self.trials)
        require(got > 0, "Comparison", "at least one trial", got, "run an experiment first")
        require_choice("Comparison", "smoothing", self.smoothing, SMOOTHING_NAMES)
        object.__setattr__(self, "targets", _targets(self.target))
        if self.partition is not None:
            self._check_partition(np.asarray(self.partition))

    def _check_partition(self, counts: NDArray[np.int64]) -> None:
        """Raise `ValueError` unless the partition has counts for all labels."""
        table = counts.ndim == 2 and counts.size > 0 and counts.dtype.kind in "iu"
        expected = "a partition of whole numbers of shape (clients, labels)"
        got = f"{counts.dtype} of shape {counts.shape}"
        require(table and bool((counts >= 0).all()), "Comparison", expected, got)
        if self.labels:
            expected = f"{counts.shape[1]} names of labels, one a column of the partition"
            require(len(self.labels) == counts.shape[1], "Comparison", expected, len(self.labels))

    @property
    def methods(self) -> dict[str, list[Trial]]:
        """Return the trials of each label."""
        return by_label(self.trials)

    @property
    def records(self) -> list[Record]:
        """Return the records of all trials."""
        return [record for trial in self.trials for record in trial.records]

    @property
    def smoothing_name(self) -> str:
        """Return the smoothing's name in tables, or no text where nothing is smoothed."""
        return "" if self.smoothing == "raw" else SMOOTHING_NAMES[self.smoothing]

    @property
    def label_names(self) -> list[str]:
        """Return the names of the partition's labels."""
        if self.partition is None:
            return []
        return list(self.labels) or [str(k) for k in range(np.asarray(self.partition).shape[1])]


def _targets(target_or_list: Any) -> tuple[float, ...]:
    """Return targets in ascending order, each once, or raise `ValueError`."""
    if target_or_list is None:
        return ()
    single = isinstance(target_or_list, Real | str)
    targets: list[Any] = [target_or_list] if single else [*target_or_list]
    for target in targets:
        sound = is_finite(target) and 0 < target <= 1
        require(sound, "Comparison", "targets in (0, 1]", target, "write 80 % as 0.8")
    return tuple(sorted({float(target) for target in targets}))
