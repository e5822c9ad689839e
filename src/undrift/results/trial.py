"""What runs left behind: their records, how they ended, and how to read them back.

A folder of results holds, beside `experiment.toml` and `environment.json`, for every trial, that
is, one method with one seed,

    <name>.jsonl    one line a round, flushed at once
    <name>.json     what it is and how it ended
    <name>.csv      the records once more, for spreadsheets

with `records` as the name where there is one trial only.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from undrift.errors import UndriftError
from undrift.results.record import PeerRecord, Record, Totals
from undrift.results.strictjson import dumps_exactly, loads

Status = Literal["finished", "diverged", "stopped"]


@dataclass(frozen=True)
class Trial:
    """One method with one seed: what it was asked for and what came of it."""

    label: str  # what a table calls it: "FedSpeed", or "FedSpeed lr=0.3" in a grid
    method: str  # the class's name
    settings: Mapping[str, Any]  # its hyper-parameters, schedules as text
    seed: int
    rounds: int  # asked for
    records: Sequence[Record] = ()
    status: Status = "stopped"
    reason: str = ""  # why it diverged
    totals: Totals | None = None  # of the whole run; None: the records' sums
    model_sha256: str | None = None
    damaged: int = 0  # lines of its file that were left out
    facts: Mapping[str, Any] = field(default_factory=dict)  # mode and why, cell of a sweep
    name: str = ""  # of its files

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to run."""
        return self.status != "stopped"

    def total(self, name: str) -> float:
        if self.totals is not None:
            return float(getattr(self.totals, name))
        return float(sum(getattr(r, name) or 0 for r in self.records))

    def recent(self, name: str) -> float | None:
        """Mean over the last ten rounds that have it; None for what this family has not."""
        seen = [getattr(r, name, None) for r in self.records]
        values = [value for value in seen if value is not None][-10:]
        return float(np.mean(values)) if values else None

    @property
    def last(self) -> float:
        """Mean accuracy of the last ten evaluations, steadier than the last one alone."""
        return self.recent("accuracy") or 0.0

    @property
    def megabytes(self) -> float:
        return (self.total("bytes_up") + self.total("bytes_down")) / 1e6


def by_label(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Trials that differ in nothing but the seed, together, in the order of their coming."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.label, []).append(trial)
    return groups


def mean_last(seeds: Sequence[Trial]) -> float:
    """Return the mean over seeds of `Trial.last`; a run that diverged counts as 0."""
    return float(np.mean([t.last if t.status == "finished" else 0.0 for t in seeds]))


class Journal:
    """A trial's files, written as it goes; going on drops what a resume repeats.

    Of several processes one writes; the others keep the records in memory, without a path.
    """

    def __init__(self, folder: Path | None, name: str, trial: Trial, *, after: Record | None):
        self.trial = replace(trial, status="stopped")
        self.records: list[Record] = []
        self._folder, self._name = folder, name
        if folder is None:
            return
        if after is not None:
            # The record of the checkpoint itself may not have been written before a kill.
            kept, _ = read_records(self._path(".jsonl"))
            self.records = [r for r in kept if r.round < after.round] + [after]
        lines = "".join(dumps_exactly(record.to_dict()) + "\n" for record in self.records)
        write_atomic(self._path(".jsonl"), lines)
        self._describe()

    def add(self, record: Record) -> None:
        self.records.append(record)
        if self._folder is None:
            return
        path = self._path(".jsonl")
        line = (dumps_exactly(record.to_dict()) + "\n").encode()
        try:
            # Without a buffer: one would try again to write its rest when the file is closed.
            with path.open("ab", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                try:
                    while line:
                        line = line[file.write(line) :]
                except OSError:
                    os.truncate(path, before)  # half a line is worse than none
                    raise
        except OSError as error:
            raise RecordingError(
                f"{path} could not be written: {error.strerror or error}; the rounds up to "
                f"{record.round - 1} are in it, free some space and resume."
            ) from error

    def end(self, status: Status, reason: str = "", **found: Any) -> Trial:
        """`found`: totals, model_sha256, facts."""
        self.trial = replace(
            self.trial, records=self.records, status=status, reason=reason, **found
        )
        if self._folder is not None:
            self._describe()
        return self.trial

    def _path(self, suffix: str) -> Path:
        return (self._folder or Path()) / f"{self._name}{suffix}"

    def _describe(self) -> None:
        told = {key: value for key, value in asdict(self.trial).items() if key != "records"}
        write_atomic(self._path(".json"), dumps_exactly(told, indent=1) + "\n")


class RecordingError(UndriftError):
    """Records that could not be written."""


def write_atomic(path: Path, text: str) -> None:
    """All of it or nothing."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise RecordingError(f"{path} could not be written: {error.strerror or error}.") from error


def read_records(path: Path) -> tuple[list[Record], int]:
    """All sound lines, and how many are not, such as the torn one that a kill leaves."""
    records, damaged = [], []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            fields = loads(line)
            records.append((PeerRecord if "consensus" in fields else Record)(**fields))
        except (TypeError, ValueError):
            damaged.append(number)
    if damaged:
        where = f"line {damaged[0]}" if len(damaged) == 1 else f"{len(damaged)} lines"
        verb = "is" if len(damaged) == 1 else "are"
        warnings.warn(f"{path.name}: {where} {verb} damaged and left out.", stacklevel=2)
    return records, len(damaged)


def read_trial(folder: Path, name: str) -> Trial | None:
    """What a folder holds of a trial; None where it holds nothing."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    try:
        told = loads(path.read_text(encoding="utf-8"))
        totals = told.pop("totals", None)
        records, damaged = read_records(folder / f"{name}.jsonl")
        told.update(records=records, damaged=damaged, name=name)
        return Trial(**told, totals=None if totals is None else Totals(**totals))
    except (TypeError, ValueError) as error:
        raise UndriftError(
            f"{path} needs to describe a trial and is damaged ({error}); run it again."
        ) from error


def read_trials(folder: Path) -> list[Trial]:
    """All trials of a folder, in the order in which they were begun."""
    described = [path for path in folder.glob("*.json") if path.with_suffix(".jsonl").is_file()]
    names = [path.stem for path in sorted(described, key=lambda path: path.name)]
    return [trial for name in names if (trial := read_trial(folder, name)) is not None]
