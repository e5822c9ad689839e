"""Data sets of experiments: by name, from a table, by code, or handed over by a program."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from undrift.check import require
from undrift.config.sections import Data
from undrift.data import Clients, Dataset, Stored, load, read_table
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


def _table(source: Data) -> Dataset:
    assert source.path is not None
    assert source.target is not None  # which the section has checked
    stored = read_table(
        source.path,
        target=source.target,
        client=source.client,
        task=source.task,
        drop=source.drop,
        categorical=source.categorical,
        missing=source.missing,
        separator=source.separator,
        decimal=source.decimal,
        test_fraction=source.test_fraction,
    )
    return Dataset.of(stored, name=source.title)


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
    expected = "to return undrift.Clients or an undrift.Dataset"
    require(isinstance(value, Dataset), name, expected, type(value).__name__)
    dataset: Dataset = value
    return dataset
