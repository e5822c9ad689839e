"""Segments: files to which records of clients' states are appended until they are sealed.

A record is a header (the client, the number of its form, a checksum of the state) and the state. At
the end of a segment stands its index: the clients, and where their records begin. A segment that a
second version comes to need gets a copy, because damage to one file must not take both versions.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from undrift.files import write_atomic
from undrift.states.encoding import Form, form_bytes
from undrift.states.manifest import Segment

_HEADER = struct.Struct("<qII")
_NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC
_BUFFER = 4 * 2**20  # bytes that are gathered before they are written
_OPEN_FILES = 64  # that are kept open for reading, 4 GB of states
_CHUNK = 8 * 2**20  # bytes that are hashed at a time


class StateRecord(NamedTuple):
    """Holds a client's state as bytes, with the number of its form."""

    client: int
    form: int
    state: bytearray


def copies_of(folder: Path, number: int) -> tuple[Path, Path]:
    """Return the file of a segment, and that of its copy, which it may not have."""
    name = f"segment-{number:08d}"
    return folder / name, folder / f"{name}.copy"


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers of all segments in a folder, complete or not."""
    names = (path.name.removesuffix(".copy") for path in folder.glob("segment-*"))
    digits = (name.removeprefix("segment-") for name in names)
    return sorted({int(text) for text in digits if text.isdecimal() and len(text) == 8})


class _Written(NamedTuple):
    """Holds how far a segment is written; it is replaced as one, so that a signal tears nothing."""

    length: int
    digest: hashlib._Hash
    buffer: bytearray


class SegmentWriter:
    """Appends records to a segment; what is not sealed counts for nothing."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self._file = -1
        self._written = _Written(0, hashlib.sha256(), bytearray())
        self._index: list[tuple[int, int]] = []
        self._file = os.open(copies_of(folder, number)[0], _NEW, 0o644)

    @property
    def length(self) -> int:
        """Return the bytes of all records."""
        return self._written.length + len(self._written.buffer)

    def append(self, client: int, form: int, state: bytes | bytearray) -> int:
        """Append a record and return where it begins."""
        begin = self.length
        self._written.buffer.extend(_HEADER.pack(client, form, zlib.crc32(state)) + state)
        self._index.append((client, begin))
        if len(self._written.buffer) >= _BUFFER:
            self._drain()
        return begin

    def read(self, begin: int, length: int) -> bytearray:
        """Return bytes that were appended."""
        done = self._written.length
        if begin >= done:
            return self._written.buffer[begin - done : begin - done + length]
        return bytearray(os.pread(self._file, length, begin))

    def seal(self) -> Segment:
        """Write the index, flush the file to disk and return the segment."""
        table = np.array(self._index, dtype="<i8").reshape(-1, 2)
        index = np.ascontiguousarray(table.T).tobytes()
        self._drain()
        length, digest, _ = self._written
        digest = digest.copy()
        digest.update(index)
        _write_at(self._file, index, length)
        os.fsync(self._file)
        return Segment(
            number=self.number,
            records=len(self._index),
            bytes=length + len(index),
            sha256=digest.hexdigest(),
            index_sha256=hashlib.sha256(index).hexdigest(),
            copied=False,
        )

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()

    def _drain(self) -> None:
        """Write the buffer to the file."""
        length, digest, buffer = self._written
        if buffer:
            digest = digest.copy()
            digest.update(buffer)
            _write_at(self._file, buffer, length)
            self._written = _Written(length + len(buffer), digest, bytearray())


def copied(folder: Path, segment: Segment) -> Segment:
    """Write the copy of a segment to disk; return the segment, which has a copy now.

    Raise `ValueError` if the segment is not as it was written.
    """
    source, target = copies_of(folder, segment.number)
    digest, place = hashlib.sha256(), 0
    with source.open("rb") as content:
        file = os.open(target, _NEW, 0o644)
        try:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
                _write_at(file, chunk, place)
                place += len(chunk)
            os.fsync(file)
        finally:
            os.close(file)
    if digest.hexdigest() != segment.sha256:
        raise ValueError(f"{source.name}: it does not match its hash")
    return replace(segment, copied=True)


def _write_at(file: int, content: bytes | bytearray, place: int) -> None:
    view = memoryview(content)
    while view:
        done = os.pwrite(file, view, place)
        view, place = view[done:], place + done


