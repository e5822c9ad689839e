"""Kinds of columns: numbers, categories, and what must not be learned from.

Dates, identifiers and free text would become a feature for each row, which a model learns by heart,
so they are refused with a sentence.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

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
_YEAR, _MONTH, _DAY = r"(?:19|20)\d\d", r"(?:0?[1-9]|1[0-2])", r"\d{1,2}(?:st|nd|rd|th)?"
_NAMED_MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    "|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DATE = re.compile(
    rf"""\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}([ T]\d.*)?  # 2020-01-31, 31.1.2020 10:00
    |\d{{1,2}}:\d{{2}}(:\d{{2}})?  # 10:00
    |{_YEAR}[-/]{_MONTH}|{_MONTH}[-/]{_YEAR}  # 2020-01
    |{_YEAR}[-\s]?[qw]\d{{1,2}}|q[1-4][-\s/]?{_YEAR}  # 2020-Q1
    |(?:[a-z]{{3,9}},?\s)?{_DAY}[-\s./]*{_NAMED_MONTH}[-\s.,/]*\d{{2,4}}(\s.*)?  # 31 Jan 2020
    |{_NAMED_MONTH}[-\s.,/]*(?:{_DAY},?[-\s]+)?\d{{2,4}}(\s.*)?  # Jan 31, 2020
    """,
    re.IGNORECASE | re.VERBOSE,
)
_DAYS = (19_000_101, 20_991_231)  # within which whole numbers may be days, such as 20200131
_IDENTIFIER = re.compile(
    r"(?i:(.*[_\s.-])?(id|uuid|guid)|.*[_\s.-]key)|.*[a-z0-9](Id|ID|Uuid|UUID|Guid|GUID)"
)

Kind = Literal["number", "category"]


def column_kinds(
    frame: pd.DataFrame, names: Sequence[str], categorical: Collection[str]
) -> dict[str, Kind]:
    """Return what each column is, or raise `DataError` with all that are no features."""
    kinds, errors = dict[str, Kind](), dict[str, DataError]()
    for name in names:
        try:
            kinds[name] = column_kind(frame[name], name, categorical)
        except DataError as error:
            errors[name] = error
    if len(errors) > 1:
        raise _several(errors)
    for refused in errors.values():
        raise refused
    return kinds


def _several(errors: Mapping[str, DataError]) -> DataError:
    """Return one error for several columns, with what to do about all of them."""
    commas = [name for name, error in errors.items() if 'decimal = "comma"' in str(error)]
    others = [name for name in errors if name not in commas]
    remedies = []
    if commas:
        remedies.append('say decimal = "comma" (decimal=comma in the shell)')
    if others:
        listed = ", ".join(map(repr, others))
        remedies.append(f"leave out drop = [{listed}] (drop={'+'.join(others)} in the shell)")
    got = [
        f"{name!r} with {str(error).partition(', got ')[2].partition('; ')[0]}"
        for name, error in errors.items()
    ]
    return DataError(
        f"The table needs columns of numbers or of categories, got {', '.join(got)}; "
        f"{' and '.join(remedies)}."
    )


def column_kind(cells: pd.Series[Any], name: str, categorical: Collection[str]) -> Kind:
    """Return what a column is, or raise `DataError` for one that is no feature."""
    import pandas as pd

    present = cells.dropna()
    if len(present) == 0:
        raise _refused(name, "values", "none")
    if cells.dtype.kind == "c":
        raise bad_cell(name, 0, "a real number", str(present.iloc[0]), "split it into two columns")
    nested = present.map(lambda cell: isinstance(cell, list | tuple | dict | set | np.ndarray))
    if cells.dtype == object and nested.any():
        row = int(cells.index.get_indexer(nested.index[nested.to_numpy()])[0])
        got = f"a {type(cells.iloc[row]).__name__}"
        raise bad_cell(name, row, "a number or a word", got, "make a column of each of its values")
    if name in categorical:
        _require_few(name, present)
        return "category"
    if pd.api.types.is_datetime64_any_dtype(cells) or cells.dtype.kind == "m":
        raise _date(name, present.iloc[0])
    if _IDENTIFIER.fullmatch(name) and present.nunique() > 2:
        raise _identifier(name, f"{present.nunique():,} different ones")
    if pd.api.types.is_numeric_dtype(cells):
        _refuse_row_numbers(name, present)
        _refuse_days(name, present)
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
    date = _first_date(sample)
    if date is not None:
        raise _date(name, date)
    _require_few(name, words)
    return "category"


def has_decimal_commas(words: pd.Series[Any]) -> bool:
    """Return whether nearly all cells are numbers with a decimal comma."""
    sample = words.iloc[:: max(1, len(words) // _SAMPLE)].astype(str).str.strip()
    commas = sample.map(lambda word: DECIMAL_COMMA.fullmatch(word) is not None)
    thousands = sample.map(lambda word: THOUSANDS.fullmatch(word) is not None)
    return bool(commas.mean() > 0.9 and (commas & ~thousands).any())


def _first_date(sample: pd.Series[Any]) -> str | None:
    """Return the first date or time of a column whose cells with a digit nearly all are some.

    Words such as "unknown" may stand between them, up to nine in ten cells.
    """
    import pandas as pd

    dates = sample.map(lambda word: _DATE.fullmatch(word) is not None)
    digits = sample.str.contains(r"\d")
    if dates.mean() > 0.1 and dates.sum() > 0.9 * digits.sum():
        return str(sample[dates].iloc[0])
    if not digits.all() or not sample.str.contains(r"[A-Za-z]").any():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parsed = pd.to_datetime(sample, errors="coerce", format="mixed", utc=True)
    is_date = bool(parsed.notna().mean() > 0.9) and sample.nunique() > 2
    return str(sample.iloc[0]) if is_date else None


def _refuse_row_numbers(name: str, numbers: pd.Series[Any]) -> None:
    """Raise `DataError` for whole numbers that count rows, or that are called a key."""
    if numbers.dtype.kind not in "iu" or len(numbers) <= FEW or numbers.nunique() < len(numbers):
        return
    counts = int(numbers.max()) - int(numbers.min()) == len(numbers) - 1
    if counts or name.lower() == "key":
        raise _identifier(name, f"{len(numbers):,} different whole numbers")


def _refuse_days(name: str, numbers: pd.Series[Any]) -> None:
    """Raise `DataError` for whole numbers that all are days, such as 20200131."""
    import pandas as pd

    first, last = _DAYS
    whole = numbers.dtype.kind in "iuf" and bool(numbers.between(first, last).all())
    if not whole or numbers.nunique() <= 2 or bool((numbers % 1).any()):
        return  # Two numbers may well be days by chance.
    days = pd.to_datetime(numbers.astype("int64").astype(str), errors="coerce", format="%Y%m%d")
    if days.notna().all():
        raise _date(name, f"{numbers.iloc[0]:.0f}")


def _require_few(name: str, words: pd.Series[Any]) -> None:
    """Raise `DataError` for a column of words that has too many to be categories."""
    distinct = int(words.nunique())
    got = f"{distinct:,} different ones in {len(words):,} rows"
    if distinct > FEW and distinct > 0.5 * len(words):
        expected = "words that several rows share, not identifiers or free text"
        raise _refused(name, expected, got)
    if distinct > MOST_CATEGORIES:
        raise _refused(name, f"at most {MOST_CATEGORIES} categories", got)


def _identifier(name: str, got: str) -> DataError:
    remedy = f", or say categorical = [{name!r}] if rows share its values"
    return _refused(name, "values that say something of a row, not an identifier", got, remedy)


def _date(name: str, cell: object) -> DataError:
    return _refused(
        name, "numbers or categories", f"dates such as {cell}", ", or count days in a number"
    )


def _refused(name: str, expected: str, got: str, more: str = "") -> DataError:
    remedy = f"leave it out with drop = [{name!r}] (drop={name} in the shell){more}"
    return DataError(f"Column {name!r} needs {expected}, got {got}; {remedy}.")
