"""LIBSVM text: lines of `<label> <index>:<value> ...` with ascending indices from 1."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from undrift.check import is_whole, require
from undrift.data.formats import packed
from undrift.data.stored import Samples, Stored, damaged

_A9A_FEATURES = 123
_MOST_KNOWN = 100_000
_LARGEST = float(np.finfo(np.float32).max)
_LONGEST_LINE = 1 << 24  # bytes; one with 100,000 features has a tenth of that
_ENDINGS = ("", ".gz", ".bz2", ".xz")


def read_libsvm(path: str | Path, features: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return dense features (N, features) and labels (N,) of a file, plain, gz, bz2 or xz.

    Empty lines and text after a # are ignored.
    """
    require(is_whole(features) and features >= 1, "read_libsvm", "features >= 1", features)
    path = Path(path)
    labels, columns, values = array("d"), array("q"), array("d")
    ends = array("q", [0])  # number of entries up to the end of each sample
    known: dict[str, tuple[int, float]] = {}  # many entries, such as 0/1 features, occur often
    for number, line in enumerate(_lines(path), 1):
        fields = (line.partition("#")[0] if "#" in line else line).split()
        if not fields:
            continue
        labels.append(_label(fields[0], path, number))
        last = 0
        for field in fields[1:]:
            entry = known.get(field)
            if entry is None:
                entry = known[field] = _entry(field, features, path, number)
            column, value = entry
            if column <= last:
                got = f"{column} after {last}"
                raise damaged(_line(path, number), "ascending indices", got, "sort the line")
            last = column
            columns.append(column - 1)
            values.append(value)
        if len(known) > _MOST_KNOWN:
            known.clear()
        ends.append(len(columns))
    if not labels:
        raise damaged(path, "at least one sample", "none", "fetch the file again")
    dense = np.zeros((len(labels), features), np.float32)
    rows = np.repeat(np.arange(len(labels)), np.diff(ends))
    dense[rows, np.array(columns)] = values
    return dense, np.array(labels)


def _line(path: Path, number: int) -> str:
    return f"{path}, line {number}"


def _label(field: str, path: Path, number: int) -> float:
    """Return the label of a line, or raise `DataError`."""
    if ":" in field:
        remedy = "put the label in front of the features"
        raise damaged(_line(path, number), "a label first", f"{field!r}: it is missing", remedy)
    try:
        label = float(field)
    except ValueError:
        raise _unparsable(path, number, "a number as label", field) from None
    if not np.isfinite(label):
        raise _unparsable(path, number, "a finite label", field)
    return label


def _unparsable(path: Path, number: int, expected: str, field: str) -> Exception:
    excerpt = field if len(field) <= 40 else field[:40] + "..."
    return damaged(_line(path, number), expected, repr(excerpt), "correct the line")


def _entry(field: str, features: int, path: Path, number: int) -> tuple[int, float]:
    """Return index and value of an entry, or raise `DataError`."""
    try:
        before, after = field.split(":")
        column, value = int(before), float(after)
    except ValueError:
        raise _unparsable(path, number, "<index>:<value>", field) from None
    if column < 1:
        raise damaged(_line(path, number), "indices from 1", column, "add 1 to every index")
    if column > features:
        expected = f"indices up to {features}, the number of features"
        remedy = "give the larger number of features, or correct the line"
        raise damaged(_line(path, number), expected, column, remedy)
    # A finite value such as 1e300 becomes infinite in single precision.
    if not abs(value) <= _LARGEST:
        raise _unparsable(path, number, "values that are finite in single precision", field)
    return column, value


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, plain or compressed; none is held after it was read."""
    number = 0
    try:
        with packed.open_packed(path) as file:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if len(line) == _LONGEST_LINE:
                    raise ValueError(f"a line of more than {_LONGEST_LINE:,} bytes")
                # Python reads 1_0 as 10, but LIBSVM does not.
                if b"_" in line:
                    remedy = "correct the line"
                    raise damaged(_line(path, number), "plain numbers", "an underscore", remedy)
                yield line.decode("ascii")
    except packed.ERRORS as error:
        if number == 0 and isinstance(error, OSError) and error.errno is not None:
            remedy = "put the file there"
            raise damaged(path, "a LIBSVM file", error.strerror or error, remedy) from error
        kind = "plain text" if isinstance(error, UnicodeDecodeError) else "a whole compressed file"
        raise damaged(path, kind, error, "fetch the file again") from error


def read_a9a(folder: str | Path) -> Stored:
    """Read a9a and a9a.t: 123 features of the Adult census; label 1 is an income above 50K."""
    folder = Path(folder)
    return Stored(_a9a_part(folder, "a9a"), _a9a_part(folder, "a9a.t"), classes=2)


def _a9a_part(folder: Path, name: str) -> Samples:
    """Return the samples of one file of a9a."""
    options = [place / (name + end) for place in (folder, folder / "libsvm") for end in _ENDINGS]
    path = next((option for option in options if option.is_file()), None)
    if path is None:
        raise damaged(folder, f"the file {name}", "none", f"put {name} of the LIBSVM site into it")
    inputs, labels = read_libsvm(path, _A9A_FEATURES)
    wrong = np.abs(labels) != 1
    if wrong.any():
        first = int(np.argmax(wrong))
        got = f"{labels[first]:g} in sample {first + 1}"
        raise damaged(path, "labels -1 and +1", got, "fetch the file again")
    return Samples(inputs, (labels > 0).astype(np.int64))
