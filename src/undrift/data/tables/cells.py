"""Cells of a column as numbers or words, with a sentence that names the row where one is bad."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

DECIMAL_COMMA = re.compile(r"[+-]?\d{1,3}(\.?\d{3})*,\d+")
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")  # may also be decimal commas: 1,234
MISSING_REMEDY = 'drop the row, or say missing = "impute" (missing=impute in the shell)'
NEW_ROW_REMEDY = (
    'fill in the cell or drop the row; a model whose training says missing = "impute" '
    "(missing=impute in the shell) fills it in"
)
THOUSANDS_REMEDY = (
    'write it without commas between thousands; if they are decimal commas, say decimal = "comma" '
    "(in the shell --data FILE:decimal=comma, or predict --decimal comma)"
)
TARGET_REMEDY = (
    'drop the row, or leave such rows out with missing_target = "drop" (missing_target=drop in the '
    "shell)"
)


def bad_cell(column: str, row: int, expected: str, got: object, remedy: str) -> DataError:
    """Return an error that names the row, counted from 1 below the header, and the column."""
    return DataError(f"Row {row + 1} of column {column!r} needs {expected}, got {got}; {remedy}.")


def decimal_comma(column: str, row: int, cell: str) -> DataError:
    """Return the error for a number that is written with a decimal comma."""
    remedy = (
        'say decimal = "comma" (in the shell --data FILE:decimal=comma, or predict --decimal comma)'
    )
    return bad_cell(column, row, "a number with a decimal point", repr(cell), remedy)


def as_numbers(
    cells: pd.Series[Any],
    column: str,
    fill: float | None,
    remedy: str = "correct the cell or drop the row",
    missing_remedy: str = MISSING_REMEDY,
) -> NDArray[np.float64]:
    """Return the cells as finite numbers, missing ones filled, or raise `DataError`."""
    import pandas as pd

    missing = cells.isna().to_numpy()
    numbers = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = ~np.isfinite(numbers) & ~missing
    if bad.any():
        row = int(bad.argmax())
        cell = cells.iloc[row]
        word = str(cell).strip()
        if THOUSANDS.fullmatch(word):
            remedy = THOUSANDS_REMEDY
        elif DECIMAL_COMMA.fullmatch(word):
            raise decimal_comma(column, row, str(cell))
        got = str(cell) if isinstance(cell, float) else repr(cell)  # NumPy's floats, too
        raise bad_cell(column, row, "a finite number", got, remedy)
    if missing.any() and fill is None:
        raise bad_cell(column, int(missing.argmax()), "a number", "a missing cell", missing_remedy)
    return np.where(missing, 0.0 if fill is None else fill, numbers)


def as_words(
    cells: pd.Series[Any], column: str, fill: str | None, remedy: str = MISSING_REMEDY
) -> NDArray[Any]:
    """Return the cells as text, missing ones filled, or raise `DataError`."""
    missing = cells.isna().to_numpy()
    if missing.any() and fill is None:
        raise bad_cell(column, int(missing.argmax()), "a value", "a missing cell", remedy)
    words = np.array([word_of(cell) for cell in cells.to_numpy(dtype=object)], dtype=object)
    words[missing] = fill
    return words


def word_of(cell: Any) -> str:
    """Return a cell as text; 1.0 is written as 1, since a column with gaps has floats in pandas."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()
