"""Checkpoints of several processes: each saves what it holds, in a folder of its own.

`DIR/rank-0-of-4/round-00000012` is a checkpoint like any other, with the server's state and the
states of the clients, or the rows of the nodes, that rank 0 of 4 has. A kill may leave some ranks
one round ahead of others; a run goes on from the newest round that all of them have. A checkpoint
of one number of processes can be read by another, where all its folders can be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from undrift.engine import checkpoint as disk
from undrift.engine.world import World
from undrift.errors import CheckpointError

NONE = -1


def own_folder(folder: Path, world: World) -> Path:
    """Where this process saves."""
    return folder if world.size == 1 else _shard(folder, world.rank, world.size)


def _shard(folder: Path, rank: int, size: int) -> Path:
    return folder / f"rank-{rank}-of-{size}"


def hold_checkpoints(folder: Path, world: World) -> bool:
    """Whether any process finds checkpoints there, of however many."""
    return bool(world.gather([_newest_layout(folder) is not None]).any())


def read(
    folder: Path, world: World, read_one: Callable[[Path, int], disk.Snapshot]
) -> tuple[list[disk.Snapshot], bool]:
    """The newest common round: this process's own part alone, or all parts of another layout.

    Says in the second place whether it is all parts.
    """
    layout = _newest_layout(folder)
    sizes = {int(size) for size in world.gather([layout or 0])[:, 0]}
    if sizes == {0}:
        raise CheckpointError(f"resume needs a folder with checkpoints, got {str(folder)!r}.")
    if sizes == {world.size} and world.size > 1:
        folders, whole = [own_folder(folder, world)], False
    else:
        if len(sizes) > 1:
            raise CheckpointError(
                f"resume needs the same checkpoints on every process, got those of "
                f"{sorted(sizes)} processes in {str(folder)!r}; copy them to all machines."
            )
        size = sizes.pop()
        folders = [folder] if size == 1 else [_shard(folder, rank, size) for rank in range(size)]
        whole = True
    absent = [each.name for each in folders if not disk.saved_rounds(each)]
    if absent:
        raise CheckpointError(
            f"resume needs the parts of all processes that saved, got no {absent[0]} in "
            f"{str(folder)!r}; copy it there, or start as many processes as saved."
        )
    common = set.intersection(*(set(disk.sound_rounds(each)) for each in folders))
    newest = _newest_common(sorted(common, reverse=True), world)
    if newest == NONE:
        expected = "a sound checkpoint" + (" of one round from every process" * (world.size > 1))
        raise CheckpointError(f"resume needs {expected}, got only damaged ones in {folder}.")
    return [read_one(each, newest) for each in folders], whole


def complete(folder: Path, world: World) -> bool:
    """Whether every process has saved at least once."""
    return bool(world.gather([bool(disk.saved_rounds(own_folder(folder, world)))]).all())


def _newest_common(rounds: list[int], world: World) -> int:
    told = world.gather([*rounds, *[NONE] * disk.KEPT][: disk.KEPT])
    common = set.intersection(*(set(row.tolist()) for row in told)) - {NONE}
    return max(common, default=NONE)


def _newest_layout(folder: Path) -> int | None:
    """Of how many processes the newest checkpoints are; None when there are none."""
    newest = {1: disk.saved_rounds(folder)[:1]} if disk.saved_rounds(folder) else {}
    for path in folder.glob("rank-*-of-*"):
        size = path.name.rpartition("-of-")[2]
        if size.isdecimal() and disk.saved_rounds(path):
            newest[int(size)] = max(newest.get(int(size), []), disk.saved_rounds(path)[:1])
    return max(newest, key=lambda size: newest[size], default=None)
