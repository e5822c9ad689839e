"""Fitting a table's preprocessing to its training rows, by scikit-learn's transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from undrift.data.stored import Array
from undrift.data.tables.cells import as_numbers, as_words
from undrift.data.tables.kinds import MOST_CATEGORIES, Kind
from undrift.data.tables.preprocessing import CategoryColumn, NumberColumn, Preprocessing, Target
from undrift.errors import DataError, optional

if TYPE_CHECKING:
    import pandas as pd

Missing = Literal["refuse", "impute"]
_GAP = "\ue000"  # stands for a missing word while the imputer looks for the most frequent one


def fit(
    frame: pd.DataFrame, train: Array, kinds: Mapping[str, Kind], target: Target, missing: Missing
) -> Preprocessing:
    """Return the preprocessing fitted to the training rows; bad cells of all rows are refused.

    Numbers get the mean and the deviation; a missing one gets the mean with `missing="impute"`, and
    a missing word the most frequent one.
    """
    cells = _cells(frame, kinds, missing).iloc[train]
    with np.errstate(all="ignore"):  # an overflow shows as Inf below
        fitted = _transformer(kinds).fit(cells)
    columns: list[NumberColumn | CategoryColumn] = []
    for name in kinds:
        steps = fitted.named_transformers_[name]
        fill = steps.named_steps["fill"].statistics_[0]
        last = steps.named_steps["scale"]
        if kinds[name] == "number":
            mean, scale = float(last.mean_[0]), float(last.scale_[0])
            if not (np.isfinite(mean) and np.isfinite(scale)):
                raise DataError(
                    f"Column {name!r} needs numbers of a sensible range, got a deviation of "
                    f"{scale}; scale the column."
                )
            columns.append(
                NumberColumn(name, mean, scale, float(fill) if missing == "impute" else None)
            )
        else:
            words = tuple(map(str, last.categories_[0]))
            columns.append(CategoryColumn(name, words, str(fill) if missing == "impute" else None))
    return Preprocessing(tuple(columns), target)


def _transformer(kinds: Mapping[str, Kind]) -> Any:
    """Return a ColumnTransformer with one pipeline for each column."""
    learn = "sklearn"
    compose = optional(f"{learn}.compose", "A table", "tables", package="scikit-learn")
    impute = optional(f"{learn}.impute", "A table", "tables", package="scikit-learn")
    pipeline = optional(f"{learn}.pipeline", "A table", "tables", package="scikit-learn")
    scaling = optional(f"{learn}.preprocessing", "A table", "tables", package="scikit-learn")

    def steps(kind: Kind) -> Any:
        if kind == "number":
            fill, scale = impute.SimpleImputer(), scaling.StandardScaler()
        else:
            fill = impute.SimpleImputer(strategy="most_frequent", missing_values=_GAP)
            scale = scaling.OneHotEncoder(handle_unknown="ignore")
        return pipeline.Pipeline([("fill", fill), ("scale", scale)])

    return compose.ColumnTransformer([(name, steps(kind), [name]) for name, kind in kinds.items()])


def _cells(frame: pd.DataFrame, kinds: Mapping[str, Kind], missing: Missing) -> pd.DataFrame:
    """Return the columns as finite numbers or NaN, and as words or gaps; refuse bad cells."""
    import pandas as pd

    cells: dict[str, Any] = {}
    for name, kind in kinds.items():
        filled = missing == "impute"
        if kind == "number":
            numbers = as_numbers(frame[name], name, 0.0 if filled else None)
            numbers[frame[name].isna().to_numpy()] = np.nan
            cells[name] = numbers
        else:
            cells[name] = as_words(frame[name], name, _GAP if filled else None)
    return pd.DataFrame(cells)


def fit_target(cells: pd.Series[Any], train: pd.Series[Any], name: str, task: str | None) -> Target:
    """Return what is predicted: numbers are regression unless `task` says otherwise.

    Two different values, such as 0 and 1, are classes. Classes are those of all rows, since a class
    that only test rows have is still one; mean and deviation are those of the training rows.
    """
    import pandas as pd

    if cells.isna().any():
        row = int(cells.isna().to_numpy().argmax()) + 1
        raise DataError(
            f"Row {row} of the target {name!r} needs a value, got a missing cell; drop the row."
        )
    distinct = int(cells.nunique())
    if distinct < 2:
        raise DataError(
            f"The target {name!r} needs at least two different values, got {cells.iloc[0]!r} in "
            "all rows; choose another column."
        )
    numeric = pd.api.types.is_numeric_dtype(cells) and not pd.api.types.is_bool_dtype(cells)
    if task == "regression" or (task is None and numeric and distinct > 2):
        numbers = as_numbers(train, name, None)
        scale = float(numbers.std())
        return Target(name, (), float(numbers.mean()), scale if scale > 0 else 1.0)
    if distinct > MOST_CATEGORIES:
        raise DataError(
            f"The target {name!r} needs at most {MOST_CATEGORIES} classes, got {distinct:,}; say "
            'task = "regression" for a number, or choose another column.'
        )
    return Target(name, sorted_words(as_words(cells, name, None)))


def sorted_words(words: Any) -> tuple[str, ...]:
    """Return the different words, by value if all are numbers (9 before 10), else by text."""
    different = sorted(set(words))
    try:
        return tuple(sorted(different, key=float))
    except ValueError:
        return tuple(different)
