"""Trials, that is, one method with one seed each, and the files that hold their results.

A folder of results has `experiment.toml`, `environment.json`, and three files for every trial:

    <name>.jsonl    one line for each round, flushed at once
    <name>.json     the settings and how the trial ended
    <name>.csv      the same records for spreadsheets

The name is `records` where a folder has a single trial. `<name>.earlier-1.jsonl` has the records of
a start that could not be gone on with.
"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from undrift import files
from undrift.errors import UndriftError
from undrift.results.filenames import DRIFT, EARLIER
from undrift.results.metrics import SMOOTHING_NAMES, curve, primary, rises, value_of
from undrift.results.record import STRICT, VALIDATION, Record, Totals, from_fields, plain, record_of
from undrift.results.record_log import RecordLog
from undrift.results.strictjson import dumps_exactly, loads

Status = Literal["finished", "diverged", "stopped"]


@dataclass(frozen=True)
class Trial:
    """One method with one seed: holds its settings, its records and how it ended."""

    __pydantic_config__: ClassVar[Any] = STRICT

    label: str  # the name in a table: "FedSpeed", or "FedSpeed lr=0.3" in a grid
    method: str  # name of the class
    settings: Mapping[str, Any]  # hyper-parameters, with schedules as text
    seed: int
    rounds: int  # that the trial is to run
    records: Sequence[Record] = ()
    status: Status = "stopped"
    reason: str = ""  # why the trial diverged
    totals: Totals | None = None  # of all rounds; None stands for the sums of the records
    model_sha256: str | None = None
    damaged: int = 0  # lines of the records' file that could not be read
    facts: Mapping[str, Any] = field(default_factory=dict)  # mode, cell of a sweep, amount of data
    name: str = ""  # of the files, without their suffix

    @property
    def ended(self) -> bool:
        """Return whether nothing is left to run."""
        return self.status != "stopped"

    def total(self, name: str) -> float:
        """Return the sum of one cost over all rounds."""
        if self.totals is not None:
            return float(getattr(self.totals, name))
        return float(sum(getattr(r, name) or 0 for r in self.records))

    def recent(self, name: str) -> float | None:
        """Return the mean of a field over ten rounds up to the last that has it, None without any.

        Rounds count and not evaluations, so that it means the same however often a run is tested.
        """
        have = [(r.round, v) for r in self.records if (v := value_of(r, name)) is not None]
        recent = [value for round, value in have if round > have[-1][0] - 10]
        return float(np.mean(recent)) if recent else None

    @property
    def last(self) -> float:
        """Return the mean accuracy of the last ten rounds, steadier than that of the last."""
        return self.reached() or 0.0

    def reached(self, smoothing: str = "raw", metric: str = "accuracy") -> float | None:
        """Return the smoothed metric at the last evaluation, or None if it was never measured.

        Where nothing is smoothed, it is the mean over the last ten rounds.
        """
        if smoothing == "raw":
            return self.recent(metric)
        values = curve(self.records, metric, smoothing).values
        return values[-1] if values else None

    @property
    def megabytes(self) -> float:
        """Return the megabytes that were sent in both directions."""
        return (self.total("bytes_up") + self.total("bytes_down")) / 1e6


def by_label(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Group trials that differ only in their seed, in the order of their first trials."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.label, []).append(trial)
    return groups


def mean_reached(seeds: Sequence[Trial], smoothing: str = "raw", metric: str = "accuracy") -> float:
    """Return the mean over seeds of `Trial.reached`; a run that did not finish counts as 0."""
    reached = [t.reached(smoothing, metric) if t.status == "finished" else 0.0 for t in seeds]
    return float(np.mean([value or 0.0 for value in reached]))


@dataclass(frozen=True)
class CellScore:
    """Scores a cell of a sweep by the mean of its seeds; the best has the highest score.

    The metric is accuracy, or what stands for a run that does not classify. One of which less is
    better has its sign changed, and a cell with a run that did not finish is then the last.
    """

    smoothing: str = "raw"
    metric: str = "accuracy"
    rising: bool = True

    @classmethod
    def of(cls, trials: Sequence[Trial], smoothing: str) -> CellScore:
        """Return the score on validation samples if every finished trial has some."""
        finished = [trial for trial in trials if trial.status == "finished"]
        records = [record for trial in trials for record in trial.records]
        metric = primary(records) if records else "accuracy"
        validated = [trial.recent(f"{VALIDATION}{metric}") is not None for trial in finished]
        chosen = f"{VALIDATION}{metric}" if validated and all(validated) else metric
        return cls(smoothing, chosen, rises(chosen, records))

    @property
    def percent(self) -> bool:
        """Return whether tables show the score in per cent."""
        return self.metric.removeprefix(VALIDATION) == "accuracy"

    @property
    def validated(self) -> bool:
        """Return whether the metric is that on validation samples."""
        return self.metric.startswith(VALIDATION)

    @property
    def name(self) -> str:
        """Return what the score is, in a table."""
        smoothed = "" if self.smoothing == "raw" else f" ({SMOOTHING_NAMES[self.smoothing]})"
        return f"{self.metric.replace(VALIDATION, 'validation ')}{smoothed}"

    @property
    def heading(self) -> str:
        """Return the name with its unit."""
        return f"{self.name} %" if self.percent else self.name

    def __call__(self, seeds: Sequence[Trial]) -> float:
        """Return the score of a cell."""
        if self.rising:
            return mean_reached(seeds, self.smoothing, self.metric)
        reached = [t.reached(self.smoothing, self.metric) for t in seeds if t.status == "finished"]
        known = [value for value in reached if value is not None]
        return -float(np.mean(known)) if known and len(known) == len(seeds) else -math.inf

    def text(self, seeds: Sequence[Trial]) -> str:
        """Return the mean of a cell as tables have it."""
        return self.shown(self(seeds))

    def shown(self, score: float) -> str:
        """Return a score as tables have it: the metric itself."""
        if self.percent:
            return f"{100 * score:.2f}"
        return "-" if math.isinf(score) else f"{plain(score if self.rising else -score)}"


class Journal:
    """Writes a trial's files while it runs; a resumed trial keeps every record that it has.

    Rounds after the checkpoint that were recorded before a kill are run again and not written
    again. A trial that starts anew although it has records moves these aside. Only one process
    writes; the others have no folder and keep the records in memory.
    """

    def __init__(self, folder: Path | None, name: str, trial: Trial, *, after: Record | None):
        self.trial = replace(trial, status="stopped")
        self.moved: str | None = None  # the name of the file with the records of an earlier start
        self._folder, self._name = folder, name
        self._log = RecordLog()  # where nothing is written
        self.round = 0  # the last one that is recorded, 0 for none
        if folder is None:
            return
        kept: list[Record] = []
        if after is None:
            self.moved = self._move_earlier()
        else:
            kept = _kept(read_records(self._path(".jsonl"))[0], after)
            self.round = kept[-1].round
        lines = "".join(dumps_exactly(record.to_dict()) + "\n" for record in kept)
        write_result(self._path(".jsonl"), lines)
        self._describe()

    @property
    def records(self) -> list[Record]:
        """Return all records, which are read from the file; memory holds none of them."""
        return list(self._log) if self._folder is None else read_records(self._path(".jsonl"))[0]

    def _move_earlier(self) -> str | None:
        """Give the records of an earlier start names of their own; return that of the lines."""
        lines = self._path(".jsonl")
        if not lines.is_file() or not lines.stat().st_size:
            return None
        marks = (f"{EARLIER}{number}" for number in itertools.count(1))
        mark = next(mark for mark in marks if not self._path(f"{mark}.jsonl").exists())
        for suffix in (DRIFT, ".csv", ".jsonl"):
            with suppress(FileNotFoundError):
                self._path(suffix).rename(self._path(f"{mark}{suffix}"))
        return self._path(f"{mark}.jsonl").name

    def add(self, record: Record) -> None:
        """Append a record to the file at once, or raise `RecordingError`."""
        if self._folder is None:
            self._log.append(record)
            self.round = record.round
            return
        path = self._path(".jsonl")
        line = (dumps_exactly(record.to_dict()) + "\n").encode()
        try:
            # A buffer would try to write its rest once more when the file is closed.
            with path.open("ab", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                try:
                    while line:
                        line = line[file.write(line) :]
                except OSError:
                    os.truncate(path, before)  # half of a line could not be read
                    raise
        except OSError as error:
            raise RecordingError(
                f"{path} could not be written: {error.strerror or error}; the rounds up to "
                f"{record.round - 1} are in it, free some space and resume."
            ) from error
        self.round = record.round

    def end(self, status: Status, reason: str = "", **outcome: Any) -> Trial:
        """Write how the trial ended, with totals, model_sha256 and facts, and return the trial."""
        self.trial = replace(
            self.trial, records=self.records, status=status, reason=reason, **outcome
        )
        if self._folder is not None:
            self._describe()
        return self.trial

    def _path(self, suffix: str) -> Path:
        return (self._folder or Path()) / f"{self._name}{suffix}"

    def _describe(self) -> None:
        """Write everything but the records."""
        description = asdict(replace(self.trial, records=()))
        del description["records"]
        write_result(self._path(".json"), dumps_exactly(description, indent=1) + "\n")


def _kept(written: Sequence[Record], after: Record) -> list[Record]:
    """Return the records of a trial that goes on after a round, also of the rounds that follow.

    A kill may come after the checkpoint was saved and before its record was written.
    """
    by_round = {record.round: record for record in written}
    earlier = [by_round[round] for round in sorted(by_round) if round < after.round]
    kept = [*earlier, after]
    while (following := by_round.get(kept[-1].round + 1)) is not None:
        kept.append(following)
    return kept


class RecordingError(UndriftError):
    """Says that records could not be written."""


def write_result(path: Path, text: str) -> None:
    """Write a file of results atomically, or raise `RecordingError`."""
    try:
        files.write_atomic(path, text)
    except OSError as error:
        raise RecordingError(f"{path} could not be written: {error.strerror or error}.") from error


def read_records(path: Path) -> tuple[list[Record], int]:
    """Return all sound records, and the number of damaged lines, such as a kill leaves."""
    records, damaged = [], []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            records.append(record_of(loads(line)))
        except ValueError:
            damaged.append(number)
    if damaged:
        where = f"line {damaged[0]}" if len(damaged) == 1 else f"{len(damaged)} lines"
        verb = "is" if len(damaged) == 1 else "are"
        warnings.warn(f"{path.name}: {where} {verb} damaged and left out.", stacklevel=2)
    return records, len(damaged)


def read_trial(folder: Path, name: str) -> Trial | None:
    """Return the trial of this name in a folder, or None where the folder has none."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    try:
        fields = loads(path.read_text(encoding="utf-8"))
        records, damaged = read_records(folder / f"{name}.jsonl")
        return from_fields(Trial, {**fields, "records": records, "damaged": damaged, "name": name})
    except (TypeError, ValueError) as error:
        raise UndriftError(
            f"{path} needs to describe a trial and is damaged ({error}); run it again."
        ) from error


def read_trials(folder: Path) -> list[Trial]:
    """Return all trials of a folder in the order of their names."""
    described = [path for path in folder.glob("*.json") if path.with_suffix(".jsonl").is_file()]
    names = [path.stem for path in sorted(described, key=lambda path: path.name)]
    return [trial for name in names if (trial := read_trial(folder, name)) is not None]
