"""Cells of a column as numbers or words, with a sentence that names the row where one is bad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

MISSING_REMEDY = 'drop the row, or say missing = "impute" (missing=impute in the shell)'


def bad_cell(column: str, row: int, expected: str, got: object, remedy: str) -> DataError:
    """Return an error that names the row, counted from 1 below the header, and the column."""
    return DataError(f"Row {row + 1} of column {column!r} needs {expected}, got {got}; {remedy}.")


def as_numbers(cells: pd.Series[Any], column: str, fill: float | None) -> NDArray[np.float64]:
    """Return the cells as finite numbers, missing ones filled, or raise `DataError`."""
    import pandas as pd

    missing = cells.isna().to_numpy()
    numbers = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = ~np.isfinite(numbers) & ~missing
    if bad.any():
        row = int(bad.argmax())
        remedy = "correct the cell or drop the row"
        raise bad_cell(column, row, "a finite number", repr(cells.iloc[row]), remedy)
    if missing.any() and fill is None:
        raise bad_cell(column, int(missing.argmax()), "a number", "a missing cell", MISSING_REMEDY)
    return np.where(missing, 0.0 if fill is None else fill, numbers)


def as_words(cells: pd.Series[Any], column: str, fill: str | None) -> NDArray[Any]:
    """Return the cells as text, missing ones filled, or raise `DataError`."""
    missing = cells.isna().to_numpy()
    if missing.any() and fill is None:
        raise bad_cell(column, int(missing.argmax()), "a value", "a missing cell", MISSING_REMEDY)
    words = np.array([word_of(cell) for cell in cells.to_numpy(dtype=object)], dtype=object)
    words[missing] = fill
    return words


def word_of(cell: Any) -> str:
    """Return a cell as text; 1.0 is written as 1, since a column with gaps has floats in pandas."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()
