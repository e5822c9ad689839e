"""Lists in CSV files, of devices or of images: their cells as text, with the line of each row.

Tables of features are read by pandas (`undrift.data.tables`).
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from undrift.check import require, require_choice
from undrift.data.holdout import train_and_test
from undrift.data.stored import Array, Samples, Stored, damaged
from undrift.errors import DataError


@dataclass(frozen=True)
class CsvTable:
    """Holds the cells of a CSV file by column, and the line on which each row ends."""

    path: Path
    columns: dict[str, tuple[str, ...]]
    lines: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def bad(self, row: int, expected: str, got: object, remedy: str) -> DataError:
        """Return an error that names the line of a row."""
        return damaged(f"{self.path}, line {self.lines[row]}", expected, got, remedy)

    def filled(self, column: str) -> tuple[str, ...]:
        """Return the cells of a column, or raise `DataError` if one is empty."""
        cells = self.columns[column]
        if "" in cells:
            expected = f"a value in column {column!r}"
            raise self.bad(cells.index(""), expected, "an empty cell", "fill it or drop the row")
        return cells

    def encoded(self, column: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the cells as numbers from 0, and the sorted names of these numbers."""
        cells = self.filled(column)
        names = _sorted_names(cells)
        number = {name: i for i, name in enumerate(names)}
        return np.array([number[cell] for cell in cells], dtype=np.int64), names


def read_csv(csv_path: str | Path, *, least: int = 2) -> CsvTable:
    """Return all cells as stripped text without blank lines, or raise `DataError`."""
    path = Path(csv_path)
    rows: list[tuple[str, ...]] = []
    lines: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = tuple(cell.strip() for cell in next(reader, ()))
            _check_header(path, header)
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) != len(header):
                    where = f"{path}, line {reader.line_num}"
                    expected = f"{len(header)} cells as in the header"
                    raise damaged(where, expected, len(row), "correct the row")
                rows.append(tuple(cell.strip() for cell in row))
                lines.append(reader.line_num)
    except OSError as error:
        remedy = "check the path"
        raise damaged(path, "a CSV file", error.strerror or error, remedy) from error
    except UnicodeDecodeError as error:
        raise damaged(path, "UTF-8 text", error, "save the table as UTF-8") from error
    except csv.Error as error:
        where = f"{path}, line {reader.line_num}"
        raise damaged(where, "a CSV row", error, "correct the row") from error
    if len(rows) < least:
        raise damaged(path, f"rows below its header, at least {least}", len(rows), "add rows")
    return CsvTable(path, dict(zip(header, zip(*rows, strict=True), strict=True)), tuple(lines))


def _check_header(path: Path, header: tuple[str, ...]) -> None:
    """Raise `DataError` unless all columns have different names."""
    if "" in header or not header:
        got = "an empty one" if header else "an empty file"
        raise damaged(path, "a name for every column in line 1", got, "add a header")
    counts = Counter(header)
    twice = next((name for name in counts if counts[name] > 1), None)
    if twice is not None:
        raise damaged(path, "a header of different names", f"{twice!r} twice", "rename one")


def check_columns(who: str, table: CsvTable, chosen: dict[str, str | None]) -> None:
    """Raise `ValueError` for arguments that name no column or the same column."""
    named = {argument: name for argument, name in chosen.items() if name is not None}
    for argument, name in named.items():
        require_choice(who, argument, name, table.columns)
    different = len(set(named.values())) == len(named)
    require(different, who, f"different columns for {', '.join(named)}", tuple(named.values()))


def as_number(cell: str) -> float | None:
    """Return the number in a cell, or None; `1_0` is text, although Python would read 10."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _sorted_names(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the names sorted by value if all are numbers (9 before 10), else by text."""
    names = sorted(set(cells))
    values = [as_number(name) for name in names]
    if all(value is not None and math.isfinite(value) for value in values):
        names.sort(key=float)
    return tuple(names)


def with_labels(
    table: CsvTable,
    inputs: Array,
    *,
    target: str,
    client: str | None,
    test_fraction: float,
    seed: int,
) -> Stored:
    """Return the data set of these inputs, one per row, with the table's labels and clients."""
    labels, classes = table.encoded(target)
    owners, names = (None, ()) if client is None else table.encoded(client)
    parts = [
        Samples(inputs[rows], labels[rows], None if owners is None else owners[rows])
        for rows in train_and_test(len(table), test_fraction, seed)
    ]
    return Stored(parts[0], parts[1], classes=len(classes), labels=classes, names=names)
