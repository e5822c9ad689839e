"""LEAF's JSON files (Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018).

`train/*.json` and `test/*.json`, each with `users`, `num_samples` and `user_data[user]["x" | "y"]`.
The files of a split are merged; samples stand in the order of the files, then of their users.
A user's lists become an array as soon as they are parsed: a file of floats would else take some
thirty times the room of its pixels.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from undrift.data.stored import Array, Samples, Stored, damaged
from undrift.errors import DataError

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
PIXELS = 28 * 28
FACE = 84
_FETCH = "make the file again with LEAF's scripts"
_PLAIN = re.compile(r"\w[\w.-]*", re.ASCII)


def read_femnist(folder: str | Path) -> Stored:
    """Handwritten digits and letters by writer: 62 classes, bytes (N, 1, 28, 28).

    LEAF stores byte / 255; rounding gives the byte back, also from as few as four digits.
    """
    train, test, names = _splits(folder, _Layout(_pixels, _labels(len(CHARACTERS))))
    return Stored(train, test, len(CHARACTERS), tuple(CHARACTERS), names)


def read_celeba(folder: str | Path) -> Stored:
    """Faces by celebrity, smiling or not: 2 classes, bytes (N, 3, 84, 84).

    `x` names images in `raw/img_align_celeba`; as in LEAF they are squeezed to 84 x 84 (bicubic).
    """
    train, test, names = _splits(folder, _Layout(_file_names, _labels(2)))
    images = _images_folder(Path(folder))
    train, test = (
        Samples(_faces(images, part.inputs), part.targets, part.owners) for part in (train, test)
    )
    return Stored(train, test, 2, ("not smiling", "smiling"), names)


def read_leaf_shakespeare(folder: str | Path) -> Stored:
    """80 characters and the next one, by speaking role: tokens (N, 80) of LEAF's 80 letters."""
    train, test, names = _splits(folder, _Layout(_windows, _next_letters))
    letters = tuple(LETTERS)
    return Stored(train, test, len(letters), letters, names, letters)


def holds_leaf(folder: Path) -> bool:
    """Whether the folder has LEAF's layout."""
    return any(_root(folder).glob("train/*.json"))


def tokens_of(text: str) -> NDArray[np.uint8]:
    """The letters' indices. A character LEAF does not know (its own code: -1) is a space."""
    # Lone surrogates are valid in JSON strings, though not in Unicode.
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    tokens: NDArray[np.uint8] = _TOKENS[np.minimum(codes, len(_TOKENS) - 1)]
    return tokens


def _token_table() -> NDArray[np.uint8]:
    table = np.full(129, LETTERS.index(" "), dtype=np.uint8)  # the last stands for all above ASCII
    table[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS), dtype=np.uint8)
    return table


_TOKENS = _token_table()


class _Wrong(Exception):
    """A user's list is not what the layout asks for; the file and the user are named later."""

    def __init__(self, expected: str, got: object) -> None:
        super().__init__(expected, got)
        self.expected, self.got = expected, got


@dataclass(frozen=True)
class _Layout:
    """How a user's lists become arrays; both raise `_Wrong`."""

    x: Callable[[list[Any]], Array]
    y: Callable[[list[Any]], Array]


def _pixels(images: list[Any]) -> Array:
    for x in images:
        if not isinstance(x, list) or len(x) != PIXELS:
            got = len(x) if isinstance(x, list) else _kind(x)
            raise _Wrong(f"{PIXELS} numbers in every x", got)
    try:
        values = np.asarray(images)
    except ValueError:  # a list where a number belongs
        values = np.empty(0, dtype=object)
    if values.dtype.kind not in "iuf":
        raise _Wrong("numbers in x", "something else")
    inside = (values >= 0) & (values <= 1)  # false for NaN
    if not inside.all():
        raise _Wrong("pixels from 0 to 1", values[~inside].flat[0])
    pixels: NDArray[np.uint8] = np.rint(values * 255).astype(np.uint8)
    return pixels.reshape(-1, 1, 28, 28)


def _labels(classes: int) -> Callable[[list[Any]], Array]:
    def pack(labels: list[Any]) -> Array:
        for label in labels:
            if type(label) is not int or not 0 <= label < classes:
                raise _Wrong(f"whole labels from 0 to {classes - 1}", repr(label))
        return np.array(labels, dtype=np.int64)

    return pack


def _strings(texts: list[Any], length: int, which: str) -> str:
    for text in texts:
        if not isinstance(text, str):
            raise _Wrong(f"strings of {length} characters as {which}", _kind(text))
        if len(text) != length:
            raise _Wrong(f"strings of {length} characters as {which}", f"{len(text)} characters")
    return "".join(texts)


def _windows(texts: list[Any]) -> Array:
    return tokens_of(_strings(texts, WINDOW, "x")).reshape(-1, WINDOW)


def _next_letters(texts: list[Any]) -> Array:
    return tokens_of(_strings(texts, 1, "y")).astype(np.int64)


def _file_names(names: list[Any]) -> Array:
    for name in names:
        # Nothing outside the folder of the images is opened, whatever the file asks for.
        if not isinstance(name, str) or not _PLAIN.fullmatch(name):
            raise _Wrong("plain names of image files as x", repr(name))
    return np.array(names, dtype=np.str_)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null"}
    return names.get(type(value), repr(value))


def _root(folder: Path) -> Path:
    """LEAF itself writes `data/train`; downloaded copies often drop the `data`."""
    return folder / "data" if (folder / "data" / "train").is_dir() else folder


