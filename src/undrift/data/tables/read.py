"""Tables as data sets: `read_table` takes a CSV file or a pandas frame."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from undrift.check import require, require_choice
from undrift.data.holdout import check_fraction, train_and_test
from undrift.data.stored import Array, Samples, Stored, damaged
from undrift.data.tables.cells import as_words
from undrift.data.tables.files import as_decimal, pandas, read_frame, without_index
from undrift.data.tables.fit import (
    Missing,
    agree,
    sorted_words,
    statistics_of,
    target_statistics,
)
from undrift.data.tables.kinds import Kind, column_kinds
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.statistics import TableStatistics
from undrift.data.tables.transformer import TransformedColumns
from undrift.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

WHO = "The table"
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
    transformer: Any = None,
    separator: str | None = None,
    decimal: str = ".",
    test: str | Path | pd.DataFrame | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
    missing_target: str = "refuse",
) -> Stored:
    """Return the data set of a table with a target column, maybe a client column, and features.

    Columns of numbers are scaled to mean 0 and deviation 1, and columns of words become a 0/1
    feature for each category; both are fitted to training rows alone, and kept as
    `Stored.preprocessing`, which is written with the model. Dates, identifiers and free text are
    refused.

    source: a CSV or Parquet file, or a pandas frame.
    task: "classification" or "regression"; by default numbers are regression, for which they are
        scaled, too, and text and truth values are classification.
    drop: columns to leave out.
    categorical: columns of numbers that are categories, such as codes.
    missing: "refuse" raises for an empty cell; "impute" fills in the mean of a number and the most
        frequent category.
    transformer: of your own, by scikit-learn, such as a ColumnTransformer: a copy is fitted to the
        training rows and makes the inputs of the model from all other columns, of whatever kind.
    separator, decimal: of a CSV file; the separator is found where none is named. Both are
        characters or words: "comma", "semicolon", "tab", "pipe"; "point", "comma".
    test: rows to test on, of the same columns; without it a `test_fraction` of the rows is held
        out.
    preprocessing: what tables have agreed on or an experiment declares, in place of a fit.
    missing_target: "refuse" raises for a row without a target; "drop" leaves such rows out.
    """
    table = Table.read(
        source,
        target=target,
        client=client,
        task=task,
        drop=drop,
        categorical=categorical,
        missing=missing,
        transformer=transformer,
        separator=separator,
        decimal=decimal,
        test=test,
        test_fraction=test_fraction,
        seed=seed,
        fits=preprocessing is None,
        missing_target=missing_target,
    )
    return table.stored(preprocessing or table.fitted())


@dataclass(frozen=True, eq=False)
class Table:
    """Holds the rows of a table and the roles of its columns, before these are prepared.

    Several tables, each on a machine of its own, tell each other their `statistics`, agree on one
    preprocessing, and are `stored` with it.
    """

    source: Any  # for messages
    frame: pd.DataFrame
    target: str
    client: str | None
    task: str | None
    missing: Missing
    rows: tuple[Array, Array]  # for training and for tests
    statistics: TableStatistics | None  # None where nothing is fitted to it
    transformer: Preprocessing | None = None  # fitted to it, of one's own
    owned: bool = True  # whether test rows have clients, too
    decimal: str = "."  # of the numbers in its file

    @classmethod
    def read(
        cls,
        source: str | Path | pd.DataFrame,
        *,
        target: str,
        client: str | None = None,
        task: str | None = None,
        drop: Sequence[str] = (),
        categorical: Sequence[str] = (),
        missing: Missing = "refuse",
        transformer: Any = None,
        separator: str | None = None,
        decimal: str = ".",
        test: str | Path | pd.DataFrame | None = None,
        test_fraction: float = 0.2,
        seed: int = 0,
        fits: bool = True,
        alone: bool = True,
        missing_target: str = "refuse",
    ) -> Table:
        """Return the table of a file or a frame; the arguments are those of `read_table`.

        `fits=False` looks at no column, because a preprocessing is known. With `alone=False` others
        agree with it, so that a column may be empty here.
        """
        filled = missing in ("mean", "median", "mode", "most_frequent", "fill", "ffill", "zero")
        remedy = '"impute" fills in the mean, or the most frequent category'
        require(not filled, WHO, "missing to be one of refuse, impute", missing, remedy)
        require_choice(WHO, "missing", missing, ("refuse", "impute"))
        drop, categorical = _names(drop), _names(categorical)
        require_choice(WHO, "missing_target", missing_target, ("refuse", "drop"))
        if task is not None:
            require_choice(WHO, "task", task, TASKS)
        check_fraction(WHO, test_fraction)
        fitting = transformer is None or (alone and fits)
        remedy = "leave it out where columns are agreed on or declared"
        require(fitting, WHO, "no transformer", "one", remedy)
        frame, point = as_frame(source, separator=separator, decimal=decimal), as_decimal(decimal)
        if missing_target == "drop":
            frame = with_targets(frame, target)
        rows, owned = train_and_test(max(2, len(frame)), test_fraction, seed), True
        if test is not None:
            held = as_frame(test, separator=separator, decimal=decimal)
            if missing_target == "drop":
                held = with_targets(held, target)
            owned = client is None or client in held.columns
            frame, rows = _followed(frame, held if owned else held.assign(**{str(client): ""}))
        require_columns(frame, {"target": target, "client": client}, [*drop, *categorical])
        features = [n for n in frame.columns if n not in (target, client) and n not in drop]
        statistics, own = None, None
        with _named(source):
            _require_size(frame, features)
            if fits:
                empty = [n for n in features if missing == "impute" and frame[n].isna().all()]
                left = [n for n in features if transformer is None and (alone or n not in empty)]
                kinds: dict[str, Kind | None] = dict.fromkeys(
                    features if transformer is None else []
                )
                kinds.update(column_kinds(frame, left, categorical))
                aim = target_statistics(frame[target], frame[target].iloc[rows[0]], target, task)
                statistics = statistics_of(frame, rows[0], kinds, aim, missing)
            if transformer is not None:
                _require_alone(missing, categorical)
                made = TransformedColumns.fit(transformer, frame[features].iloc[rows[0]])
                assert statistics is not None
                own = Preprocessing((made,), agree([statistics], target, missing).target)
        return cls(
            source, frame, target, client, task, missing, rows, statistics, own, owned, point
        )

    def fitted(self) -> Preprocessing:
        """Return the preprocessing that is fitted to this table alone."""
        made = self.transformer
        if made is None:
            assert self.statistics is not None
            with _named(self.source):
                made = agree([self.statistics], self.target, self.missing)
        return replace(made, decimal=self.decimal)

    def stored(self, preprocessing: Preprocessing) -> Stored:
        """Return the data set of the table with its columns prepared."""
        frame, aim, owned = self.frame, preprocessing.target, self.owned
        with _named(self.source):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of categories that only test rows have
                inputs, targets = preprocessing.inputs(frame), aim.encode(frame)
            owners, names = clients_of(frame if owned else frame.iloc[self.rows[0]], self.client)
        if owners is not None:
            _tell_constant(targets[: len(owners)], owners, names, self.target)
        parts = [
            Samples(
                inputs[some], targets[some], None if owners is None or no_owner else owners[some]
            )
            for some, no_owner in zip(self.rows, (False, not owned), strict=True)
        ]
        return Stored(
            parts[0],
            parts[1],
            classes=max(1, len(aim.classes)),
            labels=aim.classes,
            names=names,
            preprocessing=preprocessing,
        )


def _names(columns: str | Sequence[str]) -> Sequence[str]:
    """Return names of columns, of which one may be given as text."""
    return [columns] if isinstance(columns, str) else columns


@contextmanager
def _named(source: Any) -> Iterator[None]:
    """Let errors in data name the file that they are of."""
    try:
        yield
    except DataError as error:
        if not isinstance(source, str | Path):
            raise
        raise DataError(f"{source}: {error}") from error


def _require_alone(missing: Missing, categorical: Sequence[str]) -> None:
    """Raise `ValueError` for options of columns beside a transformer, which decides them."""
    remedy = "let the transformer do it"
    require(missing == "refuse", WHO, "no missing beside a transformer", missing, remedy)
    require(not categorical, WHO, "no categorical beside a transformer", categorical, remedy)


def _followed(frame: pd.DataFrame, held: pd.DataFrame) -> tuple[pd.DataFrame, tuple[Array, Array]]:
    """Return both frames as one, and the rows of each."""
    missing = [name for name in frame.columns if name not in held.columns]
    there = ", ".join(map(str, held.columns))
    remedy = "give the rows to test on the same columns as those to train on"
    lacking = " and ".join(map(repr, missing))
    require(not missing, WHO, f"test rows with a column {lacking}", f"columns {there}", remedy)
    whole = pandas().concat([frame, held[list(frame.columns)]], ignore_index=True)
    return whole, (np.arange(len(frame)), np.arange(len(frame), len(whole)))


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


def with_targets(frame: pd.DataFrame, target: str) -> pd.DataFrame:
    """Return the rows that have a target, with a warning of how many are left out."""
    if target not in frame.columns or not (empty := frame[target].isna()).any():
        return frame
    warnings.warn(
        f"The target {target!r} is missing in {int(empty.sum()):,} of {len(frame):,} rows, which "
        "are left out.",
        stacklevel=3,
    )
    return frame[~empty]


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
    words = as_words(frame[client], client, None, "drop the row, or name its client")
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
