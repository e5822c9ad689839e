"""Users' CSV files, read so that every complaint names the file and the line."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from undrift.check import nearest
from undrift.errors import DataError


def fault(where: str, expected: str, got: object, remedy: str) -> DataError:
    return DataError(f"{where} needs {expected}, got {got}; {remedy}.")


@dataclass(frozen=True)
class Row:
    """One line of the file under its header."""

    where: str
    cells: dict[str, str]

    def fault(self, expected: str, got: object, remedy: str) -> DataError:
        return fault(self.where, expected, got, remedy)

    def number(self, column: str) -> float:
        """The column's number; it may be infinite, never NaN."""
        text = self.cells[column]
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise self.fault(f"a number as {column}", repr(text), "write it as in 12.5 or 1e9")
        return value


@dataclass(frozen=True)
class Table:
    path: Path
    header: tuple[str, ...]
    rows: tuple[Row, ...]

    def require_column(self, *choices: str) -> str:
        """The one of these columns that the file has."""
        found = [column for column in self.header if column in choices]
        if len(found) != 1:
            got = "both " + " and ".join(found) if found else f"the header {','.join(self.header)}"
            remedy = "keep one of them" if found else "add it to the first line"
            raise fault(f"{self.path}, line 1", f"a column {' or '.join(choices)}", got, remedy)
        return found[0]


def read_table(path: str | Path, columns: Collection[str], example: str) -> Table:
    """A CSV file with a header of known columns, in any order; blank lines are skipped."""
    path = Path(path)
    lines = _lines(path, example)
    if not lines:
        raise fault(str(path), f"a header such as {example}", "an empty file", "write one")
    first, header = lines[0][0], [name.lower() for name in lines[0][1]]
    for name in header:
        where = f"{path}, line {first}"
        if name not in columns:
            remedy = f"rename or remove it{nearest(name, columns)}"
            raise fault(where, f"columns among {', '.join(columns)}", repr(name), remedy)
        if header.count(name) > 1:
            raise fault(where, "every column once", f"{name!r} twice", "remove one of them")
    rows = []
    for number, cells in lines[1:]:
        where = f"{path}, line {number}"
        if len(cells) != len(header):
            remedy = f"the header is {','.join(header)}"
            raise fault(where, f"{len(header)} values", len(cells), remedy)
        rows.append(Row(where, dict(zip(header, cells, strict=True))))
    if not rows:
        raise fault(str(path), "at least one line under its header", "none", "add lines")
    return Table(path, tuple(header), tuple(rows))


def _lines(path: Path, example: str) -> list[tuple[int, Sequence[str]]]:
    """Every line that is not blank, with its number, as trimmed cells."""
    try:
        # utf-8-sig, because spreadsheets put a byte-order mark before the header.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            split = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except FileNotFoundError:
        raise fault(str(path), "a CSV file", "no such file", "see where it is") from None
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise fault(str(path), "a CSV file to read", why, "see its permissions") from None
    except (UnicodeDecodeError, csv.Error) as error:
        remedy = f"save it as UTF-8 with a header such as {example}"
        raise fault(str(path), "CSV text", str(error).rstrip("."), remedy) from None
    return [(number, cells) for number, cells in split if any(cells)]