def _splits(folder: str | Path, layout: _Layout) -> tuple[Samples, Samples, tuple[str, ...]]:
    root = _root(Path(folder))
    found = [_Split.of(root / which, layout) for which in ("train", "test")]
    names = sorted({name for split in found for name in split.users})
    index = {name: i for i, name in enumerate(names)}
    train, test = (split.part(index) for split in found)
    return train, test, tuple(names)


class _Split:
    """What the files of one split hold, user by user."""

    def __init__(self) -> None:
        self.users: dict[str, Path] = {}  # and the file of each
        self.counts: list[int] = []
        self.inputs: list[Array] = []
        self.targets: list[Array] = []

    @classmethod
    def of(cls, folder: Path, layout: _Layout) -> _Split:
        files = sorted(path for path in folder.glob("*.json") if path.is_file())
        if not files:
            raise damaged(folder, "LEAF's *.json files", "none", "put them there")
        split = cls()
        for path in files:
            split.add(path, layout)
        return split

    def add(self, path: Path, layout: _Layout) -> None:
        for user, x, y in _users(path, _parsed(path, layout)):
            if user in self.users:
                first = self.users[user].name
                raise damaged(path, f"users not in {first}", repr(user), "remove one of the two")
            self.users[user] = path
            self.counts.append(len(y))
            self.inputs.append(x)
            self.targets.append(y)

    def part(self, index: dict[str, int]) -> Samples:
        owners = np.repeat([index[user] for user in self.users], self.counts).astype(np.int64)
        return Samples(_joined(self.inputs), _joined(self.targets), owners)


def _joined(pieces: list[Array]) -> Array:
    """All pieces in one, each let go once copied, so that the whole is not held twice."""
    width = max(piece.dtype for piece in pieces)  # of strings; all else is of one type
    whole = np.empty((sum(map(len, pieces)), *pieces[0].shape[1:]), dtype=width)
    end = len(whole)
    while pieces:
        piece = pieces.pop()
        whole[end - len(piece) : end] = piece
        end -= len(piece)
    return whole


def _parsed(path: Path, layout: _Layout) -> Any:
    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise damaged(path, "every user and key once", f"{twice!r} twice", "remove one")
        for key, pack in (("x", layout.x), ("y", layout.y)):
            if isinstance(found.get(key), list):
                found[key] = _packed(found[key], pack)
        return found

    try:
        with path.open(encoding="utf-8-sig") as file:
            return json.load(file, object_pairs_hook=keep)
    except json.JSONDecodeError as error:
        where = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise damaged(path, "valid JSON", where, _FETCH) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, a number too long, nested too deep
        raise damaged(path, "valid JSON", str(error), _FETCH) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


def _packed(values: list[Any], pack: Callable[[list[Any]], Array]) -> Array | _Wrong:
    try:
        if not values:
            raise _Wrong("at least one sample", "none")
        return pack(values)
    except _Wrong as wrong:
        return wrong


def _users(path: Path, parsed: Any) -> list[tuple[str, Array, Array]]:
    def refuse(expected: str, got: object) -> NoReturn:
        raise damaged(path, expected, got, _FETCH)

    if not isinstance(parsed, dict):
        refuse("a JSON object", _kind(parsed))
    for key, kind, noun in (
        ("users", list, "a list"),
        ("num_samples", list, "a list"),
        ("user_data", dict, "an object"),
    ):
        if not isinstance(parsed.get(key), kind):
            refuse(f"{noun} {key!r}", _kind(parsed[key]) if key in parsed else "no such key")
    users, counts, data = parsed["users"], parsed["num_samples"], parsed["user_data"]
    if not users:
        refuse("at least one user", "none")
    for user in users:
        if not isinstance(user, str):
            refuse("names in 'users'", _kind(user))
    if len(counts) != len(users):
        refuse(f"one of 'num_samples' for each of {len(users)} users", len(counts))
    unlisted = sorted(data.keys() - set(users))
    if unlisted:
        refuse("everyone in 'user_data' listed in 'users'", f"{unlisted[0]!r} besides")
    return [(u, *_samples(u, data.get(u), n, refuse)) for u, n in zip(users, counts, strict=True)]


def _samples(
    user: str, entry: Any, count: Any, refuse: Callable[[str, object], NoReturn]
) -> tuple[Array, Array]:
    if not isinstance(entry, dict):
        refuse(f"'user_data' of user {user!r}", "none" if entry is None else _kind(entry))
    for key in ("x", "y"):
        value = entry.get(key)
        if isinstance(value, _Wrong):
            refuse(f"{value.expected} (user {user!r})", value.got)
        if not isinstance(value, np.ndarray):
            refuse(f"a list {key!r} of user {user!r}", _kind(value) if key in entry else "none")
    x, y = entry["x"], entry["y"]
    if len(x) != len(y):
        refuse(f"as many x as y of user {user!r}", f"{len(x)} and {len(y)}")
    if type(count) is not int or count != len(y):
        refuse(f"num_samples {len(y)} of user {user!r}", repr(count))
    return x, y


def _images_folder(folder: Path) -> Path:
    places = [
        parent / "raw" / "img_align_celeba" for parent in (_root(folder), folder / "data", folder)
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
    from PIL import Image

    if not path.is_file():
        raise damaged(path.parent, f"the image {path.name}", "none", "unpack the images again")
    try:
        with Image.open(path) as image:
            small = image.resize((FACE, FACE), Image.Resampling.BICUBIC).convert("RGB")
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged bytes
        raise damaged(path, "an image", str(error), "unpack the images again") from error
    return np.asarray(small, dtype=np.uint8).transpose(2, 0, 1)
