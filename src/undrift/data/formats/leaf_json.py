"""LEAF's JSON files: their layout, their checks, and the merging of their users.

A user's lists become an array as soon as they are parsed, because a file of floats would otherwise
take some thirty times the memory of its pixels.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from undrift.data.stored import Array, Samples, damaged
from undrift.errors import DataError

_FETCH = "make the file again with LEAF's scripts"


class WrongList(Exception):
    """Says that a user's list does not fit; the file and the user are named later."""

    def __init__(self, expected: str, got: object) -> None:
        super().__init__(expected, got)
        self.expected, self.got = expected, got


@dataclass(frozen=True)
class Packers:
    """Holds the functions that make arrays of a user's x and y, or raise `WrongList`."""

    x: Callable[[list[Any]], Array]
    y: Callable[[list[Any]], Array]


def kind_of(value: object) -> str:
    """Return the name of a JSON value's type."""
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null"}
    return names.get(type(value), repr(value))


def root_of(folder: Path) -> Path:
    """Return the folder of the splits; LEAF writes `data/train`, and copies often drop `data`."""
    return folder / "data" if (folder / "data" / "train").is_dir() else folder


def read_splits(folder: str | Path, packers: Packers) -> tuple[Samples, Samples, tuple[str, ...]]:
    """Return training samples, test samples and the names of all users."""
    root = root_of(Path(folder))
    splits = [_Split.of(root / which, packers) for which in ("train", "test")]
    names = sorted({name for split in splits for name in split.users})
    index = {name: i for i, name in enumerate(names)}
    train, test = (split.part(index) for split in splits)
    return train, test, tuple(names)


class _Split:
    """Holds the samples of one split, user by user."""

    def __init__(self) -> None:
        self.users: dict[str, Path] = {}  # name -> file
        self.counts: list[int] = []
        self.inputs: list[Array] = []
        self.targets: list[Array] = []

    @classmethod
    def of(cls, folder: Path, packers: Packers) -> _Split:
        """Read all files of a folder."""
        files = sorted(path for path in folder.glob("*.json") if path.is_file())
        if not files:
            raise damaged(folder, "LEAF's *.json files", "none", "put them there")
        split = cls()
        for path in files:
            split.add(path, packers)
        return split

    def add(self, path: Path, packers: Packers) -> None:
        """Add the users of one file, or raise `DataError` for a user that is known."""
        for user, x, y in _users(path, _parsed(path, packers)):
            if user in self.users:
                first = self.users[user].name
                raise damaged(path, f"users not in {first}", repr(user), "remove one of the two")
            self.users[user] = path
            self.counts.append(len(y))
            self.inputs.append(x)
            self.targets.append(y)

    def part(self, index: dict[str, int]) -> Samples:
        """Return the samples of all users; `index` numbers their names."""
        owners = np.repeat([index[user] for user in self.users], self.counts).astype(np.int64)
        return Samples(_joined(self.inputs), _joined(self.targets), owners)


def _joined(pieces: list[Array]) -> Array:
    """Join the pieces and free each once it is copied, so that nothing is held twice."""
    width = max(piece.dtype for piece in pieces)  # strings may have different widths
    joined = np.empty((sum(map(len, pieces)), *pieces[0].shape[1:]), dtype=width)
    end = len(joined)
    while pieces:
        piece = pieces.pop()
        joined[end - len(piece) : end] = piece
        end -= len(piece)
    return joined


def _parsed(path: Path, packers: Packers) -> Any:
    """Return the content of a file with arrays for lists, or raise `DataError`."""

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entry = dict(pairs)
        if len(entry) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = next(key for key in counts if counts[key] > 1)
            raise damaged(path, "every user and key once", f"{twice!r} twice", "remove one")
        for key, pack in (("x", packers.x), ("y", packers.y)):
            if isinstance(entry.get(key), list):
                entry[key] = _packed(entry[key], pack)
        return entry

    try:
        with path.open(encoding="utf-8-sig") as file:
            return json.load(file, object_pairs_hook=keep)
    except json.JSONDecodeError as error:
        where = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise damaged(path, "valid JSON", where, _FETCH) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # wrong encoding, too long numbers, too deep nesting
        raise damaged(path, "valid JSON", str(error), _FETCH) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


def _packed(values: list[Any], pack: Callable[[list[Any]], Array]) -> Array | WrongList:
    """Return the array of a list, or the reason why there is none."""
    try:
        if not values:
            raise WrongList("at least one sample", "none")
        return pack(values)
    except WrongList as wrong:
        return wrong


def _users(path: Path, parsed: Any) -> list[tuple[str, Array, Array]]:
    """Return name, x and y of each user, or raise `DataError`."""

    def refuse(expected: str, got: object) -> NoReturn:
        raise damaged(path, expected, got, _FETCH)

    if not isinstance(parsed, dict):
        refuse("a JSON object", kind_of(parsed))
    for key, kind, noun in (
        ("users", list, "a list"),
        ("num_samples", list, "a list"),
        ("user_data", dict, "an object"),
    ):
        if not isinstance(parsed.get(key), kind):
            refuse(f"{noun} {key!r}", kind_of(parsed[key]) if key in parsed else "no such key")
    users, counts, data = parsed["users"], parsed["num_samples"], parsed["user_data"]
    if not users:
        refuse("at least one user", "none")
    for user in users:
        if not isinstance(user, str):
            refuse("names in 'users'", kind_of(user))
    if len(counts) != len(users):
        refuse(f"one of 'num_samples' for each of {len(users)} users", len(counts))
    unlisted = sorted(data.keys() - set(users))
    if unlisted:
        refuse("everyone in 'user_data' listed in 'users'", f"{unlisted[0]!r} besides")
    return [(u, *_samples(u, data.get(u), n, refuse)) for u, n in zip(users, counts, strict=True)]


def _samples(
    user: str, entry: Any, count: Any, refuse: Callable[[str, object], NoReturn]
) -> tuple[Array, Array]:
    """Return x and y of one user."""
    if not isinstance(entry, dict):
        refuse(f"'user_data' of user {user!r}", "none" if entry is None else kind_of(entry))
    for key in ("x", "y"):
        value = entry.get(key)
        if isinstance(value, WrongList):
            refuse(f"{value.expected} (user {user!r})", value.got)
        if not isinstance(value, np.ndarray):
            refuse(f"a list {key!r} of user {user!r}", kind_of(value) if key in entry else "none")
    x, y = entry["x"], entry["y"]
    if len(x) != len(y):
        refuse(f"as many x as y of user {user!r}", f"{len(x)} and {len(y)}")
    if type(count) is not int or count != len(y):
        refuse(f"num_samples {len(y)} of user {user!r}", repr(count))
    return x, y
