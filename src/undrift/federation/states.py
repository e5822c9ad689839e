"""A site's states by name, on disk before a reply leaves the site.

Versions belong to the centre: a request names the state to start from and the oldest version that
may still be asked for. A state is never written over, because each has a token of its own: a
request that comes late or twice, or a second attempt at a round, writes another state of the same
version. So a lost reply, a void round, a centre that went back to a checkpoint and a site that was
killed at any moment all find the state that belongs to the model.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from undrift.federation.messages import StateName
from undrift.federation.sealed import read_sealed, write_sealed

_NAME = re.compile(r"state-(\d{12})-([0-9a-f]{16})\.sealed")


class StateStore:
    """Keeps the states of one client in a folder that only its owner can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def names(self) -> list[StateName]:
        """Return the names of the states that are on disk, by ascending versions."""
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(StateName(int(match[1]), match[2]) for match in found if match is not None)

    def put(self, version: int, state: Sequence[Tensor]) -> StateName:
        """Write a state and return its name; when this returns, it is on disk."""
        name = StateName(version, secrets.token_hex(8))
        write_sealed(self._path(name), name._asdict(), state)
        return name

    def get(self, name: StateName) -> list[Tensor] | None:
        """Return a state, or None if it is not there or damaged."""
        try:
            header, state = read_sealed(self._path(name))
        except (OSError, ValueError, KeyError):
            return None
        return state if header == name._asdict() else None

    def forget_before(self, version: int) -> None:
        """Remove the states that nobody will ask for again."""
        for old in self.names():
            if old.version < version:
                with suppress(OSError):
                    self._path(old).unlink()

    def _path(self, name: StateName) -> Path:
        return self.folder / f"state-{name.version:012d}-{name.token}.sealed"
