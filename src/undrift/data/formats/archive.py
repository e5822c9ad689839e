"""Archives as they are downloaded, read without unpacking them to disk."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from undrift.data.stored import damaged
from undrift.errors import first_line

_LARGEST_MEMBER = 1 << 28  # bytes; the largest member of a known archive has 154 MB
_LARGEST_TOTAL = 1 << 32  # bytes of all members that are read, unpacked


def read_archive(path: Path, select: Callable[[str], bool]) -> dict[str, bytes]:
    """Return the selected files of a tar (also compressed) or zip archive."""
    try:
        members = _zipped(path, select) if zipfile.is_zipfile(path) else _tarred(path, select)
        contents: dict[str, bytes] = {}
        read = 0
        for name, data in members:
            contents[name] = data
            read += len(data)
            if read > _LARGEST_TOTAL:
                raise ValueError(f"more than {_LARGEST_TOTAL:,} bytes")
        return contents
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError,
            OSError, ValueError, NotImplementedError, RuntimeError) as error:  # fmt: skip
        # tarfile adds a line for every compression that it tried, so only the first line is shown.
        raise damaged(path, "a whole archive", first_line(error), "fetch it again") from error


def _tarred(path: Path, select: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the selected members of a tar archive."""
    with tarfile.open(path) as archive:
        for member in archive:  # in the file's order, because seeking back unpacks it again
            # Links are ignored, because they could lead anywhere.
            if member.isreg() and select(member.name):
                _check_member(path, member.name, member.size)
                file = archive.extractfile(member)
                data = b"" if file is None else file.read()
                if len(data) != member.size:
                    raise EOFError(f"{member.name} ends too early")
                yield member.name, data
        # The checksum is compared only at the end of the archive.
        while archive.fileobj is not None and archive.fileobj.read(1 << 20):
            pass


def _zipped(path: Path, select: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the selected members of a zip archive."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir() and select(member.filename):
                _check_member(path, member.filename, member.file_size)
                yield member.filename, archive.read(member)


def _check_member(path: Path, name: str, size: int) -> None:
    """Raise `DataError` for a member that is too large."""
    if size > _LARGEST_MEMBER:
        expected = f"files of at most {_LARGEST_MEMBER:,} bytes"
        raise damaged(path, expected, f"{size:,} for {name}", "fetch it again")
