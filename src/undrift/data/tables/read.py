"""Tables as data sets: `read_table` takes a CSV file or a pandas frame."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from undrift.check import require, require_choice
from undrift.data.holdout import check_fraction, train_and_test
from undrift.data.stored import Array, Samples, Stored, damaged
from undrift.data.tables.cells import as_words
from undrift.data.tables.files import pandas, read_frame, without_index
from undrift.data.tables.fit import Missing, fit, fit_target, sorted_words
from undrift.data.tables.kinds import column_kind
from undrift.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

WHO = "read_table"
TASKS = ("classification", "regression")


def read_table(
    source: str | Path | pd.DataFrame,
    *,
    target: str,
    client: str | None = None,
    task: str | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: Missing = "refuse",
    separator: str | None = None,
    decimal: str = ".",
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Stored:
    """Return the data set of a table with a target column, maybe a client column, and features.

    Columns of numbers are scaled to mean 0 and deviation 1, and columns of words become a 0/1
    feature for each category; both are fitted to training rows alone, and kept as
    `Stored.preprocessing`, which is written with the model. Dates, identifiers and free text are
    refused.

    source: a CSV or Parquet file, or a pandas frame.
    task: "classification" or "regression"; by default numbers with more than two different values
        are regression, for which they are scaled, too, and everything else is classification.
    drop: columns to leave out.
    categorical: columns of numbers that are categories, such as codes.
    missing: "refuse" raises for an empty cell; "impute" fills in the mean of a number and the most
        frequent category.
    separator, decimal: of a CSV file; the separator is found where none is named.
    """
    require_choice(WHO, "missing", missing, ("refuse", "impute"))
    if task is not None:
        require_choice(WHO, "task", task, TASKS)
    check_fraction(WHO, test_fraction)
    frame = as_frame(source, separator=separator, decimal=decimal)
    require_columns(frame, {"target": target, "client": client}, [*drop, *categorical])
    features = [n for n in frame.columns if n not in (target, client) and n not in drop]
    rows = train_and_test(max(2, len(frame)), test_fraction, seed)
    try:
        _require_size(frame, features)
        kinds = {name: column_kind(frame[name], name, categorical) for name in features}
        aim = fit_target(frame[target], frame[target].iloc[rows[0]], target, task)
        preprocessing = fit(frame, rows[0], kinds, aim, missing)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of categories that only test rows have
            inputs, targets = preprocessing.inputs(frame), aim.encode(frame)
        owners, names = clients_of(frame, client)
    except DataError as error:
        if not isinstance(source, str | Path):
            raise
        raise DataError(f"{source}: {error}") from error
    if owners is not None:
        _tell_constant(targets, owners, names, target)
    parts = [
        Samples(inputs[some], targets[some], None if owners is None else owners[some])
        for some in rows
    ]
    return Stored(
        parts[0],
        parts[1],
        classes=max(1, len(aim.classes)),
        labels=aim.classes,
        names=names,
        preprocessing=preprocessing,
    )


def _require_size(frame: pd.DataFrame, features: Sequence[str]) -> None:
    """Raise `DataError` unless there are features, and rows to train and to test on."""
    if not features:
        raise damaged("The table", "columns of features besides its target", "none", "add some")
    if len(frame) < 2:
        remedy = "add rows"
        raise damaged("The table", "at least 2 rows, of which one is held out", len(frame), remedy)


def as_frame(source: Any, *, separator: str | None = None, decimal: str = ".") -> pd.DataFrame:
    """Return a file or a frame as a frame whose columns have different names."""
    if isinstance(source, str | Path):
        return read_frame(source, separator=separator, decimal=decimal)
    frame = isinstance(source, pandas().DataFrame)
    require(frame, WHO, "a CSV file or a pandas DataFrame", type(source).__name__)
    unique = bool(source.columns.is_unique)
    require(unique, WHO, "columns of different names", list(source.columns), "rename one")
    result: pd.DataFrame = source.rename(columns=str)
    return without_index(result)


def joined(frames: Sequence[pd.DataFrame]) -> tuple[pd.DataFrame, str]:
    """Return the frames of clients as one, and the name of its column of clients."""
    column = "client"
    while any(column in frame.columns for frame in frames):
        column += "_"
    numbered = [frame.assign(**{column: i}) for i, frame in enumerate(frames)]
    whole: pd.DataFrame = pandas().concat(numbered, ignore_index=True)
    return whole, column


def require_columns(
    frame: pd.DataFrame, named: dict[str, str | None], others: Sequence[str] = ()
) -> None:
    """Raise `ValueError` for names of no column, and for one column with two roles."""
    columns = [str(name) for name in frame.columns]
    chosen = {argument: name for argument, name in named.items() if name is not None}
    for argument, name in [*chosen.items(), *(("drop or categorical", name) for name in others)]:
        require_choice(WHO, argument, name, columns)
    different = len(set(chosen.values())) == len(chosen)
    require(different, WHO, f"different columns for {', '.join(chosen)}", tuple(chosen.values()))


def clients_of(frame: pd.DataFrame, client: str | None) -> tuple[Array | None, tuple[str, ...]]:
    """Return the number of each row's client, and the sorted names of the clients."""
    if client is None:
        return None, ()
    words = as_words(frame[client], client, None)
    names = sorted_words(words)
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[word] for word in words], dtype=np.int64), names


def _tell_constant(targets: Array, owners: Array, names: Sequence[str], target: str) -> None:
    """Raise a warning that names clients at which all targets are the same."""
    constant = [
        name
        for i, name in enumerate(names)
        if len(own := targets[owners == i]) > 1 and (own == own[0]).all()
    ]
    if constant:
        some = ", ".join(constant[:3]) + (", ..." if len(constant) > 3 else "")
        warnings.warn(
            f"The target {target!r} is the same in all rows of {len(constant)} of {len(names)} "
            f"clients ({some}); metrics that compare its values are not defined there.",
            stacklevel=3,
        )
