"""CIFAR-10 and CIFAR-100: the original binary and python batches, or lossless mosaics.

The python batches are pickles; they are read by an unpickler that runs no code of the file.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from undrift.data.formats.archive import read_archive
from undrift.data.formats.images import decode
from undrift.data.formats.pickled import PickledArray, as_text, unpickled
from undrift.data.stored import Samples, Stored, damaged
from undrift.errors import first_line

Pixels = NDArray[np.uint8]
Batch = tuple[Pixels, NDArray[np.int64]]  # (N, 3, 32, 32) and (N,)
Files = dict[str, bytes]

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_AGAIN = "fetch it again"


@dataclass(frozen=True)
class _Variant:
    """Says how CIFAR-10 and CIFAR-100 differ."""

    title: str
    classes: int
    train: tuple[str, ...]  # batches
    test: str
    folders: tuple[str, str]  # of the binary and of the python form
    archives: tuple[str, str]
    extra_bytes: int  # in front of a binary row's label: CIFAR-100 has the coarse label there
    labels_key: str
    text_names: str  # file of the class names, one per line
    meta: str  # pickle that has the class names under `names_key`
    names_key: str

    @property
    def batches(self) -> tuple[str, ...]:
        """Return the names of all batches, the test batch last."""
        return (*self.train, self.test)

    @property
    def known(self) -> frozenset[str]:
        """Return the name of every file that the reader may use."""
        ends = ("", ".bin", ".webp")
        batches = {name + end for name in self.batches for end in ends}
        return frozenset(batches | {self.meta, self.text_names, "labels.npy"})


_CIFAR10 = _Variant(
    title="CIFAR-10",
    classes=10,
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
    extra_bytes=0,
    labels_key="labels",
    text_names="batches.meta.txt",
    meta="batches.meta",
    names_key="label_names",
)
_CIFAR100 = _Variant(
    title="CIFAR-100",
    classes=100,
    train=("train",),
    test="test",
    folders=("cifar-100-binary", "cifar-100-python"),
    archives=("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"),
    extra_bytes=1,
    labels_key="fine_labels",
    text_names="fine_label_names.txt",
    meta="meta",
    names_key="fine_label_names",
)


def read_cifar10(folder: str | Path) -> Stored:
    """Read CIFAR-10 in any of its forms, images as (N, 3, 32, 32) bytes.

    `folder` holds the batches, the original sub-folder with them, the original archive, or the
    mosaics `data_batch_1.webp` ... with `labels.npy`.
    """
    return _read(Path(folder), _CIFAR10)


def read_cifar100(folder: str | Path) -> Stored:
    """Read CIFAR-100 with its fine labels, in any of the forms of `read_cifar10`."""
    return _read(Path(folder), _CIFAR100)


def _read(folder: Path, variant: _Variant) -> Stored:
    where, files = _find(folder, variant)
    binary, apart = f"{variant.test}.bin" in files, "labels.npy" in files
    with ThreadPoolExecutor() as pool:  # decoding a mosaic releases Python's lock
        batches = list(pool.map(lambda name: _batch(where, name, files, variant), variant.batches))
    for name, (_, labels) in zip(variant.train, batches, strict=False):
        if len(labels) != len(batches[0][1]):  # a batch was cut off between two images
            expected = f"{len(batches[0][1]):,} images as in {variant.train[0]}"
            raise damaged(where / name, expected, f"{len(labels):,}", _AGAIN)
    if apart:
        batches = _with_labels(where, files["labels.npy"], batches)
    for name, (_, labels) in zip(variant.batches, batches, strict=True):
        holder = "labels.npy" if apart else f"{name}.bin" if binary else name
        _check_labels(where / holder, labels, variant.classes)
    pixels, targets = zip(*batches[:-1], strict=True)
    return Stored(
        Samples(np.concatenate(pixels), np.concatenate(targets)),
        Samples(*batches[-1]),
        classes=variant.classes,
        labels=_class_names(where, files, variant),
    )


def _find(folder: Path, variant: _Variant) -> tuple[Path, Files]:
    """Return the first place with all batches in one form, and its files."""
    partial = None
    places = (folder, *(folder / name for name in variant.folders))
    for place in places:
        present = {name for name in variant.known if (place / name).is_file()}
        form, missing = _form(present, variant)
        if form and not missing:
            return place, {name: _bytes(place / name) for name in sorted(form)}
        partial = partial or (missing and (place, missing))
    for name in variant.archives:
        if (folder / name).is_file():
            members = read_archive(folder / name, lambda path: Path(path).name in variant.known)
            files = {Path(path).name: data for path, data in members.items()}
            form, missing = _form(set(files), variant)
            if form and not missing:
                return folder / name, {part: files[part] for part in form}
            partial = partial or (folder / name, missing or set(variant.batches))
    if partial:
        where, lost = partial
        raise damaged(where, f"all batches of {variant.title}", f"no {min(lost)}", "complete it")
    names = ", ".join(variant.folders + variant.archives)
    remedy = f"put one of {names} there"
    raise damaged(folder, f"the batches of {variant.title}", "none", remedy)


def _form(present: set[str], variant: _Variant) -> tuple[set[str], set[str]]:
    """Return the files of the first form that is present, and those of them that are missing."""
    names = {variant.meta, variant.text_names} & present
    first: tuple[set[str], set[str]] = (set(), set())
    for end, beside in ((".bin", set[str]()), ("", set[str]()), (".webp", {"labels.npy"})):
        batches = {name + end for name in variant.batches}
        missing = (batches | beside) - present
        if not missing:
            return batches | beside | names, missing
        if batches & present and not first[0]:
            first = (batches, missing)
    return first


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        remedy = "check its permissions"
        raise damaged(path, "a readable file", error.strerror or error, remedy) from error


def _batch(where: Path, name: str, files: Files, variant: _Variant) -> Batch:
    # `pop` frees the bytes of a batch, which are not needed again.
    """Return images and labels of one batch."""
    if f"{name}.bin" in files:
        return _binary(where / f"{name}.bin", files.pop(f"{name}.bin"), variant)
    if f"{name}.webp" in files:
        images = read_mosaic(where / f"{name}.webp", files.pop(f"{name}.webp"))
        return images, np.zeros(len(images), np.int64)  # labels.npy has the labels
    return _python(where / name, files.pop(name), variant)


def _binary(path: Path, data: bytes, variant: _Variant) -> Batch:
    before = variant.extra_bytes + 1
    row = before + _PIXELS
    if not data or len(data) % row:
        expected = f"rows of {row:,} bytes, one per image"
        raise damaged(path, expected, f"{len(data):,} bytes", _AGAIN)
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    images = rows[:, before:].reshape(-1, 3, _SIDE, _SIDE).copy()
    return images, rows[:, before - 1].astype(np.int64)


def read_mosaic(path: Path, data: bytes) -> Pixels:
    """Return images that are tiled row by row in one large image."""
    pixels = decode(str(path), data)
    height, width, _ = pixels.shape
    if height % _SIDE or width % _SIDE:
        expected = f"sides that are multiples of {_SIDE} pixels"
        raise damaged(path, expected, f"{width} x {height}", _AGAIN)
    tiles = pixels.reshape(height // _SIDE, _SIDE, width // _SIDE, _SIDE, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, _SIDE, _SIDE)


def _with_labels(where: Path, data: bytes, batches: list[Batch]) -> list[Batch]:
    """Return the batches with the labels of labels.npy."""
    path, count = where / "labels.npy", sum(len(images) for images, _ in batches)
    file = io.BytesIO(data)
    try:
        shape, dtype = _npy_header(file)
    except Exception as error:  # NumPy evaluates the header as Python and may raise anything
        raise damaged(path, "an array of labels", first_line(error), _AGAIN) from error
    whole = len(data) - file.tell() == count * dtype.itemsize
    if shape != (count,) or dtype.kind != "u" or not whole:  # Nothing is allocated before this.
        got = f"{dtype} of shape {shape}, {len(data):,} bytes"
        raise damaged(path, f"{count:,} whole numbers, one label per tile", got, _AGAIN)
    labels = np.frombuffer(data, dtype, count, file.tell())
    ends = np.cumsum([len(images) for images, _ in batches])[:-1]
    parts = np.split(labels.astype(np.int64), ends)
    return [(images, part) for (images, _), part in zip(batches, parts, strict=True)]


def _npy_header(file: io.BytesIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of the array in an npy file, and leave the file at its items."""
    version = npy.read_magic(file)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, _, dtype = read[version](file)
    return shape, dtype


