"""Rounds without some of the ranks, and steps that are counted by the clock."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import undrift as ud
from tests.jobs import outer_absence as job
from tests.jobs import outer_hang, outer_late
from tests.support import outer as support
from tests.support.system import launch, made_once
from undrift.outer.steps import first_counts, next_counts


@pytest.fixture(
    scope="module", params=[pytest.param(2, marks=pytest.mark.long), 3], ids=lambda n: f"{n}-ranks"
)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    size = request.param

    def make(folder: Path) -> None:
        launch(size, job, str(folder))

    folder = made_once(tmp_path_factory, f"outer-absence-{size}", make)
    found = [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(size)]
    return found, [load_file(folder / f"models-{rank}") for rank in range(size)]


@pytest.mark.parametrize("name", job.METHODS)
def test_a_round_of_some_ranks_is_that_of_the_simulation(name: str, ranks: Any) -> None:
    size = len(ranks[0])
    x = support.simulated(job.METHODS[name], size, participation=job.COHORTS[size])
    for found, models in zip(*ranks, strict=True):
        assert torch.allclose(models[name], x, rtol=0, atol=1e-12)
        assert found[name] == len(job.COHORTS[size][-1])


def test_a_late_rank_is_left_out_and_comes_back(ranks: Any) -> None:
    """The others do not wait, and it goes on with them from the server's state."""
    found, models = ranks
    size = len(found)
    options: Any = {"participation": job.LEFT_OUT[size], "work": ud.Steps([3] * size)}
    x = support.simulated(ud.Scaffold(lr=0.1), size, **options)
    for each in models:
        assert torch.allclose(each["late"], x, rtol=0, atol=1e-12)
    assert all(found[rank]["said"] == [] for rank in range(size) if rank != 1)
    sentence = r"Rank 1 came too late to the meeting of round 1 .* goes on with round 3"
    assert len(found[1]["said"]) == 1
    assert re.search(sentence, found[1]["said"][0])


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        launch(2 * len(outer_late.CASES), outer_late, str(folder))

    return made_once(tmp_path_factory, "outer-late", make)


ALONE = {
    "others have ended": "Rank 1 came too late to the last meeting, and the others have ended",
    "others were killed": "Rank 0 has not answered for 2 s; look at its machine",
    "store was lost": "Rank 0 was lost, killed or crashed; look at its output",
    "store was lost while early": "Rank 0 was lost, killed or crashed; look at its output",
}


@pytest.mark.parametrize("case", outer_late.CASES)
def test_a_rank_that_nobody_waits_for_ends_with_a_reason(case: str, late: Path) -> None:
    said, _, seconds = (late / case).read_text().rpartition(" ")
    assert said.startswith(f"WorkerError: {ALONE[case]}")
    assert float(seconds) < 20


@pytest.mark.long
def test_a_rank_that_does_not_come_is_named_after_the_timeout(tmp_path: Path) -> None:
    launch(2, outer_hang, str(tmp_path))
    found = (tmp_path / "found").read_text()
    assert re.search(r"Rank 1 has not answered for 6 s; .* kept=True", found)


def test_a_time_budget_gives_a_slow_rank_fewer_steps(ranks: Any) -> None:
    counts = [found["counts"] for found in ranks[0]]
    assert all(each == counts[0] for each in counts)  # each knows all
    assert all(counts[0][0] > count >= 1 for count in counts[0][1:])


def test_steps_follow_from_the_seconds_of_the_round_before() -> None:
    fedavg, marsit = ud.FedAvg(lr=0.1), ud.Marsit(lr=0.1)
    every = ud.Seconds(10)
    assert first_counts(every, 3, fedavg) == (1, 1, 1)
    assert next_counts(every, (1, 1, 1), (0.1, 1.0, 0.0), fedavg) == (100, 10, 1)
    assert next_counts(every, (1, 1, 1), (0.1, 1.0, 0.2), marsit) == (10, 10, 10)
    assert next_counts(every, (1, 1), (100.0, 5.0), fedavg) == (1, 2)
    assert next_counts(7, (7, 7), (100.0, 5.0), fedavg) == (7, 7)
    with pytest.raises(ValueError, match="Seconds needs seconds > 0"):
        ud.Seconds(0)


def test_a_time_budget_survives_a_checkpoint() -> None:
    model = support.net()
    outer = ud.Outer(model, ud.FedAvg(lr=0.1), ud.Seconds(1e-6))
    outer.step(support.closure_of(model, next(support.Batches(0, 1, 1).of(0))))
    state = outer.state_dict()
    state["counts"] = [5]
    outer.load_state_dict(state)
    outer.step(support.closure_of(model, next(support.Batches(0, 1, 1).of(0))))
    assert (outer.t, outer._rounds.counts) == (1, (5,))  # in the middle of the second round
    with pytest.raises(ValueError, match=r"a state of every Seconds\(seconds=1e-06\), got \[3\]"):
        outer.load_state_dict(ud.Outer(support.net(), ud.FedAvg(lr=0.1), 3).state_dict())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"participation": 2}, "participation needs between 1 and 1 clients, got 2"),
        ({"participation": 0.0}, r"a fraction in \(0, 1\]"),
        ({"patience": 0}, "Outer needs patience > 0"),
        ({"method": ud.Marsit(lr=0.1), "patience": 5.0}, "Marsit needs all ranks in every round"),
        ({"method": ud.Marsit(lr=0.1), "participation": 1}, "Marsit needs all ranks in every"),
    ],
    ids=str,
)
def test_absences_that_cannot_be_are_refused(options: dict[str, Any], sentence: str) -> None:
    settings = {"method": ud.FedAvg(lr=0.1)} | options
    with pytest.raises(ValueError, match=sentence):
        ud.Outer(support.net(), every=3, **settings)
