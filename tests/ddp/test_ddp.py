"""The communication hooks on real processes, 2 and 4 of them: launched once, judged here.

`tests/jobs/ddp.py` trains and writes down what happened. What the hooks should do comes from the
simulator, from conservation laws, and from counting bytes by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import undrift as ud
from tests.jobs import ddp as ddp_job
from tests.jobs.ddp import (
    ANY_BUCKETS,
    DIM,
    HOOKS,
    LR,
    ONE_PARAMETER,
    PLAIN,
    SCHEDULE,
    STEPS,
)
from tests.support.system import ROOT, made_once
from undrift.engine.processes.transport import HEADER

WORLDS = [2, pytest.param(4, marks=pytest.mark.long)]
JOB = Path(ddp_job.__file__)
EXAMPLE = ROOT / "examples" / "ddp_onebit.py"
Results = list[dict[str, Any]]  # by rank


class Job(NamedTuple):
    first: Results
    resumed: Results  # by new processes, from what the first saved


def run(*command: str) -> str:
    # The job imports the package of tests, which Python does not find beside a script.
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    ended = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-6000:]
    return ended.stdout


def read(folder: Path, world: int) -> Job:
    first, resumed = (
        [
            torch.load(folder / str(world) / f"{prefix}{rank}.pt", weights_only=True)
            for rank in range(world)
        ]
        for prefix in ("", "resumed-")
    )
    return Job(first, resumed)


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"world{world}")
def whole_job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One launch a world, also where the tests are spread over several pytest workers."""
    world: int = request.param
    name = f"ddp-{world}"
    folder = made_once(
        tmp_path_factory, name, lambda folder: run(str(JOB), str(folder), str(world))
    )
    return read(folder, world)


@pytest.fixture(scope="module")
def job(whole_job: Job) -> Results:
    return whole_job.first


def same(values: list[Any]) -> bool:
    return all(value == values[0] for value in values)


# What the hooks compute


@pytest.mark.parametrize("name", ONE_PARAMETER)
def test_one_parameter_takes_the_simulators_path(job, name):
    _, _, settings, algorithm = ONE_PARAMETER[name]
    bed = ddp_job.problem(len(job))
    simulated = ud.simulate(
        algorithm,
        bed.model(),
        bed.clients,
        loss=bed.loss,
        allreduce=settings.get("allreduce", "ring"),
        work=ud.Steps(1),
        rounds=STEPS,
        evaluation=ud.EvaluationOptions(every=100),
        seed=settings.get("seed", 0),
    )
    path = torch.stack([simulated.mean.clone() for _ in simulated])
    assert path.shape == (STEPS, DIM)
    for rank in job:
        assert (rank["one_parameter"][name] - path).abs().max() < 1e-12


def rows(job: Results, name: str, key: str, t: int) -> torch.Tensor:
    """(M, D)"""
    return torch.stack([rank["several_parameters"][name][key][t] for rank in job])


@pytest.mark.parametrize("name", ["marsit", "marsit-4", "ef"])
def test_x_minus_lr_times_the_mean_buffer_moves_by_mean_gradients_alone(job, name):
    """What the signs lost is in the buffers, of the same parameter, and nothing else is."""
    expected = rows(job, name, "x", 0)[0]
    for t in range(STEPS):
        expected = expected - LR * rows(job, name, "g", t).mean(0)
        x, c = rows(job, name, "x", t + 1)[0], rows(job, name, "c", t)
        assert (x - LR * c.mean(0) - expected).abs().max() < 1e-13
        full = name == "marsit-4" and t % 4 == 0
        assert bool((c == 0).all()) == full


@pytest.mark.parametrize("name", ["marsit", "ef"])
def test_a_schedule_neither_loses_nor_multiplies_what_is_owed(job, name):
    """x less the mean of what is owed moves by lr times mean gradients, whatever lr does."""
    expected = job[0]["schedules"][name]["x"][0]
    for t, factor in enumerate(SCHEDULE):
        logs = [rank["schedules"][name] for rank in job]
        expected = expected - LR * factor * torch.stack([log["g"][t] for log in logs]).mean(0)
        owed = torch.stack([log["c"][t] for log in logs]).mean(0)
        assert (logs[0]["x"][t + 1] - owed - expected).abs().max() < 1e-13
        assert bool((owed != 0).any())


