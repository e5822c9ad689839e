"""Columns of Hugging Face's `datasets` as arrays of samples: images, features or tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.check import require, require_choice
from undrift.data.stored import Array, damaged
from undrift.errors import DataError, first_line

WHO = "from_huggingface"
_NEEDED = ("column_names", "features", "select_columns", "with_format", "__len__", "__getitem__")


class Columns:
    """Reads the columns of one split; errors name the column and the row."""

    def __init__(self, data: Any, what: str) -> None:
        if not all(hasattr(data, name) for name in _NEEDED):
            streamed = hasattr(data, "column_names")
            remedy = (
                "load it without streaming" if streamed else "load it with the datasets package"
            )
            raise ValueError(
                f"{WHO} needs a datasets.Dataset as its {what} data, got a "
                f"{type(data).__name__}; {remedy}."
            )
        require(len(data) > 0, WHO, f"rows in its {what} data", 0, "choose another split")
        self.data, self.what = data, what

    def check(self, argument: str, name: str) -> None:
        """Raise `ValueError` unless the column exists."""
        require_choice(WHO, argument, name, self.data.column_names)

    def feature(self, column: str) -> Any:
        """Return the type of a column."""
        return self.data.features[column]

    def decoded(self, column: str) -> Iterator[Any]:
        """Yield the values row by row, so that only one image is decoded at a time."""
        rows = iter(self.data.select_columns([column]).with_format(None))
        for row in range(len(self.data)):
            try:
                value = next(rows)[column]
            except (OSError, ValueError, SyntaxError) as error:  # what Pillow raises
                got = first_line(error)
                raise self.bad(column, row, "an image", got, "drop the row") from error
            yield self._present(column, row, value)

    def values(self, column: str) -> list[Any]:
        """Return all rows as Python objects."""
        values = self.data.select_columns([column]).with_format(None)[:][column]
        return [self._present(column, row, value) for row, value in enumerate(values)]

    def _present(self, column: str, row: int, value: Any) -> Any:
        """Return the value, or raise `DataError` if it is missing."""
        if value is None:
            raise self.bad(column, row, "a value", "none", "fill it or drop the row")
        return value

    def array(self, column: str) -> Array:
        """Return all rows as an array, of dtype object where their lengths differ."""
        rows = self.data.select_columns([column]).with_format("numpy")
        return np.asarray(rows[:][column])

    def bad(self, column: str, row: int, expected: str, got: object, remedy: str) -> DataError:
        """Return an error that names the row and the column."""
        where = f"Row {row} of column {column!r} in the {self.what} data"
        return damaged(where, expected, got, remedy)


def samples(part: Columns, columns: tuple[str, ...], length: int | None, padding: int) -> Array:
    """Return the samples of one column, or the features of several columns of numbers."""
    if len(columns) == 1:
        return _single(part, columns[0], length, padding)
    features = []
    for column in columns:
        single = _single(part, column, None, padding)
        if single.ndim != 2:
            raise part.bad(
                column,
                0,
                "a number or a list of numbers",
                f"an array of shape {single.shape[1:]}",
                "pass it as the only column",
            )
        features.append(single.astype(np.float32))
    return np.concatenate(features, axis=1)


def _single(part: Columns, column: str, length: int | None, padding: int) -> Array:
    """Return one column as images, features or tokens; its first row decides which."""
    first = next(part.decoded(column))
    if hasattr(first, "convert") and hasattr(first, "mode"):
        return _images(part, column)
    if isinstance(first, str | bytes | Mapping):
        kind = "text" if isinstance(first, str) else "bytes"
        remedy = (
            "turn it into token ids with a tokenizer and dataset.map"
            if kind == "text"
            else "cast the column with dataset.cast_column(name, datasets.Image())"
        )
        raise part.bad(column, 0, "an image, numbers or token ids", kind, remedy)
    if length is not None:
        return _tokens(part, column, _filled(part, column, length, padding))
    array = part.array(column)
    if array.dtype == object:
        _refuse_uneven(part, column)
    if array.dtype.kind not in "iufb":
        raise part.bad(column, 0, "numbers", type(first).__name__, "choose another column")
    if array.dtype.kind in "iu" and array.ndim > 2:
        return _bytes(part, column, array)
    if array.dtype.kind in "iu" and array.ndim == 2:
        return _tokens(part, column, array)
    return _features(part, column, array if array.ndim > 1 else array[:, None])


def _features(part: Columns, column: str, array: Array) -> Array:
    """Return numbers in single precision, or raise `DataError` if some are not finite."""
    with np.errstate(over="ignore"):  # an overflow shows as Inf below
        features = array.astype(np.float32)
    finite = np.isfinite(features).reshape(len(features), -1).all(axis=1)
    if not finite.all():
        # A missing number appears as NaN, so the message names both.
        row = int(finite.argmin())
        raise part.bad(column, row, "finite numbers", "NaN, Inf or none", "drop or fill the row")
    return features


def _refuse_uneven(part: Columns, column: str) -> None:
    """Raise `DataError` that names the first row whose shape is not that of row 0."""
    shapes = [np.shape(_nested(value)) for value in part.values(column)]
    row = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
    expected = f"the shape of row 0, {shapes[0]}"
    remedy = "pass length= to cut or fill lists of tokens, or bring all rows to one shape"
    raise part.bad(column, row, expected, shapes[row], remedy)


def _nested(value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths inside one sample
        return np.empty(len(value), dtype=object)


def _filled(part: Columns, column: str, length: int, padding: int) -> Array:
    """Return token ids, cut or filled to one length."""
    rows: list[Array] = []
    for row, value in enumerate(part.values(column)):
        ids = np.asarray(value)
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            remedy = "leave out length, which is for tokens"
            raise part.bad(column, row, "a list of token ids", f"{value!r:.60}", remedy)
        line = np.full(length, padding, dtype=np.int64)
        line[: len(ids)] = ids[:length]
        rows.append(line)
    return np.stack(rows)


def _tokens(part: Columns, column: str, array: Array) -> Array:
    """Return token ids as int64, or raise `DataError` if some are negative."""
    negative = (array < 0).any(axis=1)
    if negative.any():
        row = int(negative.argmax())
        remedy = "cast the column to float32 if these are features"
        raise part.bad(column, row, "token ids >= 0", int(array[row].min()), remedy)
    return array.astype(np.int64)


def _bytes(part: Columns, column: str, array: Array) -> NDArray[np.uint8]:
    """Return images (N, C, H, W) from (N, H, W), (N, H, W, C) or (N, C, H, W)."""
    outside = ((array < 0) | (array > 255)).reshape(len(array), -1).any(axis=1)
    if outside.any():
        row = int(outside.argmax())
        remedy = "cast the column to float32 if it holds no images"
        raise part.bad(column, row, "bytes from 0 to 255", "others", remedy)
    pixels = array.astype(np.uint8)
    if pixels.ndim == 3:
        return pixels[:, None]
    if pixels.ndim == 4 and pixels.shape[3] in (1, 3):
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    if pixels.ndim == 4 and pixels.shape[1] in (1, 3):
        return pixels
    expected = "an image of height x width with 1 or 3 channels"
    raise part.bad(column, 0, expected, pixels.shape[1:], "cast it to float32 or reshape it")


def _images(part: Columns, column: str) -> NDArray[np.uint8]:
    """Return images of one channel if all are grey, and of three otherwise."""
    images: list[NDArray[np.uint8]] = []
    for row, image in enumerate(part.decoded(column)):
        if image.mode.startswith(("I", "F")):
            raise part.bad(column, row, "8 bits per channel", f"mode {image.mode}", "convert it")
        grey = image.mode in ("1", "L", "LA")
        pixels = np.asarray(image.convert("L" if grey else "RGB"), dtype=np.uint8)
        images.append(pixels[None] if grey else pixels.transpose(2, 0, 1))
        if images[row].shape[1:] != images[0].shape[1:]:
            size = "{0[2]} x {0[1]}".format
            expected = f"{size(images[0].shape)} pixels as row 0 has"
            got = size(images[row].shape)
            remedy = "resize the images to one size with dataset.map"
            raise part.bad(column, row, expected, got, remedy)
    return _same_channels(images)


def _same_channels(images: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    channels = max(len(image) for image in images)
    batch = np.empty((len(images), channels, *images[0].shape[1:]), np.uint8)
    for i, image in enumerate(images):
        batch[i] = image  # a grey channel is copied to all three
    return batch
