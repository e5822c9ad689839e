"""Files of tables as pandas frames: separators, encodings, headers and index columns."""

from __future__ import annotations

import csv
import importlib
import io
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undrift.check import require
from undrift.data.formats.packed import (
    ERRORS,
    is_packed,
    open_packed,
    read_packed,
    unpacked_limit,
)
from undrift.data.stored import damaged
from undrift.errors import DataError, first_line, optional

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
OTHER_SUFFIXES = (  # of tables that pandas reads, and of text
    *(".xlsx", ".xls", ".ods", ".json", ".jsonl", ".txt", ".dat", ".pkl", ".pickle"),
    *(".feather", ".h5", ".dta", ".sav", ".sas7bdat", ".db", ".sqlite"),
)
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}  # words for the shell
DECIMALS = {"point": ".", "comma": ","}
_SAMPLE = 1 << 16  # characters by which the separator is found


def is_table(name: str) -> bool:
    """Return whether a name is that of a file which holds a table, of whatever format."""
    return name.lower().endswith(SUFFIXES + OTHER_SUFFIXES)


def is_frame(data: Any) -> bool:
    """Return whether an object is a pandas frame; pandas is not imported to find out."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def as_separator(text: str) -> str:
    """Return the separator of a word such as "semicolon", or the character itself."""
    one = isinstance(text, str) and (len(text) == 1 or text in SEPARATORS)
    require(one, "separator", f"a character or one of {', '.join(SEPARATORS)}", text)
    return SEPARATORS.get(text, text)


def as_decimal(text: str) -> str:
    """Return the decimal point of the word "point" or "comma", or the character itself."""
    known = text in (*DECIMALS, *DECIMALS.values())
    require(known, "decimal", "point or comma", text)
    return DECIMALS.get(text, text)


def pandas() -> Any:
    """Return the package pandas, or raise with what to install."""
    return optional("pandas", "A table", "tables")


def read_frame(
    path: str | Path, *, separator: str | None = None, decimal: str = "."
) -> pd.DataFrame:
    """Return the table of a CSV or Parquet file without its index column.

    The separator is found in the first lines where none is named; it and the decimal point are
    characters or the words "comma", "semicolon", "tab", "pipe" and "point", "comma". A byte-order
    mark is skipped.
    """
    separator = None if separator is None else as_separator(separator)
    decimal = as_decimal(decimal)
    path = Path(path)
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no such file"
        raise damaged(path, "a file of a table", got, "check the path")
    if path.name.lower().endswith(OTHER_SUFFIXES):
        remedy = "save it as CSV, or read it with pandas and pass the frame to undrift.Clients"
        raise damaged(path, "a CSV or Parquet file", path.suffix, remedy)
    frame = _parquet(path) if path.suffix == ".parquet" else _csv(path, separator, decimal)
    frame.columns = [str(name).strip() for name in frame.columns]
    if len(frame) == 0:
        raise damaged(path, "rows below its header", "none", "add rows")
    return without_index(frame)


def column_names(path: Path) -> list[str]:
    """Return the columns in the header of a CSV file; none of a file that is no such file."""
    if path.name.lower().endswith(OTHER_SUFFIXES):
        return []
    try:
        head = _head(path)
        names = next(csv.reader([head.partition("\n")[0]], delimiter=_separator(path, head)))
    except (DataError, OSError, csv.Error, StopIteration):
        return []
    return [name.strip() for name in names if name.strip()]


def without_index(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame without a first column of row numbers, as `to_csv` writes a nameless one.

    Numbers that do not count up, of rows that were chosen from a larger table, are its new index.
    """
    first = str(frame.columns[0]) if len(frame.columns) else ""
    nameless = first == "" or re.fullmatch(r"Unnamed: \d+", first) is not None
    if not (nameless or first == "index") or frame.iloc[:, 0].dtype.kind not in "iu":
        return frame
    numbers = frame.iloc[:, 0]
    if (numbers.to_numpy() - numbers.iloc[0] == range(len(numbers))).all():
        return frame.iloc[:, 1:]
    if nameless and numbers.is_unique:
        return frame.iloc[:, 1:].set_axis(numbers.to_numpy(), axis=0)
    return frame


