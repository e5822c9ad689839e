"""Archives as they are downloaded, read without unpacking them to disk."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from undrift.data.formats import packed
from undrift.data.stored import damaged
from undrift.errors import first_line

_LARGEST_MEMBER = 1 << 28  # bytes; the largest member of a known archive has 154 MB
_ERRORS = (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, RuntimeError)


def read_archive(path: Path, select: Callable[[str], bool]) -> dict[str, bytes]:
    """Return the selected files of a tar (also compressed) or zip archive."""
    try:
        members = _zipped(path, select) if zipfile.is_zipfile(path) else _tarred(path, select)
        return dict(members)
    except (*packed.ERRORS, *_ERRORS) as error:
        # tarfile adds a line for every compression that it tried, so only the first line is shown.
        raise damaged(path, "a whole archive", first_line(error), "fetch it again") from error


def _tarred(path: Path, select: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the selected members of a tar archive."""
    room = _Room(path)
    with packed.open_packed(path) as content, tarfile.open(fileobj=content, mode="r|") as archive:
        for member in archive:
            _require_name(member.name)
            # Links are ignored, because they could lead anywhere.
            if member.isreg() and select(member.name):
                room.take(member.name, member.size)
                file = archive.extractfile(member)
                data = b"" if file is None else file.read()
                if len(data) != member.size:
                    raise EOFError(f"{member.name} ends too early")
                yield member.name, data
        # The checksum is compared only at the end of the archive.
        while content.read(1 << 20):
            pass


def _zipped(path: Path, select: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the selected members of a zip archive."""
    room = _Room(path)
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            _require_name(member.filename)  # `is_dir` looks at the last letter of the name.
        chosen = [m for m in archive.infolist() if not m.is_dir() and select(m.filename)]
        for member in chosen:
            packed.require_deflated(member)
            room.take(member.filename, member.file_size)
        for member in chosen:
            yield member.filename, archive.read(member)


def _require_name(name: str) -> None:
    """Raise `ValueError` for a member without a name, which no archive of a data set has."""
    if not name:
        raise ValueError("a member without a name")


class _Room:
    """Holds how much the members of an archive may still unpack to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._limit = self._left = packed.unpacked_limit(path.stat().st_size)

    def take(self, name: str, size: int) -> None:
        """Make room for a member, or raise; its size is what the archive says of it."""
        if size > _LARGEST_MEMBER:
            expected = f"files of at most {_LARGEST_MEMBER:,} bytes"
            raise damaged(self._path, expected, f"{size:,} for {name}", "fetch it again")
        self._left -= size
        if self._left < 0:
            raise packed.too_large(self._limit)
