"""Data sets of Hugging Face's `datasets` as `Stored`: images, features or tokens from columns.

The package is not imported: any object with the columns and formats of a `datasets.Dataset` serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.check import is_whole, require, require_choice
from undrift.data.columns import WHO, Columns, samples
from undrift.data.holdout import check_fraction, train_and_test
from undrift.data.stored import Array, Samples, Stored

_HELD_OUT = ("test", "validation", "valid", "val")


def from_huggingface(
    dataset: Any,
    *,
    inputs: str | Sequence[str],
    target: str,
    client: str | None = None,
    test: Any = None,
    test_fraction: float = 0.2,
    length: int | None = None,
    padding: int = 0,
    seed: int = 0,
) -> Stored:
    """Return the data of a `datasets.Dataset`, or of a `DatasetDict` with a split "train".

    `inputs` names a column of images (or arrays of bytes with two or three axes; both become bytes
    (N, C, H, W)), of numbers or lists of floats (features), or of lists of whole numbers (tokens,
    cut or filled with `padding` to `length`); several columns of numbers become one row of
    features. `target` is a `ClassLabel`, or whole numbers or strings, numbered in sorted order.
    `client` names the column of the rows' owners. `test` is another Dataset or the name of a split;
    by default it is "test" or "validation" if that exists, else a random `test_fraction` of rows.
    """
    check_fraction(WHO, test_fraction)
    sound = length is None or (is_whole(length) and length >= 1)
    require(sound, WHO, "length >= 1, a whole number", length)
    chosen = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    require(len(chosen) > 0, WHO, "the name of an input column", inputs)
    require(target not in chosen, WHO, "a target that is no input", target, "leave it out")
    columns = [Columns(data, what) for what, data in _splits(dataset, test)]
    for part in columns:
        for argument, name in _named(chosen, target, client if part is columns[0] else None):
            part.check(argument, name)
    arrays = _alike([samples(part, chosen, length, padding) for part in columns], chosen)
    targets, labels = _encoded(columns, target)
    owning = [part for part in columns if client in part.data.column_names]
    owners, names = _encoded(owning, client) if client is not None else ([], ())
    parts = [
        Samples(array, numbers, owners[i] if i < len(owners) else None)
        for i, (array, numbers) in enumerate(zip(arrays, targets, strict=True))
    ]
    if len(parts) == 1:
        rows = len(parts[0])
        require(rows >= 2, WHO, "at least two rows, of which one is held out", rows, "add rows")
        parts = [_rows(parts[0], some) for some in train_and_test(rows, test_fraction, seed)]
    return Stored(parts[0], parts[1], classes=len(labels), labels=labels, names=names)


def _rows(part: Samples, rows: Array) -> Samples:
    """Return some rows of a part."""
    owners = None if part.owners is None else part.owners[rows]
    return Samples(part.inputs[rows], part.targets[rows], owners)


def _named(inputs: tuple[str, ...], target: str, client: str | None) -> Iterator[tuple[str, str]]:
    """Yield each column's argument and name."""
    yield from (("inputs", name) for name in inputs)
    yield "target", target
    if client is not None:
        yield "client", client


def _splits(dataset: Any, test: Any) -> list[tuple[str, Any]]:
    """Return the training data and, if there is any, the test data, with their names."""
    if not isinstance(dataset, Mapping):
        if isinstance(test, str):
            raise ValueError(
                f"{WHO} needs a DatasetDict to choose test = {test!r} from, got a "
                f"{type(dataset).__name__}; pass the test data itself."
            )
        return [("train", dataset), *([] if test is None else [("test", test)])]
    if "train" not in dataset:
        raise ValueError(
            f"{WHO} needs a split 'train', got {', '.join(map(str, dataset)) or 'none'}; pass one "
            "of them, such as dataset['name'], and another as test."
        )
    if isinstance(test, str):
        require_choice(WHO, "test", test, map(str, dataset))
    name = next((name for name in _HELD_OUT if name in dataset), None) if test is None else test
    if name is None:
        return [("train", dataset["train"])]
    return [("train", dataset["train"]), ("test", dataset[name] if isinstance(name, str) else name)]


def _alike(arrays: list[Array], columns: tuple[str, ...]) -> list[Array]:
    """Return arrays of equal kind; grey images get three channels if the other part has them."""
    if len(arrays) == 2 and all(array.dtype == np.uint8 for array in arrays):
        channels = max(array.shape[1] for array in arrays)
        arrays = [
            np.repeat(array, channels, axis=1) if array.shape[1] < channels else array
            for array in arrays
        ]
    kinds = [(array.shape[1:], str(array.dtype)) for array in arrays]
    if kinds[-1] != kinds[0]:
        raise ValueError(
            f"{WHO} needs test samples like the training samples, {kinds[0]}, got {kinds[-1]} in "
            f"{', '.join(columns)}; bring both to one shape and type."
        )
    return arrays


def _encoded(
    parts: Sequence[Columns], column: str
) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """Return each part's values as numbers from 0, and the names of these numbers."""
    names_of_parts = [getattr(part.feature(column), "names", None) for part in parts]
    if names_of_parts[0] is not None:
        for part, names in zip(parts, names_of_parts, strict=True):
            if names != names_of_parts[0]:
                got = "others" if names else "no names"
                raise part.bad(column, 0, "the class names of the training data", got, "cast it")
        return [_numbered(part, column, len(names_of_parts[0])) for part in parts], tuple(
            names_of_parts[0]
        )
    values = [list(_plain(part, column)) for part in parts]
    kinds = {type(value) for part in values for value in part}
    if len(kinds) > 1:
        raise parts[-1].bad(column, 0, "values of one type in all data", "several", "cast it")
    distinct = sorted(set().union(*values))
    number = {value: i for i, value in enumerate(distinct)}
    coded = [np.array([number[value] for value in part], dtype=np.int64) for part in values]
    return coded, tuple(map(str, distinct))


def _numbered(part: Columns, column: str, classes: int) -> NDArray[np.int64]:
    """Return the numbers of a `ClassLabel`, or raise `DataError`; -1 stands for no label."""
    numbers = np.array(part.values(column), dtype=np.int64)
    wrong = (numbers < 0) | (numbers >= classes)
    if wrong.any():
        row = int(wrong.argmax())
        expected = f"a label from 0 to {classes - 1}"
        remedy = "choose a split with labels or drop the row"
        raise part.bad(column, row, expected, int(numbers[row]), remedy)
    return numbers


def _plain(part: Columns, column: str) -> Iterable[int | str]:
    """Yield whole numbers or strings, or raise `DataError`."""
    for row, value in enumerate(part.values(column)):
        if not isinstance(value, int | str):
            remedy = "cast it to whole numbers or strings"
            raise part.bad(column, row, "a whole number or a string", f"{value!r:.60}", remedy)
        yield value
