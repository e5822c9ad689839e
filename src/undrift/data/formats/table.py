"""Tables in CSV files: columns become labels, clients and features; a keyed draw the test set."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import require, require_choice
from undrift.data.stored import Array, Samples, Stored, damaged
from undrift.errors import DataError

_MOST_CATEGORIES = 1000


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


def check_fraction(who: str, test_fraction: float) -> None:
    """Raise `ValueError` unless the fraction is in (0, 1)."""
    require(0 < test_fraction < 1, who, "test_fraction in (0, 1)", test_fraction)


def split(size: int, test_fraction: float, seed: int) -> tuple[Array, Array]:
    """Return the rows of the training and of the test part, at least one each, in order."""
    order = keyed.generator(seed, "table").permutation(size)
    cut = min(max(1, round(size * test_fraction)), size - 1)
    return np.sort(order[cut:]), np.sort(order[:cut])


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
        for rows in split(len(table), test_fraction, seed)
    ]
    return Stored(parts[0], parts[1], classes=len(classes), labels=classes, names=names)


def read_table(
    csv_path: str | Path,
    *,
    target: str,
    client: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Stored:
    """Read a CSV file with a label column, maybe a client column, and features.

    Columns of numbers are standardised by mean and deviation of the training part; columns of
    text become one 0/1 feature per category, in sorted order. Labels are numbered in sorted order.
    """
    check_fraction("read_table", test_fraction)
    table = read_csv(csv_path)
    check_columns("read_table", table, {"target": target, "client": client})
    features = [name for name in table.columns if name not in (target, client)]
    if not features:
        raise damaged(table.path, "a column of features besides label and client", "none", "add it")
    train, _ = split(len(table), test_fraction, seed)
    inputs = np.concatenate([_feature(table, name, train) for name in features], axis=1)
    return with_labels(
        table, inputs, target=target, client=client, test_fraction=test_fraction, seed=seed
    )


def _feature(table: CsvTable, column: str, train: Array) -> Array:
    """Return a column as standardised numbers (N, 1), or as (N, categories)."""
    cells = table.filled(column)
    values = [as_number(cell) for cell in cells]
    if all(value is None for value in values):
        return _one_hot(table, column)
    for row, value in enumerate(values):
        if value is None or not math.isfinite(value):
            expected = f"a finite number in column {column!r}, as in its other rows"
            raise table.bad(row, expected, repr(cells[row]), "correct the cell or drop the row")
    numbers = np.array(values, dtype=np.float64)
    with np.errstate(all="ignore"):  # an overflow shows as Inf below
        # Rounding gives equal numbers a tiny deviation, so it is not compared with 0.
        constant = numbers[train].min() == numbers[train].max()
        deviation = 1.0 if constant else numbers[train].std()
        scaled = (numbers - numbers[train].mean()) / deviation
        single: Array = scaled.astype(np.float32)[:, None]
    # An infinite deviation would turn all numbers into zeros.
    if not np.isfinite(deviation) or not np.isfinite(single).all():
        row = int(np.argmax(np.abs(numbers)))
        expected = f"numbers of a sensible range in column {column!r}"
        raise table.bad(row, expected, cells[row], "scale the column")
    return single


def _one_hot(table: CsvTable, column: str) -> NDArray[np.float32]:
    """Return one feature per category."""
    codes, names = table.encoded(column)
    if len(names) > _MOST_CATEGORIES:
        expected = f"at most {_MOST_CATEGORIES} categories in text column {column!r}"
        raise damaged(
            table.path, expected, f"{len(names):,}", "drop the column or group its values"
        )
    features = np.zeros((len(codes), len(names)), np.float32)
    features[np.arange(len(codes)), codes] = 1
    return features
