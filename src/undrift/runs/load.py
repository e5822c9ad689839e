"""Data sets of experiments: by name, from a table, by code, or handed over by a program."""

from __future__ import annotations

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from undrift.check import require
from undrift.config.sections import Data
from undrift.data import Clients, Dataset, Stored, load
from undrift.data.here import declare, ranks_of_run
from undrift.data.tables.fit import declared
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.ranks import clients_of_table
from undrift.data.tables.read import Table
from undrift.engine.validate import clients_remedy
from undrift.errors import UndriftError, first_line
from undrift.runs.own import OwnData, is_own, own
from undrift.usercode.load import import_object
from undrift.usercode.names import is_code


def load_dataset(data: Data) -> Dataset:
    """Return all samples of the data as a data set."""
    loaded = _load(data.source)
    return loaded.dataset if isinstance(loaded, OwnData) else loaded


def load_clients(data: Data) -> OwnData | None:
    """Return the clients that a program or code has made; None where data are to be dealt."""
    loaded = _load(data.source)
    return loaded if isinstance(loaded, OwnData) else None


@lru_cache(maxsize=4)
def _load(source: Data) -> Dataset | OwnData:
    """Return what a section of data names; the last four are remembered."""
    if is_own(source.name):
        handed_over: OwnData = own(source.name)
        return handed_over
    if source.path is not None:
        return _table(source)
    if is_code(source.name):
        return _by_code(source.name)
    return load(source.name, source.folder)


def _table(source: Data) -> Dataset | OwnData:
    columns = declared_columns(source)
    read = partial(read_own, source, fits=columns is None, alone=not source.here)
    if source.here:
        ranks = ranks_of_run()
        with ranks.failure_scope():
            return OwnData(declare(partial(clients_of_table, ranks, read, columns), ranks), None)
    table = read()
    return Dataset.of(table.stored(columns or table.fitted()), name=source.title)


def read_own(source: Data, *, fits: bool, alone: bool) -> Table:
    """Return the table of a section of data; the options are those of `Table.read`."""
    assert source.path is not None
    assert source.target is not None  # which the section has checked
    return Table.read(
        Path(str(source.path).replace("{rank}", os.environ.get("RANK", "0"))),
        target=source.target,
        client=source.client,
        task=source.task,
        drop=source.drop,
        categorical=source.categorical,
        missing=source.missing,
        missing_target=source.missing_target,
        transformer=_transformer(source.transformer),
        separator=source.separator,
        decimal=source.decimal,
        test_fraction=source.test_fraction,
        fits=fits,
        alone=alone,
    )


def declared_columns(source: Data) -> Preprocessing | None:
    """Return the preprocessing that the experiment declares, None where it is to be fitted."""
    if not source.columns:
        return None
    columns = [column.model_dump() for column in source.columns if column.name != source.target]
    (aim,) = (column.model_dump() for column in source.columns if column.name == source.target)
    return declared(columns, {**aim, "classes": aim["categories"]}, source.missing)


def _transformer(name: str | None) -> Any:
    """Return the transformer that `mine.py:make` is or returns; None without a name."""
    if name is None:
        return None
    made = import_object(name, "data.transformer")
    if isinstance(made, type) or not hasattr(made, "fit"):
        try:
            made = made()
        except Exception as error:  # a user's function may raise anything
            raise ValueError(
                f"{name} needs to return a transformer, got {first_line(error, named=True)}."
            ) from error
    return made


def _by_code(name: str) -> Dataset | OwnData:
    """Return what a function such as `mine.py:load` returns: a data set, clients or pairs."""
    loads = import_object(name, "Data")
    try:
        value: Any = loads() if callable(loads) else loads
    except (ValueError, UndriftError, OSError):
        raise
    except Exception as error:  # a user's function may raise anything
        raise ValueError(
            f"{name} needs to return data, got {first_line(error, named=True)}."
        ) from error
    if isinstance(value, Stored):
        value = Dataset.of(value, name=name.rpartition(":")[2])
    if isinstance(value, Clients):
        return OwnData(value, None)
    expected, remedy = "to return undrift.Clients or an undrift.Dataset", clients_remedy(value)
    require(isinstance(value, Dataset), name, expected, type(value).__name__, remedy)
    dataset: Dataset = value
    return dataset
