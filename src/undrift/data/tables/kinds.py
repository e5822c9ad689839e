"""Kinds of columns: numbers, categories, and what must not be learned from.

Dates, identifiers and free text would become a feature for each row, which a model learns by heart,
so they are refused with a sentence.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

from undrift.data.tables.cells import (
    DECIMAL_COMMA,
    THOUSANDS,
    THOUSANDS_REMEDY,
    bad_cell,
    decimal_comma,
)
from undrift.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 1000
FEW = 20  # rows or values up to which nothing is taken for an identifier
_SAMPLE = 200  # cells by which dates are known
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d.*)?|\d{1,2}:\d{2}(:\d{2})?")
_IDENTIFIER = re.compile(r"(.*[_\s-])?(id|uuid|guid|key)", re.IGNORECASE)

Kind = Literal["number", "category"]


def column_kind(cells: pd.Series[Any], name: str, categorical: Collection[str]) -> Kind:
    """Return what a column is, or raise `DataError` for one that is no feature."""
    import pandas as pd

    present = cells.dropna()
    if len(present) == 0:
        raise _refused(name, "values", "none")
    if name in categorical:
        _require_few(name, present)
        return "category"
    if pd.api.types.is_datetime64_any_dtype(cells) or cells.dtype.kind == "m":
        raise _date(name, present.iloc[0])
    if pd.api.types.is_numeric_dtype(cells):
        _refuse_row_numbers(name, present)
        return "number"
    words = present.astype(str).str.strip()
    sample = words.iloc[:: max(1, len(words) // _SAMPLE)]
    numeric = pd.to_numeric(sample, errors="coerce").notna()
    if numeric.mean() > 0.5:  # which cell is no number is said when the column is read
        return "number"
    if has_decimal_commas(words):
        raise decimal_comma(name, 0, sample.iloc[0])
    if sample.map(lambda word: THOUSANDS.fullmatch(word) is not None).mean() > 0.9:
        raise bad_cell(name, 0, "a number", repr(sample.iloc[0]), THOUSANDS_REMEDY)
    if _dates(sample):
        raise _date(name, sample.iloc[0])
    _require_few(name, words)
    return "category"


def has_decimal_commas(words: pd.Series[Any]) -> bool:
    """Return whether nearly all cells are numbers with a decimal comma."""
    sample = words.iloc[:: max(1, len(words) // _SAMPLE)].astype(str).str.strip()
    commas = sample.map(lambda word: DECIMAL_COMMA.fullmatch(word) is not None)
    thousands = sample.map(lambda word: THOUSANDS.fullmatch(word) is not None)
    return bool(commas.mean() > 0.9 and (commas & ~thousands).any())


def _dates(sample: pd.Series[Any]) -> bool:
    """Return whether nearly all cells are dates or times."""
    import pandas as pd

    if sample.map(lambda word: _DATE.fullmatch(word) is not None).mean() > 0.9:
        return True
    if not sample.str.contains(r"\d").all() or not sample.str.contains(r"[A-Za-z]").any():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parsed = pd.to_datetime(sample, errors="coerce", format="mixed", utc=True)
    return bool(parsed.notna().mean() > 0.9) and sample.nunique() > 2


def _refuse_row_numbers(name: str, numbers: pd.Series[Any]) -> None:
    """Raise `DataError` for whole numbers that count rows, or that are called an identifier."""
    if numbers.dtype.kind not in "iu" or len(numbers) <= FEW or numbers.nunique() < len(numbers):
        return
    counts = int(numbers.max()) - int(numbers.min()) == len(numbers) - 1
    if counts or _IDENTIFIER.fullmatch(name):
        got = f"{len(numbers):,} different whole numbers"
        raise _refused(name, "numbers that say something of a row, not an identifier", got)


def _require_few(name: str, words: pd.Series[Any]) -> None:
    """Raise `DataError` for a column of words that has too many to be categories."""
    distinct = int(words.nunique())
    got = f"{distinct:,} different ones in {len(words):,} rows"
    if distinct > FEW and distinct > 0.5 * len(words):
        expected = "words that several rows share, not identifiers or free text"
        raise _refused(name, expected, got)
    if distinct > MOST_CATEGORIES:
        raise _refused(name, f"at most {MOST_CATEGORIES} categories", got)


def _date(name: str, cell: object) -> DataError:
    return _refused(
        name, "numbers or categories", f"dates such as {cell}", ", or count days in a number"
    )


def _refused(name: str, expected: str, got: str, more: str = "") -> DataError:
    remedy = f"leave it out with drop = [{name!r}] (drop={name} in the shell){more}"
    return DataError(f"Column {name!r} needs {expected}, got {got}; {remedy}.")
