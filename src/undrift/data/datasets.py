"""Published data sets by name: their places, their readers, the preparation of batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from undrift.check import require_choice
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
from undrift.data.prepare import Images, Prepare, Tokens
from undrift.data.remotes import BY_HAND, REMOTES
from undrift.data.stored import Stored
from undrift.errors import DataError
from undrift.files import target_name, user_cache

DEBIAN = Path("/usr/share/datasets")  # of the package dataset-fashion-mnist
CHECKOUT = Path(__file__).resolve().parents[3]  # of the sources, if the package is not installed


@dataclass(frozen=True)
class Published:
    """Describes a data set as its authors publish it."""

    read: Callable[[Path], Stored]
    folders: tuple[str, ...]  # below a data folder, the first being where a download goes
    files: tuple[str, ...]  # patterns, any of which shows that a folder holds the data set
    prepare: Prepare | None = None
    inside: tuple[str, ...] = ()  # further patterns, for a folder that holds nothing else


def _leaf(name: str) -> tuple[str, ...]:
    """Return the folders in which LEAF's scripts put a data set, and shorter forms of them."""
    return (name, f"leaf/{name}", f"{name}/data", f"leaf/data/{name}/data")


PUBLISHED: dict[str, Published] = {
    "mnist": Published(
        read_mnist,
        ("mnist", "MNIST/raw"),
        ("train-images*",),
        Images((0.1307,), (0.3081,)),
    ),
    "fashion-mnist": Published(
        read_mnist,
        ("fashion-mnist", "FashionMNIST/raw"),
        ("train-images*",),
        Images((0.2860,), (0.3530,)),
    ),
    "cifar10": Published(
        read_cifar10,
        ("cifar10", "cifar-10", "."),
        ("cifar-10-*",),
        Images((0.491, 0.482, 0.447), (0.247, 0.243, 0.262), crop=4, flip=True),
        ("data_batch_1*",),
    ),
    "cifar100": Published(
        read_cifar100,
        ("cifar100", "cifar-100", "."),
        ("cifar-100-*",),
        Images((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), crop=4, flip=True),
        ("train.bin", "meta"),
    ),
    "tiny-imagenet": Published(
        read_tiny_imagenet,
        ("tiny-imagenet", "tiny-imagenet-200", "."),
        ("tiny-imagenet-200", "tiny-imagenet*.tar", "tiny-imagenet*.zip"),
        Images((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), crop=8, flip=True),
        ("wnids.txt",),
    ),
    "a9a": Published(read_a9a, ("a9a", "libsvm", "."), ("a9a.t*",)),
    "femnist": Published(
        read_femnist,
        (*_leaf("femnist"), *_leaf("femnist_digits")),
        ("train/*.json",),
        Images(),
    ),
    "celeba": Published(read_celeba, _leaf("celeba"), ("train/*.json",), Images()),
    "shakespeare": Published(
        read_shakespeare,
        _leaf("shakespeare"),
        ("train/*.json", "pg100.txt*", "input.txt"),
        Tokens(),
    ),
    "imdb": Published(read_imdb, ("imdb", "."), ("aclImdb*",), Tokens()),
}
NAMES = ("digits", *PUBLISHED)


def load(name: str, data_dir: str | Path | None = None, *, quiet: bool = False) -> Dataset:
    """Return the data set of that name, with natural client ids where it has them.

    It is searched in `data_dir`, in `$UNDRIFT_DATA`, among earlier downloads, in Debian's package
    of Fashion-MNIST, and in `shared/data` beside a source checkout. Otherwise it is downloaded to
    the first of these folders that is set, and checked against its published checksum. The parsed
    form is cached, so that the next call takes a moment.
    """
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


def find(name: str, data_dir: str | Path | None = None) -> Path | None:
    """Return the folder that holds the data set on this machine, or None."""
    published = PUBLISHED[name]
    for root in _roots(data_dir):
        for below in published.folders:
            if _holds(root / below, published, exclusive=below != "."):
                return (root / below).resolve()
        by_argument = data_dir is not None and root == Path(data_dir)
        if by_argument and _may_be(root, name) and _holds(root, published, exclusive=True):
            return root.resolve()
        # A user's own folder that is not complete yet comes before another copy.
        if root in _chosen(data_dir) and _begun(root / published.folders[0]):
            return (root / published.folders[0]).resolve() if name in BY_HAND else None
    return None


def _may_be(folder: Path, name: str) -> bool:
    """Return whether a user's folder may be the data set itself, judged by its name."""
    others = [published.folders for other, published in PUBLISHED.items() if other != name]
    return not any(folder.resolve().name in folders for folders in others)


def _begun(folder: Path) -> bool:
    """Return whether a folder has any file but unfinished downloads."""
    return folder.is_dir() and any(not _unfinished(path) for path in folder.iterdir())


def _chosen(data_dir: str | Path | None) -> list[Path]:
    """Return the folders that the user named."""
    return [Path(folder) for folder in (data_dir, os.environ.get("UNDRIFT_DATA")) if folder]


def _roots(data_dir: str | Path | None) -> Iterator[Path]:
    """Yield the folders to search, in order."""
    yield from _chosen(data_dir)
    yield user_cache() / "data"
    yield DEBIAN
    if (CHECKOUT / "pyproject.toml").exists():
        yield CHECKOUT.parent / "shared" / "data"


def _holds(folder: Path, published: Published, *, exclusive: bool) -> bool:
    """Return whether a folder holds the data set, exclusively or beside others."""
    patterns = (*published.files, *published.inside) if exclusive else published.files
    return folder.is_dir() and any(
        not _unfinished(path) for pattern in patterns for path in folder.glob(pattern)
    )


def _unfinished(path: Path) -> bool:
    """Return whether this is a download in progress, perhaps of another process."""
    return target_name(path) is not None


def _downloaded(name: str, data_dir: str | Path | None, *, quiet: bool) -> Path:
    """Download a data set and return its folder, or raise `DataError`."""
    root = next(iter(_chosen(data_dir)), user_cache() / "data")
    folder = root / PUBLISHED[name].folders[0]
    if name not in REMOTES:
        raise DataError(f"{name} is not in {folder} and cannot be downloaded: {BY_HAND[name]}")

    def shows(remote: Remote) -> bool:
        return any(fnmatch(remote.name, pattern) for pattern in PUBLISHED[name].files)

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
    patterns = (*published.files, *published.inside)
    matching = {path for pattern in patterns for path in folder.glob(pattern)}
    for path in folder.iterdir():
        if path.is_file() and not _unfinished(path):
            yield path
        elif path in matching or path.name in ("train", "test", "val", "raw"):
            yield from (below for below in path.rglob("*") if below.is_file())
