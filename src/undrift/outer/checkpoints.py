"""Checkpoints of an Outer: a file for each rank, and the newest round that all ranks have.

A rank writes its own file, aside and then by one rename, and keeps the last two. After a restart
the ranks tell each other which rounds they can read and go on from the newest that all have, so a
rank that was killed while it saved costs one checkpoint and nothing else. The last line of a file
has its SHA-256, by which damage is found.
"""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from undrift.engine.world import World
from undrift.errors import CheckpointError, first_line
from undrift.files import atomic_file, require_sealed, seal_file

KEPT = 2
_NAME = re.compile(r"outer-(\d{10})-rank-(\d+)\.pt")


def save(folder: Path, world: World, number: int, state: Mapping[str, Any]) -> None:
    """Write this rank's state after round `number`, and keep one file before it.

    Files of later rounds could not be read, or belong to steps that are taken again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / _name(number, world.rank)) as part:
        torch.save(dict(state), part)
        seal_file(part)
    there = _numbers(folder, world.rank)
    earlier, later = [n for n in there if n < number], [n for n in there if n > number]
    for old in (*earlier[: -(KEPT - 1)], *later):
        with contextlib.suppress(OSError):
            (folder / _name(old, world.rank)).unlink()


def newest(folder: Path, world: World) -> Any:
    """Return this rank's state of the newest round that all ranks can read, None without files."""
    own = {}
    there = _numbers(folder, world.rank)
    for number in there:
        path = folder / _name(number, world.rank)
        try:
            require_sealed(path)  # torch.load reads past damage to the numbers of a tensor.
            own[number] = torch.load(path, weights_only=True)
        except Exception as error:
            text = f"{path} is damaged or of an earlier version ({error}) and not used."
            warnings.warn(text, stacklevel=3)
    with world.failure_scope():
        told = [json.loads(text) for text in world.texts(json.dumps([bool(there), sorted(own)]))]
    rounds = [set(read) for _, read in told]
    common = set.intersection(*rounds)
    if common:
        return own[max(common)]
    if any(had for had, _ in told):
        raise CheckpointError(
            f"Outer.resume needs a round that all ranks have saved in {folder}, got "
            f"{[sorted(each) for each in rounds]} by rank; start with an empty folder."
        )
    return None


@contextlib.contextmanager
def content_of(folder: Path) -> Iterator[None]:
    """Raise `CheckpointError` where a file that can be read holds what `Outer.save` never wrote."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(
            f"Outer.resume needs what Outer.save has written in {folder}, got an error: "
            f"{first_line(error)}; start with an empty folder."
        ) from error


def _numbers(folder: Path, rank: int) -> list[int]:
    """Return the rounds that this rank has a file of."""
    matches = [_NAME.fullmatch(path.name) for path in folder.glob("outer-*.pt")]
    return sorted(int(m[1]) for m in matches if m is not None and int(m[2]) == rank)


def _name(number: int, rank: int) -> str:
    return f"outer-{number:010d}-rank-{rank}.pt"
