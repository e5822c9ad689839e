"""Places of data sets on this machine: folders, and the files that show what they hold.

Nothing here imports torch, so that `undrift data list` answers at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from undrift.data.remotes import BY_HAND
from undrift.files import target_name, user_cache

DEBIAN = Path("/usr/share/datasets")  # of the package dataset-fashion-mnist
CHECKOUT = Path(__file__).resolve().parents[3]  # of the sources, if the package is not installed


@dataclass(frozen=True)
class Place:
    """Says in which folders a data set may lie, and by which files it is known."""

    folders: tuple[str, ...]  # below a data folder, the first being where a download goes
    files: tuple[str, ...]  # patterns, any of which shows that a folder holds the data set
    inside: tuple[str, ...] = ()  # further patterns, for a folder that holds nothing else


def _leaf(name: str) -> tuple[str, ...]:
    """Return the folders in which LEAF's scripts put a data set, and shorter forms of them."""
    return (name, f"leaf/{name}", f"{name}/data", f"leaf/data/{name}/data")


PLACES: dict[str, Place] = {
    "mnist": Place(("mnist", "MNIST/raw"), ("train-images*",)),
    "fashion-mnist": Place(("fashion-mnist", "FashionMNIST/raw"), ("train-images*",)),
    "cifar10": Place(("cifar10", "cifar-10", "."), ("cifar-10-*",), ("data_batch_1*",)),
    "cifar100": Place(("cifar100", "cifar-100", "."), ("cifar-100-*",), ("train.bin", "meta")),
    "tiny-imagenet": Place(
        ("tiny-imagenet", "tiny-imagenet-200", "."),
        ("tiny-imagenet-200", "tiny-imagenet*.tar", "tiny-imagenet*.zip"),
        ("wnids.txt",),
    ),
    "a9a": Place(("a9a", "libsvm", "."), ("a9a.t*",)),
    "femnist": Place((*_leaf("femnist"), *_leaf("femnist_digits")), ("train/*.json",)),
    "celeba": Place(_leaf("celeba"), ("train/*.json",)),
    "shakespeare": Place(_leaf("shakespeare"), ("train/*.json", "pg100.txt*", "input.txt")),
    "imdb": Place(("imdb", "."), ("aclImdb*",)),
}
NAMES = ("digits", *PLACES)


def find(name: str, data_dir: str | Path | None = None) -> Path | None:
    """Return the folder that holds the data set on this machine, or None."""
    place = PLACES[name]
    for root in _roots(data_dir):
        for below in place.folders:
            if _holds(root / below, place, exclusive=below != "."):
                return (root / below).resolve()
        by_argument = data_dir is not None and root == Path(data_dir)
        if by_argument and _may_be(root, name) and _holds(root, place, exclusive=True):
            return root.resolve()
        # A user's own folder that is not complete yet comes before another copy.
        if root in chosen_folders(data_dir) and _begun(root / place.folders[0]):
            return (root / place.folders[0]).resolve() if name in BY_HAND else None
    return None


def _may_be(folder: Path, name: str) -> bool:
    """Return whether a user's folder may be the data set itself, judged by its name."""
    others = [place.folders for other, place in PLACES.items() if other != name]
    return not any(folder.resolve().name in folders for folders in others)


def _begun(folder: Path) -> bool:
    """Return whether a folder has any file but unfinished downloads."""
    return folder.is_dir() and any(not is_unfinished(path) for path in folder.iterdir())


def chosen_folders(data_dir: str | Path | None) -> list[Path]:
    """Return the folders that the user named."""
    return [Path(folder) for folder in (data_dir, os.environ.get("UNDRIFT_DATA")) if folder]


def _roots(data_dir: str | Path | None) -> Iterator[Path]:
    """Yield the folders to search, in order."""
    yield from chosen_folders(data_dir)
    yield user_cache() / "data"
    yield DEBIAN
    if (CHECKOUT / "pyproject.toml").exists():
        yield CHECKOUT.parent / "shared" / "data"


def _holds(folder: Path, place: Place, *, exclusive: bool) -> bool:
    """Return whether a folder holds the data set, exclusively or beside others."""
    patterns = (*place.files, *place.inside) if exclusive else place.files
    return folder.is_dir() and any(
        not is_unfinished(path) for pattern in patterns for path in folder.glob(pattern)
    )


def is_unfinished(path: Path) -> bool:
    """Return whether this is a download in progress, perhaps of another process."""
    return target_name(path) is not None
