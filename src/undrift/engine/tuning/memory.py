"""Findings of calibrations are kept in the user's cache until a run gives reason to doubt them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from undrift.engine.execution.executor import Mode
from undrift.files import user_cache, write_atomic
from undrift.untrusted import read_json

MODES: tuple[Mode, ...] = ("loop", "threads", "stacked")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Holds the fastest execution of a calibration, and what every execution took."""

    mode: Mode
    channels_last: bool
    seconds: Mapping[str, float]  # of a gradient, by the name of the execution
    doubts: int = 0  # runs in a row after which the same was found again
    doubtful: bool = False  # whether a run gave reason to measure again

    @classmethod
    def from_json(cls, entry: Any) -> Finding | None:
        """Return what `asdict` has written, None for anything else."""
        with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
            seconds = {str(name): float(value) for name, value in entry["seconds"].items()}
            sound = all(math.isfinite(value) and value > 0 for value in seconds.values())
            if entry["mode"] in MODES and seconds and sound:
                return cls(
                    mode=entry["mode"],
                    channels_last=bool(entry["channels_last"]),
                    seconds=seconds,
                    doubts=int(entry["doubts"]),
                    doubtful=bool(entry["doubtful"]),
                )
        return None


def recall(key: str) -> Finding | None:
    """Return what was found earlier, or None."""
    return Finding.from_json(_read().get(key))


def remember(key: str, finding: Finding) -> None:
    """Write a finding to the cache, unless the cache cannot be written."""
    path = _place()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(_read() | {key: asdict(finding)}, indent=1))


def doubt(key: str) -> None:
    """Mark a finding, so that the next start measures again."""
    finding = recall(key)
    if finding is not None and not finding.doubtful:
        remember(key, replace(finding, doubtful=True))


def _place() -> Path:
    return user_cache() / "calibration.json"


def _read() -> dict[str, Any]:
    """Return all entries; none if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        entries = read_json(_place())
        if isinstance(entries, dict):
            return entries
    return {}
