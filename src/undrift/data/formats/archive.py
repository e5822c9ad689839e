"""Archives as they are downloaded: read where they lie, nothing is unpacked to disk."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from undrift.data.stored import damaged
from undrift.errors import first_line

_LARGEST_MEMBER = 1 << 28  # the largest that we know of has 154 MB
_LARGEST_WHOLE = 1 << 32  # of the members that are read, unpacked


def read_archive(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The wanted files of a tar (also compressed) or zip archive; nothing is written to disk."""
    try:
        members = _zipped(path, wanted) if zipfile.is_zipfile(path) else _tarred(path, wanted)
        found: dict[str, bytes] = {}
        read = 0
        for name, data in members:
            found[name] = data
            read += len(data)
            if read > _LARGEST_WHOLE:
                raise ValueError(f"more than {_LARGEST_WHOLE:,} bytes")
        return found
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError,
            OSError, ValueError, NotImplementedError, RuntimeError) as error:  # fmt: skip
        # tarfile adds a line for every form it tried, so only the first line is shown.
        raise damaged(path, "a whole archive", first_line(error), "fetch it again") from error


def _tarred(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:  # in the order of the file: seeking back would unpack it again
            # Regular files alone: a link could lead anywhere.
            if member.isreg() and wanted(member.name):
                _check_member(path, member.name, member.size)
                file = archive.extractfile(member)
                data = b"" if file is None else file.read()
                if len(data) != member.size:
                    raise EOFError(f"{member.name} ends too early")
                yield member.name, data
        # To the end, where the checksum of the whole lies.
        while archive.fileobj is not None and archive.fileobj.read(1 << 20):
            pass


def _zipped(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir() and wanted(member.filename):
                _check_member(path, member.filename, member.file_size)
                yield member.filename, archive.read(member)


def _check_member(path: Path, name: str, size: int) -> None:
    if size > _LARGEST_MEMBER:
        expected = f"files of at most {_LARGEST_MEMBER:,} bytes"
        raise damaged(path, expected, f"{size:,} for {name}", "fetch it again")
