"""Published data sets by name: their places, their readers, the preparation of batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from undrift.check import require, require_choice
from undrift.data import cache
from undrift.data.dataset import Dataset
from undrift.data.embedded import digits
from undrift.data.fetch import Remote, download
from undrift.data.formats.cifar import read_cifar10, read_cifar100
from undrift.data.formats.idx import read_mnist
from undrift.data.formats.images import read_tiny_imagenet
from undrift.data.formats.imdb import read_imdb
from undrift.data.formats.leaf import read_celeba, read_femnist
from undrift.data.formats.libsvm import read_a9a
from undrift.data.formats.shakespeare import read_shakespeare
from undrift.data.places import NAMES, PLACES, Place, chosen_folders, find, is_unfinished
from undrift.data.prepare import Images, Prepare, Tokens
from undrift.data.remotes import BY_HAND, REMOTES
from undrift.data.stored import Stored
from undrift.data.tables.files import is_table
from undrift.errors import DataError
from undrift.files import user_cache
from undrift.usercode.names import is_code


@dataclass(frozen=True)
class Published:
    """Describes a data set as its authors publish it."""

    read: Callable[[Path], Stored]
    place: Place
    prepare: Prepare | None = None


PUBLISHED: dict[str, Published] = {
    name: Published(read, PLACES[name], prepare)
    for name, (read, prepare) in {
        "mnist": (read_mnist, Images((0.1307,), (0.3081,))),
        "fashion-mnist": (read_mnist, Images((0.2860,), (0.3530,))),
        "cifar10": (
            read_cifar10,
            Images((0.491, 0.482, 0.447), (0.247, 0.243, 0.262), crop=4, flip=True),
        ),
        "cifar100": (
            read_cifar100,
            Images((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), crop=4, flip=True),
        ),
        "tiny-imagenet": (
            read_tiny_imagenet,
            Images((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), crop=8, flip=True),
        ),
        "a9a": (read_a9a, None),
        "femnist": (read_femnist, Images()),
        "celeba": (read_celeba, Images()),
        "shakespeare": (read_shakespeare, Tokens()),
        "imdb": (read_imdb, Tokens()),
    }.items()
}


def load(name: str, data_dir: str | Path | None = None, *, quiet: bool = False) -> Dataset:
    """Return the data set of that name, with natural client ids where it has them.

    It is searched in `data_dir`, in `$UNDRIFT_DATA`, among earlier downloads, in Debian's package
    of Fashion-MNIST, and in `shared/data` beside a source checkout. Otherwise it is downloaded to
    the first of these folders that is set, and checked against its published checksum. The parsed
    form is cached, so that the next call takes a moment.
    """
    if is_table(str(name)) or is_code(str(name)):
        call = f"undrift.Dataset.of(undrift.data.read_table({str(name)!r}, target=...))"
        code = "call the function yourself, or say --data FILE.py:NAME in the shell"
        remedy = code if is_code(str(name)) else f"read a table by {call}"
        require(False, "load", "the name of a published data set", str(name), remedy)
    require_choice("load", "name", name, NAMES)
    chosen = {"data_dir": data_dir, "$UNDRIFT_DATA": os.environ.get("UNDRIFT_DATA")}
    for who, folder in chosen.items():
        if folder and not Path(folder).is_dir():
            raise ValueError(
                f"{who} needs a folder that exists, got {str(folder)!r}; make it, or leave it out."
            )
    if name == "digits":
        return digits()
    published = PUBLISHED[name]
    place = find(name, data_dir) or _downloaded(name, data_dir, quiet=quiet)
    return Dataset.of(_parsed(name, place, published), name=name, prepare=published.prepare)


def _downloaded(name: str, data_dir: str | Path | None, *, quiet: bool) -> Path:
    """Download a data set and return its folder, or raise `DataError`."""
    root = next(iter(chosen_folders(data_dir)), user_cache() / "data")
    folder = root / PLACES[name].folders[0]
    if name not in REMOTES:
        raise DataError(f"{name} is not in {folder} and cannot be downloaded: {BY_HAND[name]}")

    def shows(remote: Remote) -> bool:
        return any(fnmatch(remote.name, pattern) for pattern in PLACES[name].files)

    # The file by which `find` knows the data set comes last, so that no part passes for all.
    try:
        for remote in sorted(REMOTES[name], key=shows):
            download(remote, folder, quiet=quiet)
    except DataError:
        with suppress(OSError):
            folder.rmdir()  # fails unless the folder is empty
        raise
    return folder


def _parsed(name: str, folder: Path, published: Published) -> Stored:
    """Return a data set from the cache, or read it and write it to the cache."""
    place = cache.place(name, folder)
    mark = cache.fingerprint(_sources(folder, published))
    stored = cache.read(place, mark)
    if stored is None:
        stored = published.read(folder)
        cache.write(place, mark, stored)
    return stored


def _sources(folder: Path, published: Published) -> Iterator[Path]:
    """Yield the files that the reader may use; the folder may hold other data sets, too."""
    patterns = (*published.place.files, *published.place.inside)
    matching = {path for pattern in patterns for path in folder.glob(pattern)}
    for path in folder.iterdir():
        if path.is_file() and not is_unfinished(path):
            yield path
        elif path in matching or path.name in ("train", "test", "val", "raw"):
            yield from (below for below in path.rglob("*") if below.is_file())