def test_marsit_moves_every_coordinate_by_the_same_size_in_one_bit_steps(job):
    size = LR * HOOKS["marsit-4"][2]["server_lr"]
    for t in range(STEPS):
        moved = (rows(job, "marsit-4", "x", t + 1) - rows(job, "marsit-4", "x", t))[0]
        if t % 4 == 0:
            mean = rows(job, "marsit-4", "g", t).mean(0)
            kept = rows(job, "marsit-4", "c", t - 1).mean(0) if t else torch.zeros(len(mean))
            assert (moved + LR * (mean + kept)).abs().max() < 1e-13
        else:
            assert (moved.abs() - size).abs().max() < 1e-14
            # Where all ranks' signs agree there is nothing to draw.
            u = rows(job, "marsit-4", "g", t) + rows(job, "marsit-4", "c", t - 1)
            for sign in (1, -1):
                unanimous = (sign * u > 0).all(0)
                assert unanimous.sum() > 10
                assert (sign * moved[unanimous] < 0).all()


def test_the_majority_moves_every_parameter(job):
    size = LR * HOOKS["sign"][2]["server_lr"]
    for t in range(STEPS):
        votes = torch.where(rows(job, "sign", "g", t) >= 0, 1, -1).sum(0)
        moved = (rows(job, "sign", "x", t + 1) - rows(job, "sign", "x", t))[0]
        step = size * torch.where(votes >= 0, 1, -1).double()
        assert (moved + step).abs().max() < 1e-14


def test_error_feedback_and_ssdm_scale_by_parameter(job):
    """Multiples of one number within a parameter, of others in others."""
    pieces = [parameter.numel() for parameter in ddp_job.Net().parameters()]
    world = len(job)
    for name in ("ef", "ssdm"):
        moved = (rows(job, name, "x", 1) - rows(job, name, "x", 0))[0]
        g, scales = rows(job, name, "g", 0), []
        for part, own in zip(moved.split(pieces), g.split(pieces, 1), strict=True):
            scale = own.abs().mean() if name == "ef" else 0.1 * own.norm(dim=1).max()
            scales.append(float(scale))
            multiples = part / (LR * scale) * world  # of sums of signs
            assert (multiples - multiples.round()).abs().max() < 1e-6
            assert multiples.abs().max() < world + 0.5
        assert len({round(scale, 9) for scale in scales}) >= 4


@pytest.mark.parametrize("name", HOOKS)
def test_all_ranks_end_with_the_same_model(job, name):
    for t in range(STEPS + 1):
        x = rows(job, name, "x", t)
        assert (x == x[0]).all()
    assert {rank["several_parameters"][name]["step"] for rank in job} == {STEPS}


def test_there_are_several_buckets_after_the_first_step(job):
    """Or else nothing here is about several."""
    for rank in job:
        buckets = rank["several_parameters"]["marsit"]["buckets"]
        assert len(buckets[0]) == 1
        assert all(len(step) >= 2 for step in buckets[1:])


# What travels


