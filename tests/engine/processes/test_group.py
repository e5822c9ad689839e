"""Processes: 1, 2, 3 and 4 of them give what one gives, for every method; faults are the same.

All that needs a launch is in `tests/jobs/processes.py`, launched once for each number of processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import undrift as ud
from tests.jobs import processes as job
from tests.support.system import launch, made_once
from undrift import testing

DAILY = 3  # processes of the launch of every day
# Where no sum is in floating point before the last sign, not even the rounding may differ.
EXACT = [
    name
    for name in job.runs()
    if name.startswith(("Marsit(", "SignSGD(", "SSDM(", "CascadingSSDM("))
    and "period=2" not in name
]


@pytest.fixture(scope="module")
def alone() -> Callable[[str], tuple[dict[str, Any], torch.Tensor]]:
    """What one process without torch.distributed finds, by the name of the run."""

    @cache
    def found(name: str) -> tuple[dict[str, Any], torch.Tensor]:
        run = job.runs()[name]()
        return job.records_of(run), run.x

    return found


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Checkpoints that one process saved after two of four rounds, and where it ended."""
    folder, ends = tmp_path_factory.mktemp("given"), {}
    for name, algorithm in job.SAVED.items():
        run = testing.start(algorithm, rounds=4, checkpoint=folder / name)
        next(run), next(run)
        whole = testing.finish(testing.start(algorithm, rounds=4))
        ends[name] = whole
    return folder, ends


EACH = [pytest.param(n, marks=pytest.mark.long) if n != DAILY else n for n in (1, 2, 3, 4)]


@pytest.fixture(scope="module", params=EACH, ids=lambda n: f"{n}-processes")
def launched(request, tmp_path_factory, given):
    """(number of processes, what they found, their models, their folder)."""

    def make(folder: Path) -> None:
        (folder / "given").symlink_to(given[0])
        launch(request.param, job, str(folder), *(["daily"] if request.param == DAILY else []))

    folder = made_once(tmp_path_factory, f"{request.param}-processes", make)
    found = json.loads((folder / "found.json").read_text())
    return request.param, found, load_file(folder / "models.safetensors"), folder


def test_every_method_gives_what_one_process_gives(launched, alone):
    processes, found, models, _ = launched
    assert list(found["runs"]) == list(job.runs(daily=processes == DAILY))
    for name, told in found["runs"].items():
        x = alone(name)[1]
        apart = float((models[str(told["number"])] - x).abs().max())
        assert apart <= 1e-6 * float(x.abs().max()), (name, apart)
        assert apart <= 1e-12 or "Sign" in name or "Marsit" in name, (name, apart)
        if processes == 1 or name in EXACT:
            assert told["sha256"] == alone(name)[0]["sha256"], name


def test_records_count_the_same_and_score_the_same(launched, alone):
    _, found, _, _ = launched
    for name, told in found["runs"].items():
        mine, theirs = told["records"], alone(name)[0]["records"]
        assert len(mine) == len(theirs) == 4
        for one, other in zip(mine, theirs, strict=True):
            for field, value in other.items():
                same_when_known = (
                    "consensus",
                    "sign_matching",
                )  # what would cost a full all-reduce
                if isinstance(value, float) and one[field] is not None:
                    assert one[field] == pytest.approx(value, rel=1e-6, abs=1e-12), (name, field)
                elif not (field in same_when_known and one[field] is None):
                    assert one[field] == value, (name, field)


def test_every_process_ends_with_the_same(launched):
    assert launched[1]["same everywhere"]


def test_the_same_number_of_processes_gives_the_same_bits(launched):
    _, found, _, _ = launched
    assert len(found["again"]) == 3
    for name, sha256 in found["again"].items():
        assert found["runs"][name]["sha256"] == sha256, name


def test_a_client_that_is_not_finite_is_named_by_all_and_the_run_can_be_repeated(launched):
    _, found, _, _ = launched
    for method, told in found["diverged"].items():
        assert "got NaN or Inf from client 3 in round 1" in told, method


def test_processes_with_another_experiment_are_refused(launched):
    processes, found, _, _ = launched
    if processes == 1:
        assert set(found["others"].values()) == {"none"}
        return
    start = "All processes need the same program and experiment, got "
    assert found["others"]["seed"].startswith(start + "seed = 1 on rank 1, and 0 on rank 0")
    assert "algorithm = FedAvg(lr=0.2" in found["others"]["lr"]
    assert "rounds = 4 on rank 1, and 3 on rank 0" in found["others"]["rounds"]
    assert found["others"]["test set"].startswith(start + "the test set = ")


def test_a_checkpoint_of_one_process_is_read_by_several(launched, given):
    processes, found, _, _ = launched
    for name, x in given[1].items():
        run = testing.start(job.SAVED[name], rounds=4, resume=given[0] / name)
        assert torch.equal(testing.finish(run), x)
        ended = torch.tensor(found["resumed"][name]["x"], dtype=torch.float64)
        apart = (ended - x).abs().max()
        assert float(apart) < 1e-12, name
        if processes == 1 or name == "marsit":
            assert found["resumed"][name]["sha256"] == ud_sha256(x)


def ud_sha256(x: torch.Tensor) -> str:
    return ud.models.layout.sha256(x)


def test_a_checkpoint_of_several_processes_is_read_by_one(launched, given):
    _, _, _, folder = launched
    for name, algorithm in job.SAVED.items():
        run = testing.start(algorithm, rounds=4, resume=folder / "saved" / name)
        assert run.round == 2
        assert float((testing.finish(run) - given[1][name]).abs().max()) < 1e-12, name


def test_a_refused_run_leaves_the_others_as_they_were(launched):
    first, second, _ = launched[1]["refused"]
    assert "batch_size >= 1, a whole number or None, got 0" in first
    assert second == "none"


def test_an_attack_needs_one_process(launched):
    processes, found, _, _ = launched
    said = f"attack needs one process, got '{processes} processes'; attackers know all uploads."
    assert found["refused"][2] == ("none" if processes == 1 else said)


def test_an_error_of_one_rank_reaches_the_others_at_once(launched):
    processes, _, _, folder = launched
    if processes == 1:
        assert not (folder / "told-0.json").exists()
        return
    for rank in range(processes):
        told, seconds = json.loads((folder / f"told-{rank}.json").read_text())
        whose = "RuntimeError: a bad day" if rank == 1 else "WorkerError: Rank 1 failed: a bad day"
        assert told == whose
        assert seconds < 7  # while rank 1 is still there


def test_marsit_sends_a_bit_a_coordinate_and_the_stated_header(launched):
    processes, found, _, _ = launched
    if processes == 1:
        assert "sent" not in found
        return
    sent = found["sent"]
    # 18 coordinates in M pieces, each padded to bytes, passed on 2 (M - 1) times; 24 bytes before.
    sizes = [18 // processes + (i < 18 % processes) for i in range(processes)]
    payload = 2 * (processes - 1) * sum(-(-size // 8) for size in sizes)
    assert sent["bytes"] == payload + 24 * sent["messages"]


def test_packed_uploads_travel_as_they_are_counted(launched):
    processes, found, _, _ = launched
    if processes == 1:
        assert "packed" not in found
        return
    for name, bytes_of in found["packed"].items():
        # Every process plays the server, so each upload goes to all but the one that has it.
        assert bytes_of["sent"] == (processes - 1) * bytes_of["recorded"], name
        assert 0 < bytes_of["recorded"] < bytes_of["plain"] / 2, name
