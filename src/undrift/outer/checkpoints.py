"""Checkpoints of an Outer: a file for each rank, and the newest round that all ranks have.

A rank writes its own file, aside and then by one rename, and keeps the last two. After a restart
the ranks tell each other which rounds they can read and go on from the newest that all have, so a
rank that was killed while it saved costs one checkpoint and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from undrift.engine.world import World
from undrift.errors import CheckpointError
from undrift.files import atomic_file

KEPT = 2
_NAME = re.compile(r"outer-(\d{10})-rank-(\d+)\.pt")


def save(folder: Path, world: World, number: int, state: Mapping[str, Any]) -> None:
    """Write this rank's state after round `number`, and remove those before the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / _name(number, world.rank)) as part:
        torch.save(dict(state), part)
    for old in _numbers(folder, world.rank)[:-KEPT]:
        with contextlib.suppress(OSError):
            (folder / _name(old, world.rank)).unlink()


def newest(folder: Path, world: World) -> Any:
    """Return this rank's state of the newest round that all ranks can read, or None."""
    own = {}
    for number in _numbers(folder, world.rank):
        with contextlib.suppress(Exception):  # a damaged file counts as none
            path = folder / _name(number, world.rank)
            own[number] = torch.load(path, weights_only=True)
    with world.failure_scope():
        rounds = [set(json.loads(text)) for text in world.texts(json.dumps(sorted(own)))]
    common = set.intersection(*rounds)
    if common:
        return own[max(common)]
    if any(rounds):
        raise CheckpointError(
            f"Outer.resume needs a round that all ranks have saved in {folder}, got "
            f"{[sorted(each) for each in rounds]} by rank; start with an empty folder."
        )
    return None


def _numbers(folder: Path, rank: int) -> list[int]:
    """Return the rounds that this rank has a file of."""
    matches = [_NAME.fullmatch(path.name) for path in folder.glob("outer-*.pt")]
    return sorted(int(m[1]) for m in matches if m is not None and int(m[2]) == rank)


def _name(number: int, rank: int) -> str:
    return f"outer-{number:010d}-rank-{rank}.pt"
