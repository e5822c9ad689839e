"""A site's states by version, on disk before a reply leaves the site.

Versions belong to the centre: a request names the version to start from and the oldest one that may
still be asked for. So a lost reply, a void round, a centre that went back to a checkpoint and a
site that was killed at any moment all find the state that belongs to the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from undrift.federation.sealed import read_sealed, write_sealed

_NAME = re.compile(r"state-(\d{12})\.sealed")


class StateStore:
    """Keeps the states of one client in a folder that only its owner can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def versions(self) -> list[int]:
        """Return the versions that are on disk, ascending."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in names if match is not None)

    def put(self, version: int, state: Sequence[Tensor]) -> None:
        """Write a state; when this returns, it is on disk."""
        write_sealed(self._path(version), {"version": version}, state)

    def get(self, version: int) -> list[Tensor] | None:
        """Return a state, or None if it is not there or damaged."""
        try:
            header, state = read_sealed(self._path(version))
        except (OSError, ValueError, KeyError):
            return None
        return state if header.get("version") == version else None

    def forget_before(self, version: int) -> None:
        """Remove the states that nobody will ask for again."""
        for old in self.versions():
            if old < version:
                with suppress(OSError):
                    self._path(old).unlink()

    def _path(self, version: int) -> Path:
        return self.folder / f"state-{version:012d}.sealed"
