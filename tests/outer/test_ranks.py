"""`Outer` on two and four ranks ends where a simulation with the same batches does.

All that needs a launch is in `tests/jobs/outer.py`, launched once for each number of processes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import undrift as ud
from tests.jobs import outer as job
from tests.support import outer as support
from tests.support.system import launch, made_once
from undrift import tree
from undrift.engine.processes.transport import HEADER


@pytest.fixture(
    scope="module", params=[pytest.param(2, marks=pytest.mark.long), 4], ids=lambda n: f"{n}-ranks"
)
def ranks(request, tmp_path_factory):
    """Return what each rank has found, and its models."""
    size = request.param

    def make(folder: Path) -> None:
        launch(size, job, str(folder))

    folder = made_once(tmp_path_factory, f"outer-{size}", make)
    found = [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(size)]
    return found, [load_file(folder / f"models-{rank}") for rank in range(size)]


@pytest.mark.parametrize("name", job.accepted())
def test_ranks_end_where_the_simulation_does(name: str, ranks: Any) -> None:
    method = support.METHODS[name]
    _, models = ranks
    x = support.simulated(method, len(models))
    for rank, model in enumerate(models):
        expected = x[rank] if isinstance(method, ud.Peer) else x
        assert torch.allclose(model[name], expected, rtol=0, atol=1e-12), rank
    if isinstance(method, ud.Peer):
        mean = models[0][f"{name} | average"]
        assert torch.allclose(mean, x.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [ud.Marsit(lr=0.1), ud.SignSGD(lr=0.1)], ids=repr)
def test_one_bit_travels_over_a_torus(method: Any, ranks: Any) -> None:
    _, models = ranks
    size = len(models)
    x = support.simulated(method, size, allreduce=f"torus:2x{size // 2}")
    assert torch.allclose(models[0][f"{method!r} | torus"], x[0], rtol=0, atol=1e-12)


def test_all_ranks_of_a_server_have_its_bits(ranks: Any) -> None:
    _, models = ranks
    for name, method in job.accepted().items():
        if isinstance(method, ud.Federated):
            assert all(torch.equal(model[name], models[0][name]) for model in models)


def test_what_is_counted_is_what_is_sent(ranks: Any) -> None:
    """Plain uploads as the backend's ring sends them, packed ones as messages to every other."""
    found, models = ranks
    others, rounds = len(models) - 1, support.ROUNDS
    reports, floats = 40 * others, models[0]["accelerated"].nbytes
    plain = rounds * (reports + 2 * others / len(models) * floats)
    codes = ud.QSGD(bits=4).encode(models[0]["compressed"], lambda _, like: like * 0, (83,))
    packed = rounds * (reports + others * (HEADER + tree.nbytes(codes)))
    assert tree.nbytes(codes) < floats / 10
    for rank in found:
        assert rank["bytes"][repr(job.SMALL)] == plain
        assert rank["bytes"]["compressed"] == packed


def test_an_adamw_of_torch_is_the_rule_adamw_on_every_rank(ranks: Any) -> None:
    _, models = ranks
    method, _ = job.ADAMW["AdamW of ours"]
    x = support.simulated(method, len(models))
    for model in models:
        for name in job.ADAMW:
            assert torch.allclose(model[name], x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", job.CONSERVING)
def test_a_schedule_keeps_the_conservation_law_over_ranks(name: str, ranks: Any) -> None:
    """The model minus the mean of what ranks owe moves by their mean updates alone."""
    for found in ranks[0]:
        law = found["law"][name]
        assert law["apart"] < 1e-12
        # A round in full precision pays everything.
        assert law["owed"] == 0 if "period" in name else law["owed"] > 0.01


@pytest.mark.parametrize("name", job.SAVED)
def test_ranks_go_on_in_the_middle_of_a_round(name: str, ranks: Any) -> None:
    for model in ranks[1]:
        assert torch.equal(model[f"{name} | loaded"], model[f"{name} | whole"])


SENTENCES = {
    "other method": r"needs? the same .* got method = FedProx.*on rank 1, and FedAvg.* on rank 0",
    "other lr": r"got method = FedAvg\(lr=0.2.*on rank 1, and FedAvg\(lr=0.1",
    "other every": r"got every = \[4, .*on rank 1, and \[3, .* on rank 0",
    "other model": r"got model.0.bias = None on rank 1, and float64 \[8\], trained, number 2 on",
    "other buffer": r"got model.more = float32 \[3\] on rank 1, and float32 \[2\] on rank 0",
    "more frozen": r"got model.more = float32 \[2\] on rank 1, and None on rank 0",
    "other code": r"got undrift = 000000000000 on rank 1, and ",
    "other code of one's own": r"got the code of .*Mine.update = \w{12} on rank 1, and \w{12} on",
    "other code inside": r"got the code of .*Mine.update = \w{12} on rank 1, and \w{12} on rank 0",
    "batch norm": r"^ValueError: The model needs layers without running statistics, got BatchNorm",
    "batch norm on one": r"needs layers without running statistics, got BatchNorm1d",
    "no weight on one": r"Outer needs weight > 0, a finite number, got (0.0|another on rank 1)",
    "weights of peers": r"needs ranks that weigh the same, got \[1.0, 2.0",
    "topology": r"The topology needs \d nodes, one for each rank, got 3",
    "steps of Marsit": r"Marsit needs the same number of local steps on every rank, got \[3, ",
    "DTensor": r"Outer needs plain parameters that are whole on every rank, .* got DTensor at ",
    "FSDP": r"needs plain parameters .* got FullyShardedDataParallel; use a model without FSDP",
    "FSDP 2": r"needs plain parameters that are whole on every rank, .* got DTensor at '0.weight'",
    "DDP": r"Outer needs a model whose ranks step on their own .*, got DistributedDataParallel",
    "DDP later": r"own gradients, got one that was put into D.* Without Outer nothing was raised",
    "not a number": r"finite updates, got NaN or Inf from rank 1 in round 1.* kept=True t=1",
}


@pytest.mark.parametrize("case", SENTENCES)
def test_every_rank_says_what_does_not_fit(case: str, ranks: Any) -> None:
    for found in ranks[0]:
        assert re.search(SENTENCES[case], found["said"][case]), found["said"][case]


def test_a_rank_that_fits_names_the_one_that_does_not(ranks: Any) -> None:
    said = [found["said"]["batch norm on one"] for found in ranks[0]]
    assert said[0].startswith("ValueError: Rank 1 refuses: The model needs layers")
    assert said[1].startswith("ValueError: The model needs layers")
