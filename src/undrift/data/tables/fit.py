"""The preprocessing of a table, or of several: fitted to statistics, or declared.

A single table is fitted by the statistics of its own training rows, so several tables whose
statistics are joined have the preprocessing of one table with all their rows, number by number.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from undrift.data.stored import Array
from undrift.data.tables.cells import as_numbers, as_words, decimal_comma
from undrift.data.tables.kinds import MOST_CATEGORIES, Kind, has_decimal_commas
from undrift.data.tables.preprocessing import CategoryColumn, NumberColumn, Preprocessing, Target
from undrift.data.tables.statistics import (
    ColumnStatistics,
    NumberSums,
    TableStatistics,
    TargetStatistics,
    joined_sums,
    joined_words,
)
from undrift.errors import DataError, TaskWarning

if TYPE_CHECKING:
    import pandas as pd

Missing = Literal["refuse", "impute"]


def statistics_of(
    frame: pd.DataFrame,
    train: Array,
    kinds: Mapping[str, Kind | None],
    target: TargetStatistics,
    missing: Missing,
) -> TableStatistics:
    """Return the statistics of the training rows; bad cells of all rows are refused."""
    fills = missing == "impute"
    columns = {}
    for name, kind in kinds.items():
        present = ~frame[name].isna().to_numpy()
        rows = train[present[train]]
        if kind == "number":
            numbers = as_numbers(frame[name], name, 0.0 if fills else None)
            columns[name] = ColumnStatistics(kind, NumberSums.of(numbers[rows]))
        elif kind == "category":
            words = as_words(frame[name], name, "" if fills else None)
            columns[name] = ColumnStatistics(kind, words=_counts(words[rows]))
        else:
            columns[name] = ColumnStatistics()
    return TableStatistics(len(train), columns, target)


def target_statistics(
    cells: pd.Series[Any], train: pd.Series[Any], name: str, task: str | None
) -> TargetStatistics:
    """Return what a table tells of its target.

    Numbers are regression unless `task` says otherwise; of those the training rows' sums are told,
    and of others how often each class is there in all rows, since a class that only test rows have
    is still one.
    """
    import pandas as pd

    if cells.isna().any():
        row, count = int(cells.isna().to_numpy().argmax()) + 1, int(cells.isna().sum())
        more = f" there and in {count - 1:,} other rows" if count > 1 else ""
        raise DataError(
            f"Row {row} of the target {name!r} needs a value, got a missing cell{more}; leave such "
            'rows out with missing_target = "drop" (missing_target=drop in the shell).'
        )
    distinct = int(cells.nunique())
    numeric = pd.api.types.is_numeric_dtype(cells) and not pd.api.types.is_bool_dtype(cells)
    if task == "regression" or (task is None and numeric):
        if task is None and distinct == 2:
            warnings.warn(f"{Target(name).sentence('task=')}.", TaskWarning, stacklevel=4)
        remedy = 'say task = "classification" for words, or correct the cell'
        as_numbers(cells, name, None, remedy)  # names the row of a bad cell among all rows
        return TargetStatistics(sums=NumberSums.of(as_numbers(train, name, None)))
    if task is None and has_decimal_commas(cells):
        raise decimal_comma(name, 0, str(cells.iloc[0]))
    _require_few_classes(name, distinct)
    return TargetStatistics(words=_counts(as_words(cells, name, None)))


def agree(
    tables: Sequence[TableStatistics],
    target: str,
    missing: Missing,
    names: Sequence[str] = (),
) -> Preprocessing:
    """Return the preprocessing that all rows of the tables would give, or raise `DataError`.

    Numbers get the mean and the deviation; a missing one gets the mean with `missing="impute"`, and
    a missing word the most frequent one. `names` are what messages call the tables.
    """
    whose = list(names) or [f"table {i}" for i in range(len(tables))]
    _require_same_columns(tables, whose)
    rows = sum(table.rows for table in tables)
    columns: list[NumberColumn | CategoryColumn] = []
    for name in tables[0].columns:
        parts = [table.columns[name] for table in tables]
        kind = _common_kind(name, [part.kind for part in parts], whose)
        if kind == "number":
            columns.append(_number(name, [part.sums for part in parts], rows, missing))
        else:
            words = joined_words([part.words or {} for part in parts])
            columns.append(_category(name, words, missing))
    return Preprocessing(tuple(columns), _target(tables, target, whose))


def declared(
    columns: Sequence[Mapping[str, Any]], target: Mapping[str, Any], missing: Missing
) -> Preprocessing:
    """Return the preprocessing that an experiment declares, for which no table is asked.

    A column has a name and either `categories`, or `mean` and `scale` of its numbers, 0 and 1
    unless they are given; `fill` stands for missing cells, by default the mean.
    """
    made: list[NumberColumn | CategoryColumn] = []
    for column in columns:
        name, fill = str(column["name"]), column.get("fill")
        if column.get("categories"):
            words = tuple(map(str, column["categories"]))
            made.append(CategoryColumn(name, words, None if fill is None else str(fill)))
            continue
        mean, scale = float(column.get("mean", 0.0)), float(column.get("scale", 1.0))
        if fill is None and missing == "impute":
            fill = mean
        made.append(NumberColumn(name, mean, scale, None if fill is None else float(fill)))
    classes = tuple(map(str, target.get("classes", ())))
    aim = Target(
        str(target["name"]), classes, float(target.get("mean", 0)), float(target.get("scale", 1))
    )
    return Preprocessing(tuple(made), aim)


def _require_same_columns(tables: Sequence[TableStatistics], whose: Sequence[str]) -> None:
    for table, who in zip(tables, whose, strict=True):
        for one, other, first, second in (
            (tables[0], table, whose[0], who),
            (table, tables[0], who, whose[0]),
        ):
            lacking = next((name for name in one.columns if name not in other.columns), None)
            if lacking is not None:
                raise DataError(
                    f"Column {lacking!r} needs to be in every table, got it at {first} and not at "
                    f"{second}; add it, or leave it out with drop = [{lacking!r}]."
                )


def _common_kind(name: str, kinds: Sequence[Kind | None], whose: Sequence[str]) -> Kind:
    found = {kind: who for kind, who in zip(kinds, whose, strict=True) if kind is not None}
    if len(found) > 1:
        raise DataError(
            f"Column {name!r} needs one kind of cells in all tables, got numbers at "
            f"{found['number']} and words at {found['category']}; correct the cells, or say "
            f"categorical = [{name!r}]."
        )
    if not found:
        raise DataError(f"Column {name!r} needs values, got none in any table; leave it out.")
    return next(iter(found))


def _number(name: str, parts: Sequence[NumberSums], rows: int, missing: Missing) -> NumberColumn:
    sums = joined_sums(parts)
    mean, scale = sums.mean, sums.deviation(rows)
    if not (np.isfinite(mean) and np.isfinite(scale)):
        raise DataError(
            f"Column {name!r} needs numbers of a sensible range, got a deviation of {scale}; "
            "scale the column."
        )
    return NumberColumn(name, mean, scale, mean if missing == "impute" else None)


def _category(name: str, words: Mapping[str, int], missing: Missing) -> CategoryColumn:
    if len(words) > MOST_CATEGORIES:
        raise DataError(
            f"Column {name!r} needs at most {MOST_CATEGORIES} categories in all tables, got "
            f"{len(words):,}; leave it out with drop = [{name!r}]."
        )
    often = min(words, key=lambda word: (-words[word], word), default=None)
    return CategoryColumn(name, tuple(sorted(words)), often if missing == "impute" else None)


def _target(tables: Sequence[TableStatistics], name: str, whose: Sequence[str]) -> Target:
    """Return what is predicted, as the target's values in all tables decide."""
    parts = [table.target for table in tables]
    words = joined_words([part.words for part in parts if part.words is not None])
    numbers = [part.sums for part in parts if part.sums is not None]
    if numbers and words:
        spoken = next(who for who, part in zip(whose, parts, strict=True) if part.sums is None)
        raise DataError(
            f"The target {name!r} needs numbers in all tables, got words at {spoken}; correct "
            'them, or say task = "classification".'
        )
    if numbers:
        sums = joined_sums(numbers)
        if sums.squares * sums.count == sums.total**2:
            raise _constant(name, sums.mean)
        return Target(name, (), sums.mean, sums.deviation(sums.count))
    _require_few_classes(name, len(words))
    if len(words) < 2:
        raise _constant(name, next(iter(words), None))
    return Target(name, sorted_words(words))


def _constant(name: str, value: object) -> DataError:
    return DataError(
        f"The target {name!r} needs at least two different values, got {value!r} in all rows; "
        "choose another column."
    )


def _require_few_classes(name: str, distinct: int) -> None:
    if distinct > MOST_CATEGORIES:
        raise DataError(
            f"The target {name!r} needs at most {MOST_CATEGORIES} classes, got {distinct:,}; say "
            'task = "regression" for a number, or choose another column.'
        )


def _counts(words: Array) -> dict[str, int]:
    return dict(sorted(Counter(words.tolist()).items()))  # in an order that tells nothing of rows


def sorted_words(words: Any) -> tuple[str, ...]:
    """Return the different words, by value if all are numbers (9 before 10), else by text."""
    different = sorted(set(words))
    try:
        return tuple(sorted(different, key=float))
    except ValueError:
        return tuple(different)