def _parquet(path: Path) -> pd.DataFrame:
    library = pandas()
    try:
        parquet = importlib.import_module("pyarrow.parquet")
        needed, limit = _unpacked(parquet.ParquetFile(path)), unpacked_limit(path.stat().st_size)
        if needed > limit:
            expected, got = f"at most {limit:,} bytes of columns", f"{needed:,}"
            remedy = "read the columns with pandas and pass the frame to undrift.Clients"
            raise damaged(path, expected, got, remedy)
        frame: pd.DataFrame = library.read_parquet(path, engine="pyarrow")
    except DataError:
        raise
    except Exception as error:  # pandas and pyarrow have many
        remedy = "check the file, or pip install pyarrow"
        raise damaged(path, "a Parquet file", first_line(error), remedy) from error
    return frame


def _unpacked(file: Any) -> int:
    """Return the bytes that a Parquet file announces; repeated values take no room in it."""
    form = file.metadata
    groups = sum(form.row_group(i).total_byte_size for i in range(form.num_row_groups))
    row = sum(_width(field.type) for field in file.schema_arrow)
    return max(int(groups), int(form.num_rows) * row)


def _width(kind: Any) -> int:
    """Return the bytes of a cell in memory."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # text and nested types
        return 8


def _csv(path: Path, separator: str | None, decimal: str) -> pd.DataFrame:
    library = pandas()
    found = separator or _separator(path, _head(path))
    _check_header(path, _head(path), found)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", library.errors.ParserWarning)
            frame: pd.DataFrame = library.read_csv(
                io.BytesIO(read_packed(path)) if is_packed(path) else path,
                sep=found,
                compression=None,
                decimal=decimal,
                encoding="utf-8-sig",
                skipinitialspace=True,
                index_col=False,
                low_memory=False,
            )
    except (library.errors.ParserError, library.errors.ParserWarning) as error:
        raise _uneven(path, first_line(error)) from error
    except (UnicodeDecodeError, *ERRORS) as error:
        raise damaged(path, "a CSV file in UTF-8", first_line(error), "save it again") from error
    return frame


def _uneven(path: Path, reason: str) -> DataError:
    """Return the error for rows of another length than the header, from what pandas says."""
    expected, remedy = "as many cells in every row as its header has", "correct the row"
    counts = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", reason)
    quote = re.search(r"EOF inside string starting at row (\d+)", reason)
    if counts is not None:
        columns, line, cells = counts.groups()
        reason = f"{cells} in line {line} where {columns} are expected"
    elif quote is not None:
        expected, remedy = "quotation marks in pairs", "close it"
        reason = f"one that is opened in line {int(quote[1]) + 1} and not closed"
    return damaged(path, expected, reason, f"{remedy}, or name the separator")


def _head(path: Path) -> str:
    """Return the beginning of a file as text."""
    try:
        with io.TextIOWrapper(open_packed(path), encoding="utf-8-sig", newline="") as file:
            return file.read(_SAMPLE)
    except UnicodeDecodeError as error:
        got = f"byte 0x{error.object[error.start]:02x} at {error.start}"
        remedy = "save it as UTF-8, or read it with pandas and pass the frame"
        raise damaged(path, "text in UTF-8", got, remedy) from error
    except ERRORS as error:
        raise damaged(path, "a readable file", first_line(error), "check the file") from error


def _separator(path: Path, head: str) -> str:
    """Return the separator that gives the first lines the most cells, equally many in each."""
    lines = head.splitlines()[:20]
    lines = lines[:-1] if len(head) == _SAMPLE and len(lines) > 1 else lines
    if not lines:
        raise damaged(path, "a header and rows", "an empty file", "add them")

    def cells(separator: str) -> int:
        try:
            counts = {len(row) for row in csv.reader(lines, delimiter=separator) if row}
        except csv.Error:
            return 0
        return counts.pop() if len(counts) == 1 else 0

    best = max(SEPARATORS.values(), key=cells)
    if cells(best) > 1:
        return best
    return max(SEPARATORS.values(), key=lines[0].count)


def _check_header(path: Path, head: str, separator: str) -> None:
    """Raise `DataError` unless all columns have different names; the first may have none."""
    try:
        row = next(csv.reader(io.StringIO(head, newline=""), delimiter=separator), [])
    except csv.Error as error:
        raise damaged(path, "a header in line 1", first_line(error), "save it again") from error
    names = [name.strip() for name in row]
    if not names:
        raise damaged(path, "a header in line 1", "an empty line", "add it")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise damaged(path, "a header of different names", f"{twice!r} twice", "rename one")
    numeric = [name for name in names if re.fullmatch(r"[+-]?\d+([.,]\d+)?", name)]
    if len(numeric) == len(names):
        raise damaged(path, "names of columns in line 1", ", ".join(names[:3]), "add a header")
