"""Checkpoints of several processes: which round they go on from, and whose parts they read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import undrift as ud
from undrift.engine import checkpoint as disk
from undrift.engine import shards
from undrift.engine.world import World
from undrift.errors import CheckpointError
from undrift.record import Totals


class Rank(World):
    """A process of several whose others see the same folder as it does."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.rank, self.size, self.folder = rank, size, folder
        self.told: dict[int, list[int]] = {}  # what others will say, where that is not the same

    def gather(self, numbers: Sequence[int]) -> np.ndarray:
        rows = [self.told.get(rank, list(numbers)) for rank in range(self.size)]
        rows[self.rank] = list(numbers)
        return np.array([row if len(row) == len(numbers) else list(numbers) for row in rows])


def save(folder: Path, rank: int, size: int, *rounds: int) -> None:
    part = shards.own_folder(folder, Rank(rank, size, folder))
    for round in rounds:
        x = torch.full((2,), float(10 * round + rank))
        disk.write(part, disk.Snapshot(round, x, x, {rank: x}, Totals(), None, {}))


def found(folder: Path, world: World) -> tuple[int, int, bool]:
    """The round, the number of parts and whether they are all."""
    parts, whole = shards.read(folder, world, read_one)
    assert len({part.round for part in parts}) == 1
    return parts[0].round, len(parts), whole


def read_one(path: Path, round: int) -> disk.Snapshot:
    templates = (torch.zeros(2), torch.zeros(2))
    return disk.read(path, round, {}, lambda x0: templates, ud.Record, torch.device("cpu"))


def test_a_run_goes_on_from_the_newest_round_that_all_have(tmp_path):
    save(tmp_path, 0, 2, 4, 5)
    save(tmp_path, 1, 2, 3, 4)
    for rank, other in ((0, [4, 3]), (1, [5, 4])):
        world = Rank(rank, 2, tmp_path)
        world.told = {1 - rank: other}
        assert found(tmp_path, world) == (4, 1, False)


def test_ranks_without_a_common_round_are_refused(tmp_path):
    save(tmp_path, 0, 2, 6, 7)
    world = Rank(0, 2, tmp_path)
    world.told = {1: [4, 3]}
    with pytest.raises(CheckpointError, match="a sound checkpoint of one round from every process"):
        found(tmp_path, world)


def test_a_damaged_part_is_passed_over_for_the_round_before_it(tmp_path):
    for rank in (0, 1):
        save(tmp_path, rank, 2, 8, 9)
    broken = tmp_path / "rank-1-of-2" / "round-00000009" / "state.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="round-00000009 is damaged"):
        assert found(tmp_path, World()) == (8, 2, True)


def test_the_layout_with_the_newest_round_is_read(tmp_path):
    save(tmp_path, 0, 1, 2, 3)
    assert found(tmp_path, World()) == (3, 1, True)
    for rank in (0, 1):
        save(tmp_path, rank, 2, 5, 6)
    assert found(tmp_path, World()) == (6, 2, True)
    assert found(tmp_path, Rank(1, 4, tmp_path)) == (6, 2, True)
    assert found(tmp_path, Rank(1, 2, tmp_path)) == (6, 1, False)
    save(tmp_path, 0, 1, 9)
    assert found(tmp_path, Rank(1, 2, tmp_path)) == (9, 1, True)


def test_a_missing_part_of_another_layout_is_refused(tmp_path):
    save(tmp_path, 0, 3, 4)
    save(tmp_path, 2, 3, 4)
    with pytest.raises(CheckpointError, match="got no rank-1-of-3 in"):
        found(tmp_path, World())


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="a folder with checkpoints"):
        found(tmp_path, Rank(0, 2, tmp_path))
    assert not shards.hold_checkpoints(tmp_path, World())
