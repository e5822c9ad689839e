"""LEAF's JSON files (Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018).

`train/*.json` and `test/*.json` have `users`, `num_samples` and `user_data[user]["x" | "y"]` each.
The files of a split are merged; samples are in the order of the files, then of their users.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.data.formats.images import opened, pillow
from undrift.data.formats.leaf_json import Packers, WrongList, kind_of, read_splits, root_of
from undrift.data.stored import Array, Samples, Stored, damaged

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
PIXELS = 28 * 28
FACE = 84
_PLAIN = re.compile(r"\w[\w.-]*", re.ASCII)


def read_femnist(folder: str | Path) -> Stored:
    """Read handwritten digits and letters by writer: 62 classes, bytes (N, 1, 28, 28).

    LEAF stores byte / 255 with at least four digits, so rounding recovers the byte.
    """
    train, test, names = read_splits(folder, Packers(_pixels, _labels(len(CHARACTERS))))
    return Stored(train, test, len(CHARACTERS), tuple(CHARACTERS), names)


def read_celeba(folder: str | Path) -> Stored:
    """Read faces by celebrity, smiling or not: 2 classes, bytes (N, 3, 84, 84).

    `x` names images in `raw/img_align_celeba`, which are squeezed to 84 x 84 (bicubic) as in LEAF.
    """
    train, test, names = read_splits(folder, Packers(_file_names, _labels(2)))
    images = _images_folder(Path(folder))
    train, test = (
        Samples(_faces(images, part.inputs), part.targets, part.owners) for part in (train, test)
    )
    return Stored(train, test, 2, ("not smiling", "smiling"), names)


def read_leaf_shakespeare(folder: str | Path) -> Stored:
    """Read 80 characters and the next one by role, as tokens (N, 80) of LEAF's 80 letters."""
    train, test, names = read_splits(folder, Packers(_windows, _next_letters))
    letters = tuple(LETTERS)
    return Stored(train, test, len(letters), letters, names, letters)


def holds_leaf(folder: Path) -> bool:
    """Return whether the folder has LEAF's layout."""
    return any(root_of(folder).glob("train/*.json"))


def tokens_of(text: str) -> NDArray[np.uint8]:
    """Return the letters' indices; a character that LEAF does not know (code -1) is a space."""
    # JSON strings may hold lone surrogates, which Unicode forbids.
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    tokens: NDArray[np.uint8] = _TOKENS[np.minimum(codes, len(_TOKENS) - 1)]
    return tokens


def _token_table() -> NDArray[np.uint8]:
    table = np.full(
        129, LETTERS.index(" "), dtype=np.uint8
    )  # the last entry is for all characters above ASCII
    table[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS), dtype=np.uint8)
    return table


_TOKENS = _token_table()


def _pixels(images: list[Any]) -> Array:
    """Return images as bytes, or raise `WrongList`."""
    for x in images:
        if not isinstance(x, list) or len(x) != PIXELS:
            got = len(x) if isinstance(x, list) else kind_of(x)
            raise WrongList(f"{PIXELS} numbers in every x", got)
    try:
        values = np.asarray(images)
    except ValueError:  # a list where a number belongs
        values = np.empty(0, dtype=object)
    if values.dtype.kind not in "iuf":
        raise WrongList("numbers in x", "something else")
    inside = (values >= 0) & (values <= 1)  # false for NaN
    if not inside.all():
        raise WrongList("pixels from 0 to 1", values[~inside].flat[0])
    pixels: NDArray[np.uint8] = np.rint(values * 255).astype(np.uint8)
    return pixels.reshape(-1, 1, 28, 28)


def _labels(classes: int) -> Callable[[list[Any]], Array]:
    """Return a function that makes an array of labels, or raises `WrongList`."""

    def pack(labels: list[Any]) -> Array:
        for label in labels:
            if type(label) is not int or not 0 <= label < classes:
                raise WrongList(f"whole labels from 0 to {classes - 1}", repr(label))
        return np.array(labels, dtype=np.int64)

    return pack


def _strings(texts: list[Any], length: int, which: str) -> str:
    """Return the texts joined, or raise `WrongList` if one has another length."""
    for text in texts:
        if not isinstance(text, str):
            raise WrongList(f"strings of {length} characters as {which}", kind_of(text))
        if len(text) != length:
            raise WrongList(f"strings of {length} characters as {which}", f"{len(text)} characters")
    return "".join(texts)


def _windows(texts: list[Any]) -> Array:
    return tokens_of(_strings(texts, WINDOW, "x")).reshape(-1, WINDOW)


def _next_letters(texts: list[Any]) -> Array:
    return tokens_of(_strings(texts, 1, "y")).astype(np.int64)


def _file_names(names: list[Any]) -> Array:
    """Return the names of images, or raise `WrongList`."""
    for name in names:
        # A plain name cannot lead out of the folder of the images.
        if not isinstance(name, str) or not _PLAIN.fullmatch(name):
            raise WrongList("plain names of image files as x", repr(name))
    return np.array(names, dtype=np.str_)


def _images_folder(folder: Path) -> Path:
    """Return the folder of CelebA's images, or raise `DataError`."""
    places = [
        parent / "raw" / "img_align_celeba" for parent in (root_of(folder), folder / "data", folder)
    ]
    for place in places:
        if place.is_dir():
            return place
    raise damaged(folder, "CelebA's aligned images", "none", f"put them into {places[0]}")


def _faces(folder: Path, names: Array) -> NDArray[np.uint8]:
    faces = np.empty((len(names), 3, FACE, FACE), dtype=np.uint8)
    for face, name in zip(faces, names, strict=True):
        face[...] = _face(folder / str(name))
    return faces


def _face(path: Path) -> NDArray[np.uint8]:
    """Return one image, squeezed to a square, or raise `DataError`."""
    if not path.is_file():
        raise damaged(path.parent, f"the image {path.name}", "none", "unpack the images again")
    try:
        image = opened(str(path), path.read_bytes())
    except OSError as error:
        remedy = "unpack the images again"
        raise damaged(path, "a readable file", error.strerror or error, remedy) from error
    small = image.resize((FACE, FACE), pillow().Resampling.BICUBIC)
    return np.asarray(small, dtype=np.uint8).transpose(2, 0, 1)
