"""Trackers by name, and a tracker that consists of others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from undrift.check import nearest, require
from undrift.results.record import Record
from undrift.results.tracking.plain import CSV, Tracker, name_of
from undrift.results.tracking.services import MLflow, TensorBoard, WandB
from undrift.results.trial import Trial
from undrift.usercode.load import import_object


class Trackers:
    """Passes a trial to several trackers; one that fails is dropped, unless it is required."""

    required: ClassVar[bool] = True

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def begin(self, trial: Trial) -> None:
        """Begin a trial with each tracker."""
        self._each(lambda tracker: tracker.begin(trial), f"before {name_of(trial)}")

    def add(self, record: Record) -> None:
        """Pass a record to each tracker."""
        self._each(lambda tracker: tracker.add(record), f"in round {record.round}")

    def end(self, trial: Trial) -> None:
        """End a trial with each tracker."""
        self._each(lambda tracker: tracker.end(trial), f"at the end of {name_of(trial)}")

    def _each(self, do: Callable[[Tracker], None], when: str) -> None:
        """Call each tracker, and drop those that fail."""
        for tracker in list(self.trackers):
            try:
                do(tracker)
            except Exception as error:
                if getattr(tracker, "required", False):
                    raise
                self.trackers.remove(tracker)
                why = " ".join(str(error).split()) or "no reason given"
                warnings.warn(
                    f"{type(tracker).__name__} failed {when} ({type(error).__name__}: {why}); "
                    "the run goes on without it.",
                    stacklevel=4,
                )


NAMED: dict[str, Callable[[Path], Tracker]] = {
    "csv": CSV,
    "tensorboard": lambda folder: TensorBoard(folder / "tensorboard"),
    "mlflow": MLflow,
    "wandb": WandB,
    "wandb:online": lambda folder: WandB(folder, "online"),
}


def parse(text: str, folder: str | Path) -> Tracker:
    """Return the tracker of this name, or a user's own `module:Class`, for results in a folder."""
    name = text.strip()
    if name.lower() in NAMED:
        return NAMED[name.lower()](Path(folder))
    module, _, cls = name.rpartition(":")
    if not module or not cls or module.lower() in NAMED:
        known = ", ".join(NAMED)
        raise ValueError(
            f"A tracker needs to be one of {known} or module:Class, got {text!r}"
            f"{nearest(name, NAMED)}."
        )
    return _own(module, cls, Path(folder))


def _own(place: str, name: str, folder: Path) -> Tracker:
    cls = import_object(f"{place}:{name}", "A tracker")
    fits = isinstance(cls, type) and issubclass(cls, Tracker)
    require(fits, "A tracker", "a class with begin, add and end", cls)
    tracker: Tracker = cls(folder)
    return tracker
