"""Files that appear whole or not at all, and the folder for what is cached.

Content is first written to a *part*, a file or folder beside its target that is named
`.<target>.<process>-<random>.part`. The part is flushed to disk and renamed, and then the folder is
flushed, so neither a kill nor a power cut leaves half a target. Writers of the same target do not
disturb each other, because every part has a name of its own. A kill leaves its part behind, which
nobody reads; the next writer in the same folder removes it when it is older than `STALE`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

SEAL_BYTES = 66  # of the line at the end of a sealed text, with the SHA-256 of what is above it
_CHUNK = 8 * 2**20  # bytes that are hashed at a time
STALE = 24 * 3600.0  # seconds after which no process still writes to a part
_PART = re.compile(r"\.(.+)\.\d+-[0-9a-f]{8}\.part")
# A file system that cannot flush a folder answers with one of these.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF)


def user_cache() -> Path:
    """Return `$UNDRIFT_CACHE`, or else the folder that the operating system has for caches."""
    chosen = os.environ.get("UNDRIFT_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("undrift", appauthor=False))


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8; on an `OSError` the previous file is intact."""
    with atomic_file(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def seal(text: bytes) -> bytes:
    """Return a text with a last line that has its SHA-256."""
    return text + f"\n{hashlib.sha256(text).hexdigest()}\n".encode()


def unseal(content: bytes, name: str) -> bytes:
    """Return the text that was sealed, or raise `ValueError` with the name of its file."""
    text = content[:-SEAL_BYTES]
    if content != seal(text):
        raise ValueError(f"{name} does not match its hash")
    return text


def seal_file(path: Path) -> None:
    """Append a last line as `seal` does, without holding the file in memory."""
    with path.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256")
        file.write(f"\n{digest.hexdigest()}\n".encode())


def require_sealed(path: Path) -> None:
    """Raise `ValueError` unless a file is as it was when `seal_file` sealed it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size - SEAL_BYTES
        while left > 0 and (chunk := file.read(min(left, _CHUNK))):
            digest.update(chunk)
            left -= len(chunk)
        if left or file.read() != f"\n{digest.hexdigest()}\n".encode():
            raise ValueError(f"{path.name} does not match its hash")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield the part to write to; it replaces `path` when the block ends without an error."""
    remove_stale_parts(path.parent)
    part = part_of(path)
    try:
        yield part
        flush_file(part)
        part.replace(path)
        flush_folder(path.parent)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, *, stale: float = STALE) -> Iterator[Path]:
    """Yield an empty folder to write files to; it replaces `path` when the block ends well.

    A folder that exists at `path` is renamed first and removed last, since no system can replace
    it. `stale` is the age in seconds from which parts of other writers are removed; it may be 0
    where the parent folder has one writer only.
    """
    remove_stale_parts(path.parent, stale)
    part = part_of(path)
    try:
        part.mkdir()
        yield part
        for file in part.iterdir():
            flush_file(file)
        flush_folder(part)
        old = part_of(path)
        with suppress(FileNotFoundError):
            path.rename(old)
        try:
            part.rename(path)
        except OSError:
            with suppress(OSError):
                old.rename(path)
            raise
        flush_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder so that a kill leaves it whole, or leaves a part that nobody reads."""
    part = part_of(path)
    with suppress(OSError):
        path.rename(part)
        shutil.rmtree(part, ignore_errors=True)


def part_of(path: Path) -> Path:
    """Return a new name for a part of `path`, which no other writer uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def target_name(path: Path) -> str | None:
    """Return the name that a part is going to have, or None if `path` is not a part."""
    match = _PART.fullmatch(path.name)
    return None if match is None else match[1]


def remove_stale_parts(folder: Path, seconds: float = STALE) -> None:
    """Remove parts that have not changed for so many seconds, because their writer was killed."""
    with suppress(OSError):
        for path in folder.iterdir():
            if target_name(path) is not None:
                _remove_if_stale(path, seconds)


def _remove_if_stale(path: Path, seconds: float) -> None:
    with suppress(OSError):  # another process may remove the same part at the same time
        if time.time() - path.stat().st_mtime < seconds:
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def flush_file(path: Path) -> None:
    """Flush a file to disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, where the system can do so."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
