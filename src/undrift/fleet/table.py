"""CSV files of users as rows; every error names the file and the line."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from undrift.check import nearest
from undrift.data.formats.csv_cells import read_csv
from undrift.data.stored import damaged
from undrift.errors import DataError


@dataclass(frozen=True)
class Row:
    """Holds the cells of one line below the header."""

    where: str
    cells: dict[str, str]

    def fault(self, expected: str, got: object, remedy: str) -> DataError:
        """Return an error that names this line."""
        return damaged(self.where, expected, got, remedy)

    def number(self, column: str) -> float:
        """Return the number in a column, which may be infinite but not NaN."""
        text = self.cells[column]
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise self.fault(f"a number as {column}", repr(text), "write it as in 12.5 or 1e9")
        return value


@dataclass(frozen=True)
class RowTable:
    """Holds the rows of a CSV file whose columns are known."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[Row, ...]

    def require_column(self, *choices: str) -> str:
        """Return the only one of these columns that the file has, or raise `DataError`."""
        present = [column for column in self.header if column in choices]
        if len(present) != 1:
            header = f"the header {','.join(self.header)}"
            got = "both " + " and ".join(present) if present else header
            remedy = "keep one of them" if present else "add it to the first line"
            raise damaged(f"{self.path}, line 1", f"a column {' or '.join(choices)}", got, remedy)
        return present[0]


def read_rows(path: str | Path, columns: Collection[str]) -> RowTable:
    """Read a CSV file with a header of known columns, in any order and case."""
    cells = read_csv(path, least=1)
    header = tuple(name.lower() for name in cells.columns)
    for name in header:
        if name not in columns:
            remedy = f"rename or remove it{nearest(name, columns)}"
            raise damaged(
                f"{path}, line 1", f"columns among {', '.join(columns)}", repr(name), remedy
            )
        if header.count(name) > 1:
            raise damaged(f"{path}, line 1", "every column once", f"{name!r} twice", "remove one")
    rows = zip(cells.lines, zip(*cells.columns.values(), strict=True), strict=True)
    return RowTable(
        cells.path,
        header,
        tuple(
            Row(f"{path}, line {line}", dict(zip(header, row, strict=True))) for line, row in rows
        ),
    )
