"""The manifest of a version: which segments it consists of, sealed by a hash of itself."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from undrift.files import seal, unseal, write_atomic
from undrift.states.encoding import Form, form_from_json

FORMAT = 2
ENTRY_BYTES = 16  # of a record in a segment's index: the client and where its record begins
_NAME = re.compile(r"version-(\d{8})\.json")


@dataclass(frozen=True)
class Segment:
    """Describes a segment that is complete; it is never written again."""

    number: int
    records: int
    bytes: int  # of the whole file
    sha256: str  # of the whole file
    index_sha256: str  # of the index, which is the file's end
    copied: bool = field(compare=False)  # whether this version has a second file with the same

    @property
    def index_bytes(self) -> int:
        """Return the length of the index."""
        return self.records * ENTRY_BYTES


class Manifest(NamedTuple):
    """Lists what a version consists of; of two records of a client the later one counts."""

    version: int
    forms: tuple[Form, ...]
    segments: tuple[Segment, ...]


def version_path(folder: Path, version: int) -> Path:
    """Return the file of a version."""
    return folder / f"version-{version:08d}.json"


def versions(folder: Path) -> list[int]:
    """Return the versions that were committed, the newest first."""
    names = (_NAME.fullmatch(path.name) for path in folder.glob("version-*"))
    return sorted((int(match[1]) for match in names if match is not None), reverse=True)


def write(folder: Path, manifest: Manifest) -> None:
    """Write a version's file at once; an `OSError` leaves the earlier ones as they were."""
    segments = [asdict(segment) for segment in manifest.segments]
    body = {
        "format": FORMAT,
        "version": manifest.version,
        "forms": manifest.forms,
        "segments": segments,
    }
    write_atomic(version_path(folder, manifest.version), seal(json.dumps(body, indent=1).encode()))


def read(folder: Path, version: int) -> Manifest:
    """Return a version's manifest, or raise `OSError` or `ValueError` where it is damaged."""
    name = version_path(folder, version).name
    text = unseal(version_path(folder, version).read_bytes(), name)
    try:
        body = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{name} is nested too deeply") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        got = body.get("format") if isinstance(body, dict) else type(body).__name__
        raise ValueError(f"{name} has the format {got!r}, this version of undrift reads {FORMAT}")
    if body.get("version") != version:
        raise ValueError(f"{name} is the manifest of another version")
    forms, segments = body.get("forms"), body.get("segments")
    if not isinstance(forms, list) or not isinstance(segments, list):
        raise ValueError(f"{name} has no list of forms or of segments")
    listed = tuple(_segment(entry) for entry in segments)
    if len({segment.number for segment in listed}) < len(listed):
        raise ValueError(f"{name} lists a segment twice")
    return Manifest(version, tuple(map(form_from_json, forms)), listed)


def _segment(entry: Any) -> Segment:
    whole: Sequence[str] = ("number", "records", "bytes")
    hashes: Sequence[str] = ("sha256", "index_sha256")
    if not isinstance(entry, dict) or entry.keys() != {*whole, *hashes, "copied"}:
        raise ValueError("a segment is not described as expected")
    if not all(type(entry[name]) is int and 0 <= entry[name] < 2**48 for name in whole):
        raise ValueError("a segment has a number or a size that no segment has")
    if not all(re.fullmatch("[0-9a-f]{64}", str(entry[name])) for name in hashes):
        raise ValueError("a segment has no SHA-256")
    if type(entry["copied"]) is not bool:
        raise ValueError("a segment does not say whether it has a copy")
    segment = Segment(**entry)
    if segment.index_bytes > segment.bytes:
        raise ValueError("a segment has more records than bytes")
    return segment
