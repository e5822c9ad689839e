"""Checkpoints of several processes: which round they go on from, and whose parts they read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import undrift as ud
from undrift.engine.checkpoint import shards, store
from undrift.engine.world import World
from undrift.errors import CheckpointError
from undrift.results.record import Totals


class Rank(World):
    """A process of several; what the others see is what it sees, unless they are told apart."""

    def __init__(self, rank: int, size: int, *, others: dict[str, list[int]] | None = None) -> None:
        self.rank, self.size, self.others = rank, size, others

    def gather(self, numbers: Sequence[int]) -> np.ndarray:
        return np.array([numbers] * self.size)

    def texts(self, text: str) -> list[str]:
        said = [text] * self.size
        if self.others is not None and text.startswith("{"):
            said = [json.dumps(self.others)] * self.size
            said[self.rank] = text
        return said


def save(folder: Path, rank: int, size: int, *rounds: int) -> None:
    part = shards.own_folder(folder, Rank(rank, size))
    for round in rounds:
        x = torch.full((2,), float(10 * round + rank))
        store.write(part, store.Snapshot(round, x, x, {rank: x}, Totals(), None, {}))


def found(folder: Path, world: World) -> tuple[int, int, bool]:
    """The round, the number of parts and whether they are all."""
    parts, whole = shards.read(folder, world, read_one)
    assert len({part.round for part in parts}) == 1
    return parts[0].round, len(parts), whole


def read_one(path: Path, round: int) -> store.Snapshot:
    templates = (torch.zeros(2), torch.zeros(2))
    return store.read(
        path,
        round,
        settings={},
        templates=lambda x0: templates,
        record_type=ud.Record,
        device=torch.device("cpu"),
    )


def test_a_run_goes_on_from_the_newest_round_that_all_have(tmp_path):
    save(tmp_path, 0, 2, 4, 5)
    save(tmp_path, 1, 2, 3, 4)
    for rank, other in ((0, [4, 3]), (1, [5, 4])):
        assert found(tmp_path, Rank(rank, 2, others={"2": other})) == (4, 1, False)


def test_ranks_without_a_common_round_are_refused(tmp_path):
    save(tmp_path, 0, 2, 6, 7)
    save(tmp_path, 1, 2, 3, 4)
    with pytest.raises(CheckpointError, match="a sound checkpoint of one round from every process"):
        found(tmp_path, Rank(0, 2, others={"2": [4, 3]}))


def test_a_damaged_part_is_passed_over_for_the_round_before_it(tmp_path):
    for rank in (0, 1):
        save(tmp_path, rank, 2, 8, 9)
    broken = tmp_path / "rank-1-of-2" / "round-00000009" / "state.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="round-00000009 is damaged"):
        assert found(tmp_path, World()) == (8, 2, True)


def test_the_layout_with_the_newest_round_is_read(tmp_path):
    save(tmp_path, 0, 1, 2, 3)
    assert found(tmp_path, World()) == (3, 1, False)
    for rank in (0, 1):
        save(tmp_path, rank, 2, 5, 6)
    assert found(tmp_path, World()) == (6, 2, True)
    assert found(tmp_path, Rank(1, 4)) == (6, 2, True)
    assert found(tmp_path, Rank(1, 2)) == (6, 1, False)
    save(tmp_path, 0, 1, 9)
    assert found(tmp_path, Rank(1, 2)) == (9, 1, True)


def test_a_torn_new_layout_does_not_hide_a_complete_old_one(tmp_path):
    for rank in (0, 1):
        save(tmp_path, rank, 2, 5, 6)
    save(tmp_path, 0, 3, 7)
    assert found(tmp_path, World()) == (6, 2, True)


def test_a_job_knows_its_own_checkpoints_from_those_of_others(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    shards.claim(tmp_path, Rank(0, 2))
    assert shards.claimed(tmp_path, Rank(0, 2))
    assert shards.only_begun(tmp_path, Rank(0, 2))
    save(tmp_path, 0, 2, 0, 3)
    assert not shards.only_begun(tmp_path, Rank(0, 2))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    assert not shards.claimed(tmp_path, Rank(0, 2))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert not shards.claimed(tmp_path, Rank(0, 2))


def test_a_missing_part_of_another_layout_is_refused(tmp_path):
    save(tmp_path, 0, 3, 4)
    save(tmp_path, 2, 3, 4)
    with pytest.raises(CheckpointError, match="got no rank-1-of-3 in"):
        found(tmp_path, World())


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="a folder with checkpoints"):
        found(tmp_path, Rank(0, 2))
    assert not shards.hold_checkpoints(tmp_path, World())


class TellsOfAnother(Rank):
    """A process whose neighbour could not read its own part."""

    def texts(self, text: str) -> list[str]:
        if text.startswith("{"):
            return super().texts(text)
        return [text, "rank-1-of-2 cannot be read"]


def test_what_one_rank_cannot_read_is_refused_by_all(tmp_path):
    save(tmp_path, 0, 2, 4)
    with pytest.raises(CheckpointError, match=r"^Rank 1: rank-1-of-2 cannot be read$"):
        shards.read(tmp_path, TellsOfAnother(0, 2), read_one)


def test_a_part_that_cannot_be_read_here_is_told_to_all(tmp_path):
    save(tmp_path, 0, 2, 4)
    told = []

    class Listens(Rank):
        def texts(self, text: str) -> list[str]:
            told.append(text)
            return super().texts(text)

    def refuse(path: Path, round: int) -> store.Snapshot:
        raise OSError("disk is gone")

    with pytest.raises(CheckpointError, match="disk is gone"):
        shards.read(tmp_path, Listens(0, 2), refuse)
    assert told[-1] == "disk is gone"
