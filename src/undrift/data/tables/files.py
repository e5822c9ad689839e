"""Files of tables as pandas frames: separators, encodings, headers and index columns."""

from __future__ import annotations

import csv
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undrift.data.stored import damaged
from undrift.errors import first_line, optional

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
SEPARATORS = (",", ";", "\t", "|")
_SAMPLE = 1 << 16  # characters by which the separator is found


def is_table(name: str) -> bool:
    """Return whether a name is that of a file which holds a table."""
    return name.lower().endswith(SUFFIXES)


def is_frame(data: Any) -> bool:
    """Return whether an object is a pandas frame; pandas is not imported to find out."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def pandas() -> Any:
    """Return the package pandas, or raise with what to install."""
    return optional("pandas", "A table", "tables")


def read_frame(
    path: str | Path, *, separator: str | None = None, decimal: str = "."
) -> pd.DataFrame:
    """Return the table of a CSV or Parquet file without its index column.

    The separator is found in the first lines where none is named. A byte-order mark is skipped.
    """
    path = Path(path)
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no such file"
        raise damaged(path, "a file of a table", got, "check the path")
    frame = _parquet(path) if path.suffix == ".parquet" else _csv(path, separator, decimal)
    frame.columns = [str(name).strip() for name in frame.columns]
    if len(frame) == 0:
        raise damaged(path, "rows below its header", "none", "add rows")
    return without_index(frame)


def without_index(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame without a nameless first column of row numbers, as `to_csv` writes one."""
    first = str(frame.columns[0]) if len(frame.columns) else ""
    nameless = first in ("", "index") or re.fullmatch(r"Unnamed: \d+", first) is not None
    if not nameless or frame.iloc[:, 0].dtype.kind not in "iu":
        return frame
    numbers = frame.iloc[:, 0].to_numpy()
    counts = (numbers - numbers[0] == range(len(numbers))).all()
    return frame.iloc[:, 1:] if counts else frame


def _parquet(path: Path) -> pd.DataFrame:
    try:
        frame: pd.DataFrame = pandas().read_parquet(path)
    except Exception as error:  # pandas and pyarrow have many
        remedy = "check the file, or pip install pyarrow"
        raise damaged(path, "a Parquet file", first_line(error), remedy) from error
    return frame


def _csv(path: Path, separator: str | None, decimal: str) -> pd.DataFrame:
    library = pandas()
    found = separator or _separator(path, _head(path))
    _check_header(path, _head(path), found)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", library.errors.ParserWarning)
            frame: pd.DataFrame = library.read_csv(
                path,
                sep=found,
                decimal=decimal,
                encoding="utf-8-sig",
                skipinitialspace=True,
                index_col=False,
                low_memory=False,
            )
    except (library.errors.ParserError, library.errors.ParserWarning) as error:
        reason = first_line(error).removeprefix("Error tokenizing data. C error: ")
        remedy = "correct the row, or name the separator"
        raise damaged(
            path, "as many cells in every row as its header has", reason, remedy
        ) from error
    except (UnicodeDecodeError, OSError, EOFError, ValueError) as error:
        raise damaged(path, "a CSV file in UTF-8", first_line(error), "save it again") from error
    return frame


def _head(path: Path) -> str:
    """Return the beginning of a file as text."""
    import gzip

    reads = gzip.open if path.suffix == ".gz" else open
    try:
        with reads(path, "rt", encoding="utf-8-sig", newline="") as file:
            return str(file.read(_SAMPLE))
    except UnicodeDecodeError as error:
        got = f"byte 0x{error.object[error.start]:02x} at {error.start}"
        remedy = "save it as UTF-8, or read it with pandas and pass the frame"
        raise damaged(path, "text in UTF-8", got, remedy) from error
    except (OSError, EOFError) as error:
        raise damaged(path, "a readable file", first_line(error), "check the file") from error


def _separator(path: Path, head: str) -> str:
    """Return the separator that gives the first lines the most cells, equally many in each."""
    lines = head.splitlines()[:20]
    lines = lines[:-1] if len(head) == _SAMPLE and len(lines) > 1 else lines
    if not lines:
        raise damaged(path, "a header and rows", "an empty file", "add them")

    def cells(separator: str) -> int:
        counts = {len(row) for row in csv.reader(lines, delimiter=separator) if row}
        return counts.pop() if len(counts) == 1 else 0

    best = max(SEPARATORS, key=cells)
    if cells(best) > 1:
        return best
    return max(SEPARATORS, key=lines[0].count)


def _check_header(path: Path, head: str, separator: str) -> None:
    """Raise `DataError` unless all columns have different names; the first may have none."""
    names = [
        name.strip()
        for name in next(csv.reader([head.partition("\n")[0]], delimiter=separator), [])
    ]
    if not names:
        raise damaged(path, "a header in line 1", "an empty line", "add it")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise damaged(path, "a header of different names", f"{twice!r} twice", "rename one")
    numeric = [name for name in names if re.fullmatch(r"[+-]?\d+([.,]\d+)?", name)]
    if len(numeric) == len(names):
        raise damaged(path, "names of columns in line 1", ", ".join(names[:3]), "add a header")
