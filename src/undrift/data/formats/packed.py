"""Compressed files, unpacked as a stream that ends before it fills the memory.

A few hundred bytes can unpack to gigabytes. What a file may unpack to is limited by its size, at a
ratio that no data set reaches, and so is the memory that the header of an xz file asks for.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

RATIO = 100  # of unpacked to packed bytes; texts reach 20, the label files of MNIST 2
FREE = 1 << 25  # bytes that any file may unpack to
LARGEST = 1 << 32  # bytes that no file may exceed, unpacked
_XZ_MEMORY = 1 << 27  # bytes; `xz -9` needs 65 MB to unpack
_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0"
# What a damaged file raises while it is unpacked.
ERRORS = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


def unpacked_limit(packed: int) -> int:
    """Return how many bytes a file of this size may unpack to."""
    return min(LARGEST, max(FREE, RATIO * packed))


def too_large(limit: int) -> ValueError:
    """Return the error for a file that unpacks to more than its limit."""
    return ValueError(f"more than {limit:,} bytes when it is unpacked")


def require_deflated(member: zipfile.ZipInfo) -> None:
    """Raise `ValueError` for a zip's member whose compression unpacks it at once, however large."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} in another compression than deflate")


def is_packed(path: Path) -> bool:
    """Return whether a file begins as one that is packed by gzip, bzip2 or xz."""
    with path.open("rb") as file:
        return file.read(6).startswith((_GZIP, _BZIP2, _XZ))


def open_packed(path: Path, *, plain: bool = True) -> BinaryIO:
    """Return the content of a file, plain or packed by gzip, bzip2 or xz, as a stream.

    Its first bytes decide which, and `plain` whether it need not be packed. A read raises
    `ValueError` where the content exceeds its limit.
    """
    file = path.open("rb")
    try:
        start = file.read(6)
        file.seek(0)
        limit = unpacked_limit(path.stat().st_size)
        if start.startswith(_GZIP):
            return io.BufferedReader(_Limited(gzip.GzipFile(fileobj=file), file, limit))
        if start.startswith(_BZIP2):
            return io.BufferedReader(_Limited(bz2.BZ2File(file), file, limit))
        if start.startswith(_XZ):
            return io.BufferedReader(_Limited(_XzFile(file), file, limit))
        if not plain:
            raise ValueError("a file that is not compressed")
    except BaseException:
        file.close()
        raise
    return file


def read_packed(path: Path, *, plain: bool = True) -> bytes:
    """Return the content of a file, plain or packed."""
    with open_packed(path, plain=plain) as file:
        return file.read()


class _Limited(io.RawIOBase):
    """Reads a stream and raises `ValueError` at the first byte beyond the limit."""

    def __init__(
        self, stream: io.RawIOBase | gzip.GzipFile | bz2.BZ2File, file: BinaryIO, limit: int
    ):
        self._stream, self._file, self._limit, self._read = stream, file, limit, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._stream.read(len(view)) or b""
        self._read += len(data)
        if self._read > self._limit:
            raise too_large(self._limit)
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        self._file.close()
        super().close()


class _XzFile(io.RawIOBase):
    """Unpacks an xz file with a limit of memory, which `lzma.LZMAFile` does not have."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decompressor = self._new()

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=_XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while True:
            if self._decompressor.eof:
                rest = self._decompressor.unused_data or self._file.read(1 << 16)
                if not rest.strip(b"\0"):  # Zeros may pad an xz file.
                    return b""
                self._decompressor = self._new()
            elif self._decompressor.needs_input:
                rest = self._file.read(1 << 16)
                if not rest:
                    raise EOFError("the compressed file ends too early")
            else:
                rest = b""
            data = self._decompressor.decompress(rest, size)
            if data:
                return data