def ring_bytes(world: int, rank: int, buckets: list[list[int]]) -> int:
    """One bit a coordinate in whole bytes a piece, and a header a message."""
    total = 0
    for sizes in buckets:
        pieces = [[len(cut) for cut in np.array_split(np.arange(n), world)] for n in sizes]
        for hop in range(world - 1):
            for chunk in ((rank - hop) % world, (rank + 1 - hop) % world):
                total += HEADER + sum(-(-cut[chunk] // 8) for cut in pieces)
    return total


def test_marsit_sends_one_bit_a_coordinate_and_hop_and_stated_headers(job):
    world, dim = len(job), sum(parameter.numel() for parameter in ddp_job.Net().parameters())
    for t in range(1, STEPS):  # the first step also compares settings
        sent = 0
        for rank, results in enumerate(job):
            log = results["several_parameters"]["marsit"]
            assert log["bytes"][t] == ring_bytes(world, rank, log["buckets"][t])
            messages = 2 * (world - 1) * len(log["buckets"][t])
            sent += log["bytes"][t] - HEADER * messages
        bits = 2 * (world - 1) * dim  # of all ranks together: 2(M-1)/M a coordinate each
        pieces = 2 * (world - 1) * world * 5
        assert bits <= 8 * sent < bits + 8 * pieces


def test_a_full_precision_step_sends_a_roll_call_itself_and_leaves_the_rest_to_the_backend(job):
    world = len(job)
    for t in range(4, STEPS, 4):
        for results in job:
            log = results["several_parameters"]["marsit-4"]
            # One number travels round the ring twice but for one link each.
            assert 0 < log["bytes"][t] <= len(log["buckets"][t]) * 2 * (world - 1) * (HEADER + 4)


# Resume


def resumes_bit_for_bit(job: Job, name: str) -> None:
    first, resumed = ([rank["resume"][name] for rank in ranks] for ranks in job)
    assert len(first[0]) == (3 if name in ANY_BUCKETS else 1)
    assert same([*(digest for digests in first for digest in digests.values()), *resumed])


@pytest.mark.parametrize("name", HOOKS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(whole_job, name):
    """By new processes, and with other buckets."""
    resumes_bit_for_bit(whole_job, name)


@pytest.mark.long
def test_twenty_steps_are_ten_and_ten(tmp_path):
    worlds = [1, 2, 3, 4, 5]
    run(str(JOB), str(tmp_path), *map(str, worlds), "--long")
    for world in worlds:
        for name in HOOKS:
            resumes_bit_for_bit(read(tmp_path, world), name)


def test_numbers_do_not_depend_on_the_buckets(job):
    ways = job[0]["numbering"]
    names = [f"{layer}.{kind}" for layer in range(6) for kind in ("weight", "bias")]
    for way in ways.values():
        assert way["numbers"] == {name: n for n, name in enumerate(reversed(names))}
    assert len({str(way["seen"]) for way in ways.values()}) >= 4  # and the buckets did differ
    assert len(ways["unused"]["seen"][-1]) > len(ways["one bucket"]["seen"][-1]) == 1


# Training


@pytest.mark.parametrize("name", [*(f"{n}-momentum" for n in PLAIN), "marsit-adam"])
def test_the_loss_falls(job, name):
    for rank in job:
        losses = rank["learning"][name]["losses"]
        assert sum(losses[-4:]) / 4 < 0.9 * losses[0]
    assert same([rank["learning"][name]["digest"] for rank in job])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision(job, dtype):
    for name in PLAIN if dtype == torch.float16 else ("marsit",):
        results = [rank["dtypes"][f"{name}-{dtype}"] for rank in job]
        assert same([result["digest"] for result in results])
        for result in results:
            assert result["losses"][-1] < result["losses"][0]
            assert result["kept"] == (["torch.float32"] if name != "sign" else [])


@pytest.mark.parametrize("name", PLAIN)
def test_parameters_that_some_ranks_or_all_do_not_use(job, name):
    results = [rank["unused"][name] for rank in job]
    assert same([result["digest"] for result in results])
    for result in results:
        assert result["moved"] > 0
        assert result["moved later"] == 0  # DDP leaves alone what nobody used


@pytest.mark.parametrize("name", PLAIN)
def test_join_goes_on_with_zero_gradients_of_who_has_ended(job, name):
    results = [rank["join"][name] for rank in job]
    assert same([result["digest"] for result in results])
    assert {result["step"] for result in results} == {1 + len(job)}
    if name in ("marsit", "ef"):
        g, c = (torch.stack([result[key] for result in results]) for key in ("g", "c"))
        x, x0 = results[0]["x"], results[0]["x0"]
        assert (x - LR * c.mean(0) - (x0 - LR * g.mean(0))).abs().max() < 1e-13


# Faults


def test_a_gradient_that_is_not_finite_stops_every_rank_with_the_same_sentence(job):
    expected = (
        f"DivergenceError: Training needs finite gradients, got NaN or Inf from rank "
        f"{len(job) - 1} in step 2; lower lr and go on from the last checkpoint."
    )
    for rank in job:
        said = rank["not_finite"]
        assert len(said) == 8
        assert set(said.values()) == {expected}


@pytest.mark.parametrize("period", ["None", "1"])
def test_a_rank_that_ends_early_is_named_by_all_others_at_the_timeout(job, period):
    *others, last = (rank["leaving"][period] for rank in job)
    assert last["said"] == "no error"
    for other in others:
        assert other["said"].startswith(f"WorkerError: Rank {len(job) - 1} took no part in step 3 ")
        assert "DistributedSampler with drop_last=True" in other["said"]
        assert 0.9 < other["seconds"] < 20


def test_ranks_that_disagree_are_told_so_at_the_first_step(job):
    for rank in job:
        for what in ("settings", "step"):
            start = f"UndriftError: All ranks need to begin with the same {what}, got another on"
            assert rank["disagreement"][what].startswith(f"{start} rank {len(job) - 1} than on")


REFUSALS = {
    "torus": "The torus needs sides whose product is the number of workers, {world}, got '3x3'.",
    "segments": "EFSignState needs a route without segments, got 'segmented-ring'; take",
    "route": "allreduce needs it to be one of ring, ",
    "server_lr": "MarsitState needs server_lr > 0, a finite number, got 0.0.",
    "period": "MarsitState needs period >= 1, a whole number or None, got 0; leave",
    "seed": "SSDMState needs a whole seed, got 0.5.",
    "beta": "SSDMState needs beta in [0, 1), got 1.0.",
    "code": "SignState needs code to be one of fixed, gamma, delta, omega, got 'gama'; the",
    "hook": "EFSignState.load_state_dict needs the state of hook 'error-feedback sign', got 'marsi",
    "world": "MarsitState.load_state_dict needs a state of world size {world}, got {more}; begin",
    "rank": "MarsitState.load_state_dict needs the state of rank {rank}, got {next}; save and load",
    "keys": "MarsitState.load_state_dict needs what state_dict() returned, got ['step'].",
    "kind": "MarsitState.load_state_dict needs what state_dict() returned, got 'list'.",
    "shape": "MarsitState needs a state of this model, shape [9, 17] for parameter 0 from its end"
    ", got [9, 18]; load it beside the model it was saved with.",
    "fewer": "MarsitState needs a state of this model, shape [17, 6] for parameter 4 from its end"
    ", got 4 parameters; load",
    "more": "MarsitState needs a state of this model, 5 parameters, got 6; load",
    "two models": "MarsitState needs to belong to one model, got a parameter of shape [9, 17] that"
    " its first step did not have; make a state for each model.",
    "other hook": "The hook needs a MarsitState, got 'SignState'.",
    "sparse": "The hook needs dense, real gradients, got 'torch.float32, torch.sparse_coo'.",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refusals(job, what):
    world = len(job)
    for rank, results in enumerate(job):
        kind = "UndriftError" if what == "two models" else "ValueError"
        expected = REFUSALS[what].format(
            world=world, more=world + 1, rank=rank, next=(rank + 1) % world
        )
        assert results["refusals"][what].startswith(f"{kind}: {expected}")


def test_nothing_else_is_refused(job):
    for results in job:
        assert set(results["refusals"]) == {*REFUSALS, "no error"}
        assert results["refusals"]["no error"] == "no error"
        assert results["before the group"] == "no error"  # whose size is not known yet


def test_a_route_is_checked_at_the_first_step_where_there_was_no_group_before(job):
    for results in job:
        assert results["refusals"]["torus"] == results["late torus"]


# The example


def test_the_example_learns_and_sends_one_bit(job):
    world = len(job)
    results = [rank["example"] for rank in job]
    assert all(result["accuracy"] > 0.9 for result in results)
    assert same([result["digest"] for result in results])
    bits = 2 * (world - 1) / world
    headers = 2 * (world - 1) * 8 * HEADER / results[0]["size"]  # in one bucket
    for result in results:
        assert bits + headers < result["bits"] < 1.03 * bits + headers
    assert f"{world} processes: accuracy 0.9" in results[0]["printed"]
    assert not any(result["printed"] for result in results[1:])


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_the_example_runs_under_torchrun(world):
    options = ["--standalone", "--nproc-per-node", str(world)]
    printed = run("-m", "torch.distributed.run", *options, str(EXAMPLE))
    assert f"{world} processes: accuracy 0.9" in printed
