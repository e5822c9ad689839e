"""The records of a long run: the last ones in memory, those before them in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any, overload

from undrift.results.record import Record
from undrift.results.strictjson import dumps_exactly, loads

WINDOW = 1000  # records that stay in memory at least; twice as many are there at most


class RecordLog(Sequence[Record]):
    """Is a list of records that can only grow, and whose memory does not grow with it.

    The file has no name and is gone with the log. All records of a log are of one type.
    """

    def __init__(self) -> None:
        self._recent: list[Record] = []
        self._file: IO[bytes] | None = None
        self._starts: list[int] = []  # where every `WINDOW` records begin in the file
        self._end = 0  # of the file

    def append(self, record: Record) -> None:
        """Add a record."""
        self._recent.append(record)
        if len(self._recent) >= 2 * WINDOW:
            self._write_oldest()

    def _write_oldest(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="undrift-records-")  # noqa: SIM115
        lines = [dumps_exactly(record.to_dict()) for record in self._recent[:WINDOW]]
        content = ("\n".join(lines) + "\n").encode()
        self._file.seek(self._end)
        self._file.write(content)
        # One assignment for what belongs together, so that a signal finds all of it or none.
        ends = ([*self._starts, self._end], self._end + len(content), self._recent[WINDOW:])
        self._starts, self._end, self._recent = ends

    def __len__(self) -> int:
        return WINDOW * len(self._starts) + len(self._recent)

    def __iter__(self) -> Iterator[Record]:
        for place in range(len(self._starts)):
            yield from self._written(place)
        yield from list(self._recent)

    def _written(self, place: int) -> list[Record]:
        """Return a window of records from the file."""
        if self._file is None:
            return []
        ends = [*self._starts, self._end]
        self._file.seek(ends[place])
        lines = self._file.read(ends[place + 1] - ends[place]).splitlines()
        kind: Any = type(self._recent[0])
        return [kind(**loads(line)) for line in lines]

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return list(self)[index]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"a log of {len(self)} records has no record {index}")
        written = WINDOW * len(self._starts)
        if place >= written:
            return self._recent[place - written]
        return self._written(place // WINDOW)[place % WINDOW]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __repr__(self) -> str:
        return f"RecordLog({len(self)} records)"
