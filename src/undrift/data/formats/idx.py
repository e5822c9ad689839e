"""The idx files of MNIST and Fashion-MNIST, and QMNIST's writers of the MNIST digits.

An idx file is two zero bytes, a code of the data type, the number of dimensions, each dimension
as a 32-bit integer, then the items; everything is big-endian.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from undrift.data.formats import packed
from undrift.data.stored import Array, Samples, Stored, damaged

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_DIMENSIONS = 8
_AGAIN = "fetch the file again"


def read_idx(path: str | Path, *, dimensions: int | None = None) -> Array:
    """Return the array of an idx file, plain or gzip (its first bytes decide which).

    `dimensions` requires an array of bytes with so many dimensions.
    """
    path = Path(path)
    try:
        with packed.open_packed(path) as file:
            most = packed.unpacked_limit(path.stat().st_size)
            return _read(file, path, most, dimensions)
    except EOFError as error:
        raise damaged(path, "a whole gzip file", "one that ends too early", _AGAIN) from error
    except packed.ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            remedy = "put the file there"
            raise damaged(path, "a readable idx file", error.strerror, remedy) from error
        raise damaged(path, "a sound gzip file", error, _AGAIN) from error


def _read(file: BinaryIO, path: Path, most: int, dimensions: int | None) -> Array:
    """Return the array of an open file that can hold at most `most` bytes."""
    start = file.read(4)
    sound = len(start) == 4 and start[:2] == b"\0\0" and start[2] in _TYPES
    fits = dimensions is None or start == bytes((0, 0, 8, dimensions))
    if not sound or not fits or not 1 <= start[3] <= _MOST_DIMENSIONS:
        magic = f"0x{start.hex()}" if start else "an empty file"
        expected = f"the idx magic number 0x0000080{dimensions}"
        if dimensions is None:
            expected = "an idx magic number such as 0x00000803"
        raise damaged(path, expected, magic, "check that it is the idx file, or fetch it again")
    sizes = file.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        raise damaged(path, f"{start[3]} dimensions after its magic number", "fewer", _AGAIN)
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
    if 0 in shape:
        raise damaged(path, "at least one item in every dimension", shape, _AGAIN)
    dtype = np.dtype(_TYPES[start[2]])
    size = math.prod(shape) * dtype.itemsize
    # This check comes before any allocation, because a damaged header may claim terabytes.
    if size > most:
        raise _wrong_length(path, shape, size, f"a file that holds at most {most:,}")
    payload = np.empty(size, np.uint8)
    got = _fill(file, payload)
    if got < size or file.read(1):
        raise _wrong_length(path, shape, size, f"{got:,}" if got < size else "more")
    items: Array = payload.view(dtype).reshape(shape)
    return items.astype(dtype.newbyteorder("="), copy=False)


def _fill(file: BinaryIO, payload: NDArray[np.uint8]) -> int:
    """Read bytes into an array and return how many there were."""
    view, done = payload.data, 0
    while done < len(view):
        chunk = file.read(min(1 << 20, len(view) - done))
        if not chunk:
            break
        view[done : done + len(chunk)] = chunk
        done += len(chunk)
    return done


def _wrong_length(path: Path, shape: tuple[int, ...], size: int, got: str) -> Exception:
    sides = " x ".join(f"{n:,}" for n in shape)
    return damaged(path, f"{size:,} bytes of data for its {sides} items", got, _AGAIN)


def read_mnist(folder: str | Path) -> Stored:
    """Read MNIST or Fashion-MNIST from four files, images as (N, 1, 28, 28) bytes.

    QMNIST's two label files beside them name the writer of each digit of MNIST: the writers of both
    parts become the natural clients.
    """
    folder = Path(folder)
    train = _read_part(folder, "train")
    test = _read_part(folder, "t10k")
    writers = _read_writers(folder, train, test)
    if writers is None:
        return Stored(train, test, classes=10)
    ids, owners = np.unique(np.concatenate(writers), return_inverse=True)
    owners = owners.astype(np.int64)
    return Stored(
        Samples(train.inputs, train.targets, owners[: len(train)]),
        Samples(test.inputs, test.targets, owners[len(train) :]),
        classes=10,
        names=tuple(str(writer) for writer in ids),
    )


def _find(folder: Path, name: str) -> Path | None:
    """Return the path of `name` or its spelling with a dot, plain or gzip, or None."""
    spellings = (name, name.replace("-idx", ".idx"))
    options = [folder / (spelling + end) for spelling in spellings for end in ("", ".gz")]
    return next((path for path in options if path.is_file()), None)


def _existing(folder: Path, name: str) -> Path:
    """Return the path of a file, or raise `DataError`."""
    path = _find(folder, name)
    if path is None:
        remedy = f"put {name}.gz into it"
        raise damaged(folder, f"the file {name} or {name}.gz", "neither", remedy)
    return path


def _read_part(folder: Path, part: str) -> Samples:
    """Return the images and labels of one part."""
    image_path = _existing(folder, f"{part}-images-idx3-ubyte")
    label_path = _existing(folder, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(image_path, dimensions=3), read_idx(label_path, dimensions=1)
    if images.shape[1:] != (28, 28):
        remedy = "check that it is the right file"
        raise damaged(image_path, "images of 28 x 28 bytes", f"shape {images.shape}", remedy)
    if len(labels) != len(images):
        expected = f"{len(images):,} labels, one per image of {image_path.name}"
        raise damaged(label_path, expected, f"{len(labels):,}", "fetch both files again")
    if labels.max() > 9:
        row = int(np.argmax(labels > 9))
        raise damaged(label_path, "labels from 0 to 9", f"{labels[row]} in row {row}", _AGAIN)
    return Samples(images[:, None], labels.astype(np.int64))


def _read_writers(folder: Path, train: Samples, test: Samples) -> tuple[Array, Array] | None:
    """Return the writers of both parts, or None without QMNIST's files."""
    names = ("qmnist-train-labels-idx2-int", "qmnist-test-labels-idx2-int")
    if not any(_find(folder, name) for name in names):
        return None
    in_train, in_test = (_existing(folder, name) for name in names)
    return _writers(in_train, train, exact=True), _writers(in_test, test, exact=False)


def _writers(path: Path, part: Samples, *, exact: bool) -> Array:
    """Return column 2 of a QMNIST file; only the first rows of the test file belong to MNIST."""
    table = read_idx(path)
    if table.dtype != np.int32 or table.ndim != 2 or table.shape[1] < 3:
        expected = "rows of at least 3 integers (class, series, writer)"
        raise damaged(path, expected, f"{table.dtype} of shape {table.shape}", _AGAIN)
    if len(table) < len(part) or (exact and len(table) > len(part)):
        expected = f"{'' if exact else 'at least '}{len(part):,} rows, one per image"
        raise damaged(path, expected, f"{len(table):,}", _AGAIN)
    table = table[: len(part)]
    wrong = table[:, 0] != part.targets
    if wrong.any():
        row = int(np.argmax(wrong))
        expected = f"MNIST's label {part.targets[row]} in column 0 of row {row}"
        remedy = "take the file away if the images are not MNIST's, else fetch it again"
        raise damaged(path, expected, table[row, 0], remedy)
    return table[:, 2]
