"""Checkpoints at meetings, and jobs that go on after a kill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import undrift as ud
from tests.jobs import __file__ as jobs
from tests.support import outer as support
from tests.support.outer import after, batch, vector
from tests.support.system import torchrun
from undrift.errors import CheckpointError
from undrift.files import seal_file

JOB = Path(jobs).parent / "outer_restart.py"


def test_a_saved_meeting_is_gone_on_from(tmp_path: Path) -> None:
    model = support.net()
    outer = ud.Outer(model, ud.Scaffold(lr=0.1), every=2)
    assert outer.resume(tmp_path) is None
    for _ in range(3):
        after(outer, model, 2)
        outer.save(tmp_path, epoch=outer.t)
    assert len(list(tmp_path.glob("outer-*.pt"))) == 2
    expected = after(outer, model, 4)
    other = support.net(seed=4)
    loaded = ud.Outer(other, ud.Scaffold(lr=0.1), every=2)
    assert loaded.resume(tmp_path) == {"epoch": 3}
    assert (loaded.t, loaded.steps) == (3, 6)
    assert torch.equal(after(loaded, other, 4), expected)


def test_a_damaged_file_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=1)
    for _ in range(2):
        after(outer, model, 1)
        outer.save(tmp_path)
    newest = sorted(tmp_path.glob("outer-*.pt"))[-1]
    sound = newest.read_bytes()
    number = sound.index(outer.server.x.numpy().tobytes()[:16])  # of a tensor
    flips = (
        sound[:i] + bytes([sound[i] ^ 1]) + sound[i:][1:] for i in (10, number, len(sound) - 2)
    )
    for damaged in (*flips, sound[:100], sound[:-1], b"", sound + b"\n"):
        newest.write_bytes(damaged)
        with pytest.warns(UserWarning, match=rf"{newest.name} is damaged .*and not used"):
            assert outer.resume(tmp_path) == {}
        assert outer.t == 1
    newest.with_name("outer-0000000001-rank-0.pt").unlink()
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(CheckpointError, match=r"all ranks have saved in .* start with an empty"),
    ):
        outer.resume(tmp_path)
    newest.write_bytes(sound)
    assert outer.resume(tmp_path) == {}
    assert outer.t == 2


@pytest.mark.parametrize("change", ["outer", "generator", "t", "role"])
def test_a_sealed_file_of_another_content_is_one_sentence(tmp_path: Path, change: str) -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=1)
    after(outer, model, 1)
    outer.save(tmp_path)
    (path,) = tmp_path.glob("outer-*.pt")
    state = torch.load(path, weights_only=True)
    table = state if change in state else state["outer"]
    table[change] = {"generator": torch.zeros(3)}.get(change, {})
    if change == "t":
        del table[change]
    torch.save(state, path)
    seal_file(path)
    with pytest.raises((CheckpointError, ValueError), match=r"^Outer\.\w+ needs"):
        outer.resume(tmp_path)


def test_a_save_keeps_what_it_wrote_beside_files_that_cannot_be_read(tmp_path: Path) -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=1)
    for number in (100, 101):
        (tmp_path / f"outer-{number:010d}-rank-0.pt").write_bytes(b"of an earlier version")
    for _ in range(3):
        after(outer, model, 1)
        outer.save(tmp_path)
    assert [path.name for path in sorted(tmp_path.glob("outer-*.pt"))] == [
        "outer-0000000002-rank-0.pt",
        "outer-0000000003-rank-0.pt",
    ]
    assert outer.resume(tmp_path) == {}
    assert outer.t == 3


def test_the_middle_of_a_round_is_no_meeting(tmp_path: Path) -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), every=2)
    outer.step(support.closure_of(model, batch()))
    with pytest.raises(ValueError, match=r"Outer.save needs a meeting, .* got the middle of one"):
        outer.save(tmp_path)
    outer.step(support.closure_of(model, batch()))
    outer.save(tmp_path)
    assert torch.equal(vector(model), outer.server.x)


def end_of_job(folder: Path, *arguments: str) -> tuple[str, str]:
    """Return the hash of the model at the end and the number of the last attempt."""
    printed = torchrun(2, JOB, str(folder), *arguments, restarts=1)
    found = re.search(r"hash (\w+) attempt (\d)", printed)
    assert found is not None, printed
    return found[1], found[2]


@pytest.mark.long
@pytest.mark.parametrize("method", ["DiLoCo", "Marsit"])
def test_a_killed_job_ends_with_the_uninterrupted_hash(method: str, tmp_path: Path) -> None:
    whole, attempt = end_of_job(tmp_path / "whole", method)
    assert attempt == "0"
    for rank, place in (("1", "step"), ("0", "save"), ("0", "step"), ("1", "save")):
        killed = tmp_path / f"{place}-{rank}"
        assert end_of_job(killed, method, rank, place) == (whole, "1"), (rank, place)
