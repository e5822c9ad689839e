"""Taps of a run beside `Drift`: one that keeps local models, and one that joins several taps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from undrift.core import Vector
from undrift.engine.execution.cohort import RecordingTap, Tap, Upload


class ThreeModels:
    """Keeps the local models of one round, those of its three clients with the least numbers."""

    def __init__(self, round: int) -> None:
        self.round = round
        self._models: dict[int, Vector] = {}

    def __call__(self, upload: Upload) -> None:
        if upload.round != self.round or upload.weight <= 0 or upload.y is None:
            return
        self._models[upload.client] = upload.y
        for client in self.clients[3:]:
            del self._models[client]

    @property
    def clients(self) -> list[int]:
        """Return the numbers of the clients."""
        return sorted(self._models)

    @property
    def models(self) -> list[Vector]:
        """Return the models of the clients, in the same order."""
        return [self._models[client] for client in self.clients]


class JointTap:
    """Passes every upload on to several taps, and records what they record."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self._taps = taps

    def __call__(self, upload: Upload) -> None:
        for tap in self._taps:
            tap(upload)

    def record_fields(self, round: int) -> Mapping[str, float | None]:
        """Return the fields of a record that its taps have measured."""
        recording = [tap for tap in self._taps if isinstance(tap, RecordingTap)]
        return {
            name: value for tap in recording for name, value in tap.record_fields(round).items()
        }
