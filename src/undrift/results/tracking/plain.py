"""The protocol of trackers, and the tracker that every run has: a CSV file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from undrift.check import require
from undrift.results.record import NESTED, Record
from undrift.results.trial import RecordingError, Trial, write_result


@runtime_checkable
class Tracker(Protocol):
    """Takes a trial's records; a tracker that fails is dropped unless its `required` is True."""

    def begin(self, trial: Trial) -> None:
        """Begin a trial, or continue it after the records (or totals) that it already has."""
        ...

    def add(self, record: Record) -> None:
        """Take the record of the next round."""
        ...

    def end(self, trial: Trial) -> None:
        """End the trial that was begun."""
        ...


def name_of(trial: Trial) -> str:
    """Return the name of a trial's files and runs."""
    name = "".join(c if c.isalnum() or c in "=.,+-" else "_" for c in trial.label)
    return f"{name}-seed{trial.seed}"


class CSV:
    """Writes one flushed line per round to `<path>/<trial>.csv`, or to `path` if that ends in .csv.

    None is an empty cell. A failed write stops the run and leaves only complete lines.
    """

    required: ClassVar[bool] = True

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._owner: str | None = None  # the trial that `path` belongs to, if it is a file
        self._columns: list[str] = []  # from the first round on

    def begin(self, trial: Trial) -> None:
        self._columns = []
        if self._path.suffix == ".csv":
            self._goal = self._path
            single = self._owner in (None, name_of(trial))
            remedy = "pass a folder, where each has its own"
            require(single, f"CSV({str(self._path)!r})", "one trial", name_of(trial), remedy)
        else:
            self._goal = self._path / f"{name_of(trial)}.csv"
        self._owner = name_of(trial)
        header = (self._rows() or [[]])[0]
        known = [each.name for each in fields(Record) if each.name not in NESTED]
        ours = not header or header[: len(known)] == known
        require(ours, "CSV", "a new file or one of its own", str(self._goal), "move it away")

    def add(self, record: Record) -> None:
        try:
            if not self._columns:
                self._open(record)
            values = record.flat()
            self._widen(list(values))
            self._write([_cell(values.get(name)) for name in self._columns])
        except OSError as error:
            raise RecordingError(
                f"{self._goal} could not be written: {error.strerror or error}; the rounds before "
                f"{record.round} are in it, free some space and resume."
            ) from error

    def end(self, trial: Trial) -> None:
        self._columns = []

    def _rows(self) -> list[list[str]]:
        """Return the complete lines of the file; a kill may have left half a line."""
        if not self._goal.is_file():
            return []
        text = self._goal.read_text(encoding="utf-8", errors="replace")
        rows = list(csv.reader(text.splitlines(keepends=True)))
        return rows if text.endswith("\n") else rows[:-1]

    def _open(self, first: Record) -> None:
        """Drop this round and later ones from the file, and add to it from now on."""
        # Metrics come after the fields, and a run that goes on may have them in another order.
        columns = [name for name in first.to_dict() if name not in NESTED]
        header, *rows = self._rows() or [list(first.flat())]
        same = header[: len(columns)] == columns
        require(same, "CSV", f"the columns {', '.join(columns)}", header, "move it away")
        complete = [row for row in rows if len(row) == len(header) and row[0].isdecimal()]
        earlier = [header, *(row for row in complete if int(row[0]) < first.round)]
        self._goal.parent.mkdir(parents=True, exist_ok=True)
        write_result(self._goal, "".join(_line(row) for row in earlier))
        self._columns = header

    def _widen(self, names: Sequence[str]) -> None:
        """Add columns for names that the rounds so far did not have, with empty cells there."""
        new = [name for name in names if name not in self._columns]
        if not new:
            return
        header, *rows = self._rows()
        wider = [[*header, *new], *([*row, *([""] * len(new))] for row in rows)]
        write_result(self._goal, "".join(_line(row) for row in wider))
        self._columns = wider[0]

    def _write(self, row: Sequence[str]) -> None:
        """Append one line, or leave the file as it was."""
        line, written = _line(row).encode(), 0
        with self._goal.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                while written < len(line):  # a full disk takes some bytes and refuses the rest
                    written += file.write(line[written:])
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {each}" for key, each in value.items())
    return "" if value is None else str(value)


def _line(row: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(row)
    return text.getvalue()
