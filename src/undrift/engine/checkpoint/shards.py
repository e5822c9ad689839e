"""Checkpoints of several processes: each saves what it holds, in a folder of its own.

`DIR/rank-0-of-4/round-00000012` is a checkpoint like any other, with the server's state and the
states of the clients, or the rows of the nodes, that rank 0 of 4 has. A kill may leave some ranks
one round ahead of others; a run goes on from the newest round that all of them have. A checkpoint
of one number of processes can be read by another, where all its folders can be seen.

Whatever is decided here is decided from what all processes have told each other, so that all of
them decide the same; also what to refuse.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from undrift.engine.checkpoint import store
from undrift.engine.processes.rendezvous import restarted
from undrift.engine.settings import ExecutionRecord
from undrift.engine.world import TogetherError, World
from undrift.errors import CheckpointError
from undrift.files import remove_folder

JOB = "job"  # a file that says which job of torchrun's saves here


class SavedRound(NamedTuple):
    """Names a checkpoint by its number of processes and its round."""

    size: int  # of how many processes the checkpoint is
    round: int


def own_folder(folder: Path, world: World) -> Path:
    """Return the folder in which this process saves."""
    return folder if world.size == 1 else _shard(folder, world.rank, world.size)


def _shard(folder: Path, rank: int, size: int) -> Path:
    return folder if size == 1 else folder / f"rank-{rank}-of-{size}"


def hold_checkpoints(folder: Path, world: World) -> bool:
    """Return whether any process finds checkpoints in the folder, of however many processes."""
    return bool(world.gather([bool(_sizes(folder))]).any())


def saved(folder: Path) -> bool:
    """Return whether the folder holds checkpoints on this machine, of however many processes."""
    return folder.is_dir() and bool(_sizes(folder))


def recorded_execution(folder: Path) -> ExecutionRecord | None:
    """Return how the run was executed that saved here; all its parts say the same."""
    if not folder.is_dir():
        return None
    first = [_shard(folder, 0, size) for size in _sizes(folder)]
    others = sorted(folder.glob("rank-*"))  # rank 0's part may be on another machine
    records = (store.recorded_execution(part) for part in (*first, *others))
    return next((record for record in records if record is not None), None)


def remove(folder: Path, world: World) -> None:
    """Remove this process's part, as rank 0 all, and the folders around it that are empty then."""
    remove_folder(folder if world.head else own_folder(folder, world))
    for each in (folder, folder.parent):
        with suppress(OSError):  # It holds what other processes or other runs save.
            each.rmdir()


def find(folder: Path, world: World) -> SavedRound | None:
    """Return the newest round whose parts are sound and readable by every process."""
    readable = [json.loads(text) for text in world.texts(json.dumps(_readable(folder, world)))]
    common = [
        SavedRound(int(size), round)
        for size in set.intersection(*(set(each) for each in readable))
        for round in set.intersection(*(set(each[size]) for each in readable))
    ]
    return max(common, key=lambda each: (each.round, each.size == world.size), default=None)


def _readable(folder: Path, world: World) -> dict[str, list[int]]:
    """Return, by number of processes, the rounds whose needed parts this process can read."""
    return {
        str(size): sorted(
            set.intersection(
                *(set(store.sound_rounds(part)) for part in _parts(folder, world, size))
            )
        )
        for size in _sizes(folder)
    }


def _parts(folder: Path, world: World, size: int) -> list[Path]:
    """Return the folders that this process reads of a checkpoint of `size` processes."""
    if size == world.size:
        return [own_folder(folder, world)]
    return [_shard(folder, rank, size) for rank in range(size)]


def read(
    folder: Path, world: World, read_one: Callable[[Path, int], store.Snapshot]
) -> tuple[list[store.Snapshot], bool]:
    """Return the newest common round: this process's own part, or all parts of another layout.

    The second value says whether the parts must still be joined and dealt out.
    """
    newest = find(folder, world)
    if newest is None:
        raise _nothing_to_read(folder, world)
    parts, wrong = [], ""
    try:
        parts = [read_one(path, newest.round) for path in _parts(folder, world, newest.size)]
    except (CheckpointError, OSError) as error:
        wrong = str(error)
    failures = [(rank, text) for rank, text in enumerate(world.texts(wrong)) if text]
    if failures:
        rank, text = failures[0]
        raise TogetherError(text if world.size == 1 else f"Rank {rank}: {text}")
    return parts, newest.size != world.size


def _nothing_to_read(folder: Path, world: World) -> CheckpointError:
    """Return the error for a folder without a checkpoint that all processes can read."""
    if not hold_checkpoints(folder, world):
        return TogetherError(
            f"resume needs a folder with checkpoints, got {str(folder)!r}; name the one that was "
            "given as checkpoint."
        )
    seen = {size: _absent(folder, world, size) for size in _sizes(folder)}
    lacking = world.texts(next((names[0] for names in seen.values() if names), ""))
    absent = [name for name in lacking if name]
    if absent:
        return TogetherError(
            f"resume needs the parts of all processes that saved, got no {absent[0]} in "
            f"{str(folder)!r}; copy it there, or start as many processes as saved."
        )
    expected = "a sound checkpoint" + " of one round from every process" * (world.size > 1)
    return TogetherError(f"resume needs {expected}, got only damaged ones in {folder}.")


def _absent(folder: Path, world: World, size: int) -> list[str]:
    return [part.name for part in _parts(folder, world, size) if not store.saved_rounds(part)]


def _sizes(folder: Path) -> list[int]:
    """Return for which numbers of processes there are checkpoints, or parts of them."""
    sizes = {1} if store.saved_rounds(folder) else set()
    for path in folder.glob("rank-*-of-*"):
        size = path.name.rpartition("-of-")[2]
        if size.isdecimal() and store.saved_rounds(path):
            sizes.add(int(size))
    return sorted(sizes)


def _job() -> str | None:
    """Return a name of torchrun's job that is the same after a restart; None without torchrun."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if run is None else f"{run} {os.getppid()}"


def claim(folder: Path, world: World) -> None:
    """Mark the folder as this job's, on all processes before any saves."""
    job, own = _job(), own_folder(folder, world)
    if job is not None:
        try:
            own.mkdir(parents=True, exist_ok=True)
            (own / JOB).write_text(job)
        except OSError as error:
            raise store.unwritable(own, error) from error
        world.gather([1])


def restarted_here(folder: Path, world: World) -> bool:
    """Return whether torchrun has restarted this job after it had claimed the folder."""
    return restarted() and claimed(folder, world)


def must_resume(folder: Path, world: World) -> bool:
    """Return whether a restarted job reads the folder: it can, or reading says why it cannot."""
    return find(folder, world) is not None or not only_begun(folder, world)


def claimed(folder: Path, world: World) -> bool:
    """Return whether an earlier attempt of the same job has saved there, or was about to."""
    mark = own_folder(folder, world) / JOB
    same = mark.exists() and mark.read_text() == _job()
    return bool(world.gather([same]).any())


def only_begun(folder: Path, world: World) -> bool:
    """Return whether no process has saved more than the start."""
    rounds = [0, *store.saved_rounds(own_folder(folder, world))]
    return int(world.gather([max(rounds)]).max()) == 0
