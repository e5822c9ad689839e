"""What a fuzz target is, and how the bytes of one input become the files that a reader takes."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from undrift.errors import UndriftError

TYPED = (UndriftError, ValueError)  # what a reader may raise


@dataclass(frozen=True)
class Target:
    """Is a reader under test, with sound inputs and words of its format."""

    read: Callable[[bytes, Path], None]  # the bytes, and an empty folder
    seeds: Callable[[], list[bytes]]
    words: tuple[str, ...] = field(default=())

    def __call__(self, data: bytes) -> None:
        """Read the bytes; raise what is not a typed error."""
        with suppress(*TYPED), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.strict(data)

    def strict(self, data: bytes) -> None:
        """Read the bytes and raise any error, as a sound input must not."""
        with tempfile.TemporaryDirectory(dir=memory()) as folder:
            self.read(data, Path(folder))


@cache
def memory() -> str | None:
    """Return a folder in memory, where the system has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def as_file(read: Callable[[Path], Any], name: str) -> Callable[[bytes, Path], None]:
    """Return a target that reads one file of this name."""

    def target(data: bytes, folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        read(path)

    return target


SEPARATOR = b"\n----\n"  # between the files of a folder
MOST_FILES = 12


def joined(files: Mapping[str, bytes]) -> bytes:
    """Return the files of a folder as one input for `as_folder`."""
    return SEPARATOR.join(name.encode() + b"\n" + data for name, data in files.items())


def as_folder(read: Callable[[Path], Any]) -> Callable[[bytes, Path], None]:
    """Return a target that reads a folder; each file begins with a line of its name."""

    def target(data: bytes, folder: Path) -> None:
        for part in data.split(SEPARATOR)[:MOST_FILES]:
            line, _, content = part.partition(b"\n")
            name = PurePosixPath(line.decode("utf-8", "replace").replace("\0", ""))
            if name.is_absolute() or ".." in name.parts or not name.parts:
                continue
            with suppress(OSError):  # The name may be too long, or a folder's.
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
        read(folder)

    return target