def _check_labels(path: Path, labels: NDArray[np.int64], classes: int) -> None:
    """Raise `DataError` for a label that does not exist."""
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        expected = f"labels from 0 to {classes - 1}"
        raise damaged(path, expected, f"{labels[row]} for image {row}", _AGAIN)


def _class_names(where: Path, files: Files, variant: _Variant) -> tuple[str, ...]:
    """Return the class names, or () where the files have none."""
    if variant.meta in files:
        path = where / variant.meta
        listed = unpickled(path, files[variant.meta]).get(variant.names_key)
        chosen = listed if isinstance(listed, list) else []
        names = tuple(as_text(name) for name in chosen if isinstance(name, str | bytes))
    elif variant.text_names in files:
        path = where / variant.text_names
        lines = as_text(files[variant.text_names]).splitlines()
        names = tuple(line.strip() for line in lines if line.strip())
    else:
        return ()
    if len(names) != variant.classes:
        raise damaged(path, f"{variant.classes} class names", len(names), _AGAIN)
    return names


def _python(path: Path, data: bytes, variant: _Variant) -> Batch:
    content = unpickled(path, data)
    array, labels = content.get("data"), content.get(variant.labels_key)
    rows = array.rows(_PIXELS) if isinstance(array, PickledArray) else None
    if rows is None:
        expected = f"an N x {_PIXELS} array of bytes under 'data'"
        raise damaged(path, expected, type(array).__name__.strip("_"), _AGAIN)
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        expected = f"a list of whole numbers under {variant.labels_key!r}"
        raise damaged(path, expected, type(labels).__name__, _AGAIN)
    if len(labels) != len(rows):
        expected = f"{len(rows):,} labels, one per image"
        raise damaged(path, expected, f"{len(labels):,}", _AGAIN)
    # A number beyond 64 bits becomes the label -1, which `_check_labels` refuses.
    small = [label if 0 <= label < variant.classes else -1 for label in labels]
    return rows.reshape(-1, 3, _SIDE, _SIDE).copy(), np.array(small, dtype=np.int64)
