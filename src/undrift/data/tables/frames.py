"""Clients' pandas frames as one data set."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from undrift.check import refuse_unknown, require
from undrift.data.dataset import Dataset
from undrift.data.tables.files import is_frame, pandas
from undrift.data.tables.read import Table, read_table

if TYPE_CHECKING:
    import pandas as pd

WHO = "Clients"


def from_frames(
    data: Any, target: str | None, client: str | None, *, test: Any = None, **table: Any
) -> Dataset:
    """Return the data set of one frame with a column of clients, or of a frame for each client.

    `table` has further options of `read_table`.
    """
    whole, client, test = _whole(data, target, client, test, table)
    remedy = (
        "pass a list of frames, one for each client, or deal the rows: undrift.Dataset.of("
        f"undrift.data.read_table(frame, target={target!r})).split('iid', 20)"
    )
    require(client is not None, WHO, 'client="column" for one frame', "none", remedy)
    return Dataset.of(read_table(whole, target=str(target), client=client, test=test, **table))


def read_frames(
    data: Any, target: str | None, client: str | None, *, test: Any = None, **table: Any
) -> Table:
    """Return the table of this rank's frames, which agrees with those of others on its columns."""
    whole, client, test = _whole(data, target, client, test, table)
    return Table.read(whole, target=str(target), client=client, test=test, alone=False, **table)


def _whole(
    data: Any, target: str | None, client: str | None, test: Any, table: dict[str, Any]
) -> tuple[Any, str | None, Any]:
    """Return all rows as one frame, its column of clients and the test; refuse what is none."""
    known = list(inspect.signature(read_table).parameters)[1:]
    for name in table:
        if name not in known:
            raise refuse_unknown(WHO, known, name)
    require(target is not None, WHO, 'target="column" for frames', "none")
    if isinstance(data, list | tuple):
        _require_frames(data, "the data of all clients")
        filled = table.get("missing") == "impute"
        _require_columns(data, [target] if filled else None, table.get("drop", ()))
        data, client = _joined(data)
        if isinstance(test, list | tuple):
            _require_frames(test, "the tests of all clients")
            test, _ = _joined(test, client)
    require(test is None or is_frame(test), WHO, "a test that is a frame, too", type(test).__name__)
    return data, client, test


def _require_frames(data: Sequence[Any], what: str) -> None:
    other = next((type(each).__name__ for each in data if not is_frame(each)), None)
    require(other is None, WHO, f"frames as {what}", other)


def _require_columns(
    frames: Sequence[pd.DataFrame], names: Sequence[Any] | None, dropped: Sequence[str]
) -> None:
    """Raise `ValueError` for a client's frame without one of the columns, by default of all."""
    known = dict.fromkeys(name for frame in frames for name in frame.columns)
    wanted = [n for n in known if n not in dropped and (names is None or n in names)]
    for i, frame in enumerate(frames):
        lacks = next((name for name in wanted if name not in frame.columns), None)
        if lacks is not None:
            raise ValueError(
                f"{WHO} needs frames of the same columns, got client {i} without {str(lacks)!r}; "
                "add the column, or leave it out of the others."
            )


def _joined(frames: Sequence[pd.DataFrame], column: str = "client") -> tuple[pd.DataFrame, str]:
    """Return the frames of clients as one, and the name of its column of clients."""
    while any(column in frame.columns for frame in frames):
        column += "_"
    numbered = [frame.assign(**{column: i}) for i, frame in enumerate(frames)]
    whole: pd.DataFrame = pandas().concat(numbered, ignore_index=True)
    return whole, column
