"""`SegmentStore` keeps the states of clients in a folder, by client and by version.

States are appended to segments; a commit seals the open segment and writes a manifest that lists
the segments of the version. So a commit costs what was put since the last one, however many
clients there are, and the versions before it stay as they are: a kill at any moment leaves all of
them whole. Each commit also copies live records out of segments that are mostly dead, for at most
as many bytes as were put, so the folder stays within a small multiple of what is live.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from torch import Tensor

from undrift.errors import CheckpointError
from undrift.files import flush_folder
from undrift.states import manifest as manifests
from undrift.states import segments
from undrift.states.encoding import Form, decode, encode, form_bytes, form_of
from undrift.states.manifest import Manifest, Segment

SEGMENT = 64 * 2**20  # bytes after which a new segment is begun
MOST_SMALL = 24  # segments below half of that, before they are merged
SPARSE = 0.5  # share of live records below which a segment is copied
_PLACE = 2**40  # a place is the number of a segment times this, and where the record begins


class SegmentStore:
    """Keeps states, each of them named tensors, in a folder that has one writer."""

    def __init__(self, folder: Path, version: int | None = None) -> None:
        """Open a folder at a committed version, or with None as an empty store.

        Segments and versions of the folder stay until `forget`.
        """
        self.folder = folder
        self._forms: list[Form] = []
        self._form_numbers: dict[Form, int] = {}
        self._segments: dict[int, Segment] = {}
        self._committed = set[int]()  # the segments of the last version
        self._live: dict[int, int] = {}  # number of a segment -> records that count
        self._places: dict[int, int] = {}
        self._writer: segments.SegmentWriter | None = None
        self._reader = segments.SegmentReader(folder)
        self._put_bytes = 0  # since the last commit
        self._expected = 0  # length of the state that was read last
        if version is not None:
            with _damage_in(folder, version):
                self._open(manifests.read(folder, version))

    def _open(self, manifest: Manifest) -> None:
        self._forms = list(manifest.forms)
        self._form_numbers = {form: number for number, form in enumerate(self._forms)}
        for segment in manifest.segments:
            clients, begins = segments.read_index(self.folder, segment)
            places = (segment.number * _PLACE + begins).tolist()
            self._places.update(zip(clients.tolist(), places, strict=True))
            self._segments[segment.number] = segment
        self._committed = set(self._segments)
        numbers, counts = np.unique(
            np.fromiter((place // _PLACE for place in self._places.values()), np.int64),
            return_counts=True,
        )
        self._live = dict(zip(numbers.tolist(), counts.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, client: object) -> bool:
        return client in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def put(self, client: int, state: Mapping[str, Tensor]) -> None:
        """Set the state of a client; the next `commit` saves it."""
        form = form_of(state)
        if form not in self._form_numbers:
            self._forms.append(form)
            self._form_numbers[form] = len(self._forms) - 1
        data = encode(state)
        self._append(client, self._form_numbers[form], data)
        self._put_bytes += len(data)

    def get(self, client: int) -> dict[str, Tensor]:
        """Return the state of a client; raise `KeyError` where it has none."""
        record = self._record(self._places[client])
        self._expected = len(record.state)
        return decode(record.state, self._forms[record.form])

    def commit(self, version: int) -> None:
        """Save all states as this version; an `OSError` leaves the versions before it."""
        self._clean(max(self._put_bytes, SEGMENT // 8))
        self._seal()
        for number in self._uncopied():
            try:
                self._segments[number] = segments.copied(self.folder, self._segments[number])
            except ValueError as error:
                raise self._damaged(error) from error
        used = {number: each for number, each in self._segments.items() if self._live.get(number)}
        self.folder.mkdir(parents=True, exist_ok=True)
        flush_folder(self.folder)
        forms = tuple(self._forms)
        manifests.write(self.folder, Manifest(version, forms, tuple(used.values())))
        self._segments, self._committed, self._put_bytes = used, set(used), 0

    def forget(self, keep: Collection[int]) -> None:
        """Remove all versions but these, and the segments that nothing else needs."""
        needed = set(self._segments) | ({self._writer.number} if self._writer else set())
        for version in manifests.versions(self.folder):
            if version in keep:
                with suppress(OSError, ValueError):  # It is damaged, and nobody can read it.
                    listed = manifests.read(self.folder, version).segments
                    needed |= {segment.number for segment in listed}
            else:
                manifests.version_path(self.folder, version).unlink(missing_ok=True)
        self._reader.close()
        for number in set(segments.numbers_in(self.folder)) - needed:
            for path in segments.copies_of(self.folder, number):
                path.unlink(missing_ok=True)

    def compact(self) -> None:
        """Copy all states into new segments; the next commit needs no others."""
        self._seal()
        self._copy(list(self._segments))

    def close(self) -> None:
        """Close all files; what was put since the last commit is lost."""
        self._reader.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    @property
    def bytes_to_copy(self) -> int:
        """Return the bytes of segments that the next commit copies, as more versions need them."""
        return sum(self._segments[number].bytes for number in self._uncopied())

    def _uncopied(self) -> list[int]:
        """Return the segments without a copy that the last version needs and the next one will."""
        shared = (number for number in self._committed if self._live.get(number))
        return [number for number in shared if not self._segments[number].copied]

    @property
    def versions(self) -> list[int]:
        """Return the versions of the folder, the newest first."""
        return manifests.versions(self.folder)

    @staticmethod
    def verify(folder: Path, version: int, sound: set[Segment] | None = None) -> None:
        """Read all of a version and raise `CheckpointError` unless it is as it was committed.

        A file that is damaged and has a sound copy is replaced by it, with a warning. `sound` are
        segments that need not be read again; those that are found to be sound are added.
        """
        sound = set() if sound is None else sound
        with _damage_in(folder, version):
            for segment in manifests.read(folder, version).segments:
                if segment not in sound:
                    for text in segments.verify(folder, segment):
                        warnings.warn(f"Of the states in {folder}, {text}.", stacklevel=3)
                    sound.add(segment)

    def _append(self, client: int, form: int, data: bytes | bytearray) -> None:
        """Append a record in the place of the client's earlier one."""
        writer = self._open_writer()
        begin = writer.append(client, form, data)
        before = self._places.get(client)
        # In this order a signal between two lines leaves a segment that is thought to be needed,
        # and never one that is dropped although it is.
        self._live[writer.number] = self._live.get(writer.number, 0) + 1
        self._places[client] = writer.number * _PLACE + begin
        if before is not None:
            self._live[before // _PLACE] -= 1
        if writer.length >= SEGMENT:
            self._seal()

    def _open_writer(self) -> segments.SegmentWriter:
        if self._writer is None or self._writer.number in self._segments:
            self.folder.mkdir(parents=True, exist_ok=True)
            taken = [0, *self._segments, *segments.numbers_in(self.folder)]
            self._writer = segments.SegmentWriter(self.folder, max(taken) + 1)
        return self._writer

    def _seal(self) -> None:
        """Write the end of the open segment, if there is one."""
        writer = self._writer
        if writer is not None:
            self._segments[writer.number] = writer.seal()
            self._writer = None
            writer.close()

    def _record(self, place: int) -> segments.StateRecord:
        number, begin = divmod(place, _PLACE)
        writer = self._writer
        if writer is not None and writer.number == number:
            longest = max(form_bytes(form) for form in self._forms)
            record = segments.parse(writer.read(begin, longest + 64), self._forms)
            assert record is not None, "the writer has all of its records"
            return record
        try:
            return self._reader.read(number, begin, self._forms, self._expected)
        except ValueError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: ValueError) -> CheckpointError:
        return CheckpointError(
            f"A run needs the states of its clients, got a damaged file in {self.folder}: "
            f"{error}; go on from the last checkpoint that is sound."
        )

    def _clean(self, budget: int) -> None:
        """Copy live records out of segments that are mostly dead, or too many and too small."""
        chosen: list[int] = []
        for number in sorted(self._segments, key=self._share):
            live = int(self._share(number) * self._segments[number].bytes)
            if self._share(number) >= SPARSE or live > budget:
                break
            budget -= live
            chosen.append(number)
        small = [n for n, each in self._segments.items() if each.bytes < SEGMENT // 2]
        if len(small) > MOST_SMALL:
            chosen += [number for number in small if number not in chosen]
        self._copy(chosen)

    def _share(self, number: int) -> float:
        """Return the share of a segment's records that count."""
        return self._live.get(number, 0) / max(1, self._segments[number].records)

    def _copy(self, numbers: Iterable[int]) -> None:
        """Append the live records of these segments again, so that the next commit drops them."""
        for number in numbers:
            if not self._live.get(number):
                continue
            clients, begins = segments.read_index(self.folder, self._segments[number])
            for client, begin in zip(clients.tolist(), begins.tolist(), strict=True):
                place = number * _PLACE + begin
                if self._places.get(client) == place:
                    record = self._record(place)
                    self._expected = len(record.state)
                    self._append(client, record.form, record.state)


@contextmanager
def _damage_in(folder: Path, version: int) -> Iterator[None]:
    """Raise `CheckpointError` in the place of an error that damaged files cause."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"Version {version} of the states in {folder} is damaged: {error}."
        ) from error
