"""Traces of presence: when each client can take part, in seconds of the simulated clock."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.check import is_whole, require, require_positive
from undrift.data.stored import damaged
from undrift.fleet.table import read_rows

Ids = NDArray[np.int64]
Span = tuple[float, float]

_COLUMNS = ("client", "start", "end")
_WHO = "Trace"


@dataclass(frozen=True, repr=False)
class Trace:
    """Holds each client's spans of presence, from start (included) to end (excluded).

    Spans that overlap or touch are merged. With a period all spans repeat for ever: each starts
    within the first period, and a span beyond the end of the period continues at its beginning. A
    client without a span is never present.
    """

    spans: Mapping[int, Iterable[Span]] | tuple[tuple[int, tuple[Span, ...]], ...]
    period: float | None = None
    largest_at: str = field(default="", compare=False)  # the file's line with the largest client

    def __post_init__(self) -> None:
        if self.period is not None:
            require_positive(_WHO, period=self.period)
            object.__setattr__(self, "period", float(self.period))
        listed = isinstance(self.spans, Mapping | tuple)
        require(listed, _WHO, "a dictionary of client: [(start, end), ...]", self.spans)
        merged = []
        by_client = dict(self.spans)
        for client in by_client:
            require(is_whole(client) and client >= 0, _WHO, "client ids 0, 1, ...", client)
        for client, spans in sorted(by_client.items()):
            pairs = [_pair(client, span) for span in spans]
            for pair in pairs:
                wrong = _wrong(*pair, self.period)
                if wrong:
                    expected, got, remedy = wrong
                    raise ValueError(
                        f"{_WHO} needs {expected}, got {got} for client {client}; {remedy}."
                    )
            if pairs:
                merged.append((int(client), _merged(_folded(pairs, self.period))))
        require(len(merged) >= 1, _WHO, "at least one span", 0, "give when clients are there")
        object.__setattr__(self, "spans", tuple(merged))

    @cached_property
    def _flat(self) -> tuple[Ids, NDArray[np.float64], NDArray[np.float64]]:
        """Return client, start and end of every span, sorted by client."""
        rows = [(client, *span) for client, spans in dict(self.spans).items() for span in spans]
        clients, starts, ends = zip(*rows, strict=True)
        return np.asarray(clients, np.int64), np.asarray(starts), np.asarray(ends)

    def _phase(self, seconds: float) -> float:
        """Return the time since the beginning of the current period."""
        require(
            math.isfinite(seconds) and seconds >= 0, _WHO, "a time >= 0, in finite seconds", seconds
        )
        return seconds if self.period is None else math.fmod(seconds, self.period)

    def present(self, seconds: float, population: int) -> Ids:
        """Return the clients that are present at this time, ascending."""
        clients, starts, ends = self._flat
        phase = self._phase(seconds)
        present = clients[(starts <= phase) & (phase < ends)]  # merged spans: each client once
        return present[present < population]

    def next_present(self, seconds: float) -> float:
        """Return the earliest time from now on when a client is present, infinite if none is."""
        _, starts, ends = self._flat
        while True:
            phase = self._phase(seconds)
            if ((starts <= phase) & (phase < ends)).any():
                return float(seconds)
            later, begun = starts[starts > phase], seconds - phase
            if len(later):
                coming = begun + float(later.min())
            elif self.period is not None:
                coming = begun + self.period + float(starts.min())
            else:
                return math.inf
            # The rounded sum may fall just before the start, so time must advance in any case.
            seconds = max(coming, math.nextafter(seconds, math.inf))

    def check(self, population: int) -> None:
        """Raise an error for clients that do not exist, before any work."""
        largest = int(self._flat[0].max())
        expected, remedy = f"clients among 0...{population - 1}", "raise clients or drop its spans"
        if self.largest_at and largest >= population:
            raise damaged(self.largest_at, expected, largest, remedy)
        require(largest < population, _WHO, expected, largest, remedy)

    def digest(self) -> str:
        """Return a hash for a checkpoint, so that no run is resumed under another trace."""
        content = repr((self.spans, self.period)).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    def __repr__(self) -> str:
        clients, spans = len(tuple(self.spans)), len(self._flat[0])
        return f"Trace({clients} clients, {spans} spans, period={self.period})"

    @classmethod
    def read(cls, path: str | Path, *, period: float | None = None) -> Trace:
        """Read a CSV file with the header client,start,end and one line for each span."""
        if period is not None:
            require_positive(_WHO, period=period)
        table = read_rows(path, _COLUMNS)
        for column in _COLUMNS:
            table.require_column(column)
        spans: dict[int, list[Span]] = {}
        lines: dict[int, str] = {}
        for row in table.rows:
            client, start, end = (row.number(column) for column in _COLUMNS)
            if not (client.is_integer() and 0 <= client < 2**53):
                got = row.cells["client"]
                raise row.fault("a client id 0, 1, ...", got, "number the clients from 0")
            lines.setdefault(int(client), row.where)
            wrong = _wrong(start, end, period)
            if wrong:
                raise row.fault(*wrong)
            spans.setdefault(int(client), []).append((start, end))
        return cls(spans, period, lines[max(lines)])


def _pair(client: int, span: Any) -> Span:
    """Return start and end as floats, or raise `ValueError`."""
    try:
        start, end = span
        return float(start), float(end)
    except (TypeError, ValueError):
        raise ValueError(
            f"{_WHO} needs pairs (start, end) of seconds, got {span!r} for client {client}."
        ) from None


def _wrong(start: float, end: float, period: float | None) -> tuple[str, str, str] | None:
    """Return what is expected, what came and a remedy, or None for a sound span."""
    if not (math.isfinite(start) and start >= 0):
        return "start >= 0 seconds", f"{start:g}", "count from the beginning of training"
    if not end > start:
        return f"an end after its start {start:g}", f"{end:g}", "swap or correct them"
    if period is None:
        return None
    if start >= period:
        return f"start < period = {period:g}", f"{start:g}", "raise the period or drop the span"
    if end - start > period:
        got = f"{end - start:g} seconds"
        return f"a span no longer than the period {period:g}", got, "raise the period or cut it"
    return None


def _folded(spans: Iterable[Span], period: float | None) -> list[Span]:
    """Return the spans, with what lies beyond the period moved to its beginning."""
    if period is None:
        return list(spans)
    pieces = []
    for start, end in spans:
        pieces.append((start, min(end, period)))
        if end > period:
            pieces.append((0.0, end - period))
    return pieces


def _merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return sorted spans, with those that overlap or touch merged."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return tuple(result)