class SegmentReader:
    """Reads records of complete segments, of which a few files are kept open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: OrderedDict[tuple[int, int], int] = OrderedDict()  # by segment and copy

    def read(self, number: int, begin: int, forms: Sequence[Form], length: int) -> StateRecord:
        """Return the record that begins there, from the copy where the segment is damaged.

        `length` is how long its state is expected to be, which saves a second read.
        """
        reasons = []
        for copy in (0, 1):
            try:
                return self._read((number, copy), begin, forms, length)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                path = copies_of(self._folder, number)[copy]
                reasons.append(f"{path.name} at byte {begin}: {why}")
        raise ValueError("; ".join(reasons))

    def _read(
        self, place: tuple[int, int], begin: int, forms: Sequence[Form], length: int
    ) -> StateRecord:
        file = self._file(place)
        content = os.pread(file, _HEADER.size + length, begin)
        if len(content) < _HEADER.size:
            raise ValueError("its record is missing")
        record = parse(content, forms)
        if record is None:  # The state is longer than expected.
            full = form_bytes(forms[_HEADER.unpack_from(content)[1]])
            if begin + _HEADER.size + full > os.fstat(file).st_size:
                raise ValueError("its record is cut off")
            record = parse(os.pread(file, _HEADER.size + full, begin), forms)
        if record is None:
            raise ValueError("its record is cut off")
        return record

    def _file(self, place: tuple[int, int]) -> int:
        """Return the open file of a segment or of its copy."""
        if place in self._files:
            self._files.move_to_end(place)
            return self._files[place]
        number, copy = place
        file = os.open(copies_of(self._folder, number)[copy], os.O_RDONLY)
        if len(self._files) >= _OPEN_FILES:
            os.close(self._files.popitem(last=False)[1])
        self._files[place] = file
        return file

    def close(self) -> None:
        """Close all files; reading opens them again."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __del__(self) -> None:
        self.close()


def parse(content: bytes | bytearray | memoryview, forms: Sequence[Form]) -> StateRecord | None:
    """Return the record at the head of `content`, None where its state is not all there."""
    client, form, checksum = _HEADER.unpack_from(content)
    if form >= len(forms):
        raise ValueError("its record has a form that nobody has described")
    end = _HEADER.size + form_bytes(forms[form])
    if len(content) < end:
        return None
    state = bytearray(content[_HEADER.size : end])
    if zlib.crc32(state) != checksum:
        raise ValueError("its record does not match its checksum")
    return StateRecord(client, form, state)


def read_index(folder: Path, segment: Segment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the clients of a segment's records and where these begin, or raise `ValueError`."""
    reasons = []
    for path in copies_of(folder, segment.number):
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != segment.bytes:
                    raise ValueError(f"it has {size} bytes, {segment.bytes} were written")
                file.seek(segment.bytes - segment.index_bytes)
                index = file.read(segment.index_bytes)
            if hashlib.sha256(index).hexdigest() != segment.index_sha256:
                raise ValueError("its index does not match its hash")
        except (OSError, ValueError) as error:
            reasons.append(f"{path.name}: {error}")
            continue
        clients, begins = np.frombuffer(index, dtype="<i8").reshape(2, -1).astype(np.int64)
        last = segment.bytes - segment.index_bytes - _HEADER.size
        if len(begins) and not (begins.min() >= 0 and begins.max() <= last):
            raise ValueError(f"{path.name} has an index that points outside of it")
        return clients, begins
    raise ValueError("; ".join(reasons))


def verify(folder: Path, segment: Segment) -> list[str]:
    """Raise `ValueError` unless the segment or its copy is as written; mend the other by it.

    Return a sentence on each file that was not.
    """
    paths = copies_of(folder, segment.number)[: 2 if segment.copied else 1]
    damaged = {}
    for path in paths:
        wrong = _difference(path, segment)
        if wrong:
            damaged[path] = wrong
    if len(damaged) == len(paths):
        raise ValueError("; ".join(f"{path.name}: {why}" for path, why in damaged.items()))
    sound = next(path for path in paths if path not in damaged)
    for path in damaged:
        with suppress(OSError):  # Readers use the sound file where this one cannot be replaced.
            write_atomic(path, sound.read_bytes())
    return [f"{path.name}: {why}; {sound.name} is sound" for path, why in damaged.items()]


def _difference(path: Path, segment: Segment) -> str:
    """Return in words how a file differs from what was written, "" if it does not."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != segment.bytes:
                return f"it has {size} bytes, {segment.bytes} were written"
            digest = hashlib.sha256()
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        return error.strerror or type(error).__name__
    return "" if digest.hexdigest() == segment.sha256 else "it does not match its hash"
