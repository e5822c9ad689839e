"""Tuning in words and numbers: every cell that was tried, and what was chosen by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from undrift.results.trial import Trial, mean_reached

METRIC = "validation_accuracy"


class CellRank(NamedTuple):
    """Orders the cells of a method: one that finished, then accuracy, then the lower loss."""

    finished: bool  # whether a seed did; a cell that diverged is the worst
    accuracy: float
    gain: float  # the loss with its sign changed

    @classmethod
    def of(cls, seeds: Sequence[Trial], smoothing: str) -> CellRank:
        """Return the rank of a cell by its seeds on validation samples, never on test samples."""
        finished = [trial for trial in seeds if trial.status == "finished"]
        losses = [trial.recent("validation_loss") for trial in finished]
        known = [loss for loss in losses if loss is not None and np.isfinite(loss)]
        gain = -float(np.mean(known)) if known and len(known) == len(seeds) else -np.inf
        return cls(bool(finished), mean_reached(seeds, smoothing, METRIC), gain)


@dataclass(frozen=True)
class TriedCell:
    """Says what a cell came to on validation samples, and what became of it."""

    method: str
    cell: Mapping[str, Any]  # field -> value
    rounds: int
    accuracy: float | None  # mean over the tuning's seeds; None if no seed finished
    loss: float | None
    outcome: str  # such as "chosen", "cut", "diverged", or no text

    @classmethod
    def of(
        cls,
        method: str,
        cell: Mapping[str, Any],
        seeds: Sequence[Trial],
        smoothing: str,
        outcome: str,
    ) -> TriedCell:
        """Return what became of a cell with these seeds."""
        rank = CellRank.of(seeds, smoothing)
        classified = any(trial.recent(METRIC) is not None for trial in seeds)
        return cls(
            method,
            cell,
            seeds[0].rounds,
            rank.accuracy if rank.finished and classified else None,
            -rank.gain if np.isfinite(rank.gain) else None,
            outcome if rank.finished else "diverged",
        )

    @property
    def text(self) -> str:
        """Return the cell such as `lr=0.1, mu=1.0`."""
        return ", ".join(f"{path.rpartition('.')[2]}={v}" for path, v in self.cell.items())


@dataclass(frozen=True)
class Tuning:
    """Holds every cell that was tried and what there is to say of the choice."""

    tried: Sequence[TriedCell]
    sentences: Sequence[str]  # how cells were chosen, and what a reader must know of the choice
    diverged: Sequence[str] = ()  # methods that have no final runs, because all cells diverged

    @property
    def methods(self) -> dict[str, list[TriedCell]]:
        """Return the cells of each method in the order in which they were tried."""
        methods: dict[str, list[TriedCell]] = {}
        for each in self.tried:
            methods.setdefault(each.method, []).append(each)
        return methods
