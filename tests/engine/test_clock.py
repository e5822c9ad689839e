"""Devices in a run: the simulated clock, work under a deadline, clients that fail or are away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undrift as ud
from tests.support.problems import task_of
from undrift.engine.clock import gradient_flops
from undrift.fleet import Device, Fleet, Jitter, Stragglers, Trace
from undrift.topology import ring

FEATURES, CLASSES = 6, 3
PARAMETERS = FEATURES * CLASSES + CLASSES
# Forward and the weights' gradient, a multiplication and an addition each; torch counts products
# of matrices only, and the inputs' gradient is not taken.
FLOPS = 2 * 2 * FEATURES * CLASSES

SLOW = Device("slow", speed=1e3, up=8e2, down=1.6e3, latency=0.5)
FAST = Device("fast", speed=4e3, up=8e3, down=8e3, latency=0.1)
MIXED = (FAST, SLOW, FAST, SLOW)


def pairs(sizes: Sequence[int] = (8, 12, 9, 5)) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(n, FEATURES, generator=generator), torch.arange(n) % CLASSES) for n in sizes
    ]


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def run_on_devices(algorithm: Any = None, **options: Any) -> ud.Run:
    options.setdefault("work", ud.Steps([2, 3, 1, 4]))
    options.setdefault("rounds", 3)
    options.setdefault("batch_size", 4)
    options.setdefault("fleet", Fleet(MIXED))
    return ud.simulate(
        algorithm or ud.FedAvg(lr=0.1),
        options.pop("model", None) or linear(),
        options.pop("clients", None) or ud.Clients(pairs()),
        loss=nn.functional.cross_entropy,
        **options,
    )


def played(*arguments: Any, **options: Any) -> tuple[ud.Run, list[ud.Record]]:
    run = run_on_devices(*arguments, **options)
    return run, list(run)


def seconds(device: Device, samples: float, vectors: float = 1, trips: int = 2) -> float:
    """By hand: a vector of float32 up and down, trips of latency, and the gradients."""
    carried = 4 * PARAMETERS * vectors * 8
    return (
        carried / device.up + carried / device.down + trips * device.latency
    ) + samples * FLOPS / device.speed


def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    _, (record, *_) = played(fleet=Fleet(MIXED))
    # Steps [2, 3, 1, 4] of 4 samples; client 3 has 5 samples: batches of 4, 1, 4, 1.
    samples = [8, 12, 4, 10]
    each = [seconds(device, n) for device, n in zip(MIXED, samples, strict=True)]
    assert record.simulated_seconds == pytest.approx(max(each))
    busy = [n * FLOPS / device.speed for device, n in zip(MIXED, samples, strict=True)]
    assert record.utilisation == pytest.approx(sum(busy) / 4 / max(each))


def test_without_devices_there_is_no_clock() -> None:
    _, (record, *_) = played(fleet=None)
    assert record.simulated_seconds is None
    assert record.utilisation is None


@pytest.mark.parametrize(
    ("method", "gradients", "vectors", "trips"),
    [("FedSpeed", 2, 1, 2), ("Scaffold", 1, 2, 2), ("FedAvg", 1, 1, 2)],
)
def test_what_a_method_computes_and_sends_costs_time(
    method: str, gradients: int, vectors: int, trips: int
) -> None:
    alike = Fleet((SLOW,) * 4)
    _, (record, *_) = played(getattr(ud, method)(lr=0.1), fleet=alike, work=ud.Steps(1))
    assert record.simulated_seconds == pytest.approx(seconds(SLOW, 4 * gradients, vectors, trips))


def test_a_second_exchange_costs_two_trips_more_and_a_pass_over_the_data() -> None:
    """FedLin asks for the gradient of all local data first, then sends down model and gradient."""
    clients = ud.Clients(pairs((8, 8)))
    two = {"clients": clients, "fleet": Fleet((SLOW, SLOW)), "work": ud.Steps(1)}
    _, (record, *_) = played(ud.FedLin(lr=0.1), **two)
    computed = seconds(SLOW, record.samples / 2, 0, 4)
    carried = 8 * (record.bytes_up / SLOW.up + record.bytes_down / SLOW.down) / 2
    assert record.samples == 2 * (8 + 4)  # all local data, then one batch
    assert record.simulated_seconds == pytest.approx(computed + carried)


def test_stragglers_compute_longer() -> None:
    always = Fleet((SLOW,) * 4, Stragglers(1.0, 5.0))
    _, (slow, *_) = played(fleet=always, work=ud.Steps(1))
    _, (even, *_) = played(fleet=Fleet((SLOW,) * 4), work=ud.Steps(1))
    longer = slow.simulated_seconds - even.simulated_seconds  # type: ignore[operator]
    assert longer == pytest.approx(4 * 4 * FLOPS / SLOW.speed)


def test_the_clock_is_the_same_in_every_mode() -> None:
    fleet = Fleet(MIXED, Jitter(0.5), dropout=0.3, seed=2)
    laps = [
        [(r.simulated_seconds, r.utilisation, r.clients) for r in played(mode=mode, fleet=fleet)[1]]
        for mode in ("loop", "stacked")
    ]
    assert laps[0] == laps[1]


def test_recurrent_layers_are_counted() -> None:
    """Two products of a vector with a matrix for each of four gates, step and layer, and back."""
    model = ud.models.build("char-lstm", shape=(20,), classes=80)
    tokens = torch.zeros(4, 20, dtype=torch.int64)
    counted = gradient_flops(task_of(model), ud.Clients([(tokens, tokens[:, 0])]))
    hidden, embedded, length = 256, 8, 20
    gates = 4 * hidden * (embedded + hidden) + 4 * hidden * (hidden + hidden)
    products = length * gates + hidden * 80
    assert 0.9 < counted / (3 * 2 * products) < 1.1


METHODS = ("FedAvg", "FedSpeed", "FedLin", "Scaffold", "FedaGrac", "FedNova", "FedDyn")


@pytest.mark.parametrize("method", METHODS)
def test_a_deadline_is_kept_and_used(method: str) -> None:
    """With equal batches: everybody ends in time, and the fastest could not make a step more."""
    clients = ud.Clients(pairs((8, 8, 8, 8)))
    algorithm = getattr(ud, method)(lr=0.01)
    options = {"clients": clients, "work": ud.Deadline(7.0), "rounds": 2}
    _, records = played(algorithm, **options)
    for record in records:
        assert record.clients == 4
        assert record.simulated_seconds is not None
        assert record.simulated_seconds <= 7.0 + 1e-9
        step = 2 * 4 * FLOPS / SLOW.speed  # of FedSpeed, two gradients of four samples
        assert record.simulated_seconds > 7.0 - step


def test_steps_under_a_deadline_by_hand() -> None:
    clients = ud.Clients(pairs((8, 8, 8, 8)))
    _, (record, *_) = played(clients=clients, work=ud.Deadline(7.0))
    per_step = 4 * FLOPS
    expected = [int((7.0 - seconds(d, 0)) * d.speed / per_step) for d in MIXED]
    assert min(expected) < max(expected) / 4  # asynchronism as it really arises
    assert record.gradients == sum(expected)


def test_enough_is_enough() -> None:
    clients = ud.Clients(pairs((8, 8, 8, 8)))
    capped = ud.Deadline(7.0, ud.Epochs(10))  # of two steps
    _, (record, *_) = played(clients=clients, work=capped)
    slow = int((7.0 - seconds(SLOW, 0)) * SLOW.speed / (4 * FLOPS))
    assert slow < 20  # the fast stop at ten epochs, the slow at the deadline
    assert record.gradients == 2 * slow + 2 * 20
    assert record.simulated_seconds == pytest.approx(
        seconds(SLOW, slow * 4)
    )  # nobody is waited for


def test_who_cannot_make_a_step_misses_the_round_and_is_waited_for() -> None:
    short = seconds(SLOW, 4) - 0.01  # just not enough for one step of a slow one
    clients = ud.Clients(pairs((8, 8, 8, 8)))
    run, records = played(clients=clients, work=ud.Deadline(short))
    assert [(record.clients, record.missed) for record in records] == [(2, 2)] * 3
    assert [record.simulated_seconds for record in records] == [short] * 3
    fast = ud.Deadline(short)
    cohorts = run_on_devices(clients=clients, work=fast, participation=[[0, 2]] * 3)
    for _ in cohorts:
        pass
    assert torch.equal(run.x, cohorts.x)


@pytest.mark.parametrize("method", ["FedAvg", "Scaffold", "FedDyn", "FedSpeed"])
def test_failing_is_not_having_been_there(method: str) -> None:
    """The run equals one whose cohorts are those who answered; FedDyn's duals need their mass."""
    fleet = Fleet(MIXED, dropout=0.4, seed=1)
    answered = [[i for i in range(4) if not fleet.drops(t, i)] for t in range(4)]
    assert any(len(cohort) < 4 for cohort in answered)
    assert all(answered)
    algorithm = getattr(ud, method)(lr=0.1)
    failing, records = played(algorithm, fleet=fleet, rounds=4)
    without = run_on_devices(algorithm, fleet=None, rounds=4, participation=answered)
    for _ in without:
        pass
    assert [record.clients for record in records] == list(map(len, answered))
    assert torch.equal(failing.x, without.x)


def test_a_round_in_which_everybody_fails_changes_nothing() -> None:
    run = run_on_devices(fleet=Fleet(MIXED, dropout=1.0), work=ud.Deadline(9.0, ud.Steps(2)))
    before = run.x.clone()
    records = list(run)
    assert torch.equal(run.x, before)
    assert [(r.clients, r.gradients, r.bytes_up) for r in records] == [(0, 0, 0)] * 3
    assert [r.simulated_seconds for r in records] == [9.0] * 3
    assert records[-1].loss is not None


def test_only_those_who_are_there_are_asked_and_the_clock_waits_for_them() -> None:
    alike = (SLOW,) * 4
    lap = seconds(SLOW, 4)
    there = Trace({0: [(0, 1)], 1: [(100, 101)], 2: [(100, 100 + 3 * lap)]})
    run, records = played(fleet=Fleet(alike, trace=there), work=ud.Steps(1), rounds=3)
    assert [record.clients for record in records] == [1, 2, 1]
    assert records[0].simulated_seconds == pytest.approx(lap)
    assert records[1].simulated_seconds == pytest.approx(100)  # 100 - lap of waiting, then a lap
    assert run.totals.simulated_seconds == pytest.approx(100 + 2 * lap)
    busy = 4 * FLOPS / SLOW.speed
    assert records[0].utilisation == pytest.approx(busy / lap)
    assert records[1].utilisation == pytest.approx(busy / 100)


def test_answers_without_weight_are_none() -> None:
    fleet = Fleet((SLOW,) * 4, dropout=0.5, seed=3)
    counting = [[i for i in (2, 3) if not fleet.drops(t, i)] for t in range(6)]
    answering = [[i for i in range(4) if not fleet.drops(t, i)] for t in range(6)]
    assert any(all_ and not some for all_, some in zip(answering, counting, strict=True))
    run, records = played(fleet=fleet, weighting=[0, 0, 1, 1], rounds=6)
    heard = [len(a) if c else 0 for a, c in zip(answering, counting, strict=True)]
    assert [record.clients for record in records] == heard
    assert run.x.isfinite().all()


def test_the_clock_waits_for_somebody_with_a_weight() -> None:
    there = Trace({0: [(0, 1000)], 1: [(50, 1000)]})
    fleet = Fleet((SLOW,) * 4, trace=there)
    _, (record, *_) = played(fleet=fleet, weighting=[0, 1, 1, 1], work=ud.Steps(1))
    assert record.simulated_seconds == pytest.approx(50 + seconds(SLOW, 4))
    with pytest.raises(ValueError, match="at least one span"):
        run_on_devices(fleet=Fleet((SLOW,) * 4, trace=Trace({0: [(0, 9)]})), weighting=[0, 1, 1, 1])


def test_devices_in_words() -> None:
    words, fleet = "phone:3,gpu-node:1", Fleet(ud.fleet.parse("phone:3,gpu-node:1", 4))
    assert [r.simulated_seconds for r in played(fleet=words)[1]] == [
        r.simulated_seconds for r in played(fleet=fleet)[1]
    ]


def test_a_deadline_that_a_bad_round_misses_is_a_deadline_still() -> None:
    """Everybody a million times as slow in some rounds: those are void, the others are not."""
    fleets = (Fleet((SLOW,), Stragglers(0.5, 1e6), seed=seed) for seed in range(99))
    fleet = next(fleet for fleet in fleets if fleet.compute_seconds(0, 0, 1.0) > 1)
    slow = [fleet.compute_seconds(0, t, 1.0) > 1 for t in range(4)]
    assert not all(slow)
    clients = ud.Clients(pairs((8,)))
    _, records = played(fleet=fleet, clients=clients, work=ud.Deadline(7.0), rounds=4)
    assert [record.clients for record in records] == [0 if late else 1 for late in slow]


def test_when_nobody_comes_back_the_run_says_so() -> None:
    there = Trace({0: [(0, 1)]})
    run = run_on_devices(fleet=Fleet((SLOW,) * 4, trace=there))
    next(run)
    with pytest.raises(ud.UndriftError, match="nobody comes back"):
        next(run)


def test_a_resumed_run_has_the_same_clock(tmp_path: Path) -> None:
    there = Trace({i: [(10 * i, 10 * i + 15)] for i in range(4)}, period=40)
    fleet = Fleet(MIXED, Jitter(0.3), dropout=0.2, trace=there, seed=4)
    whole, records = played(fleet=fleet, rounds=6)
    half = run_on_devices(fleet=fleet, rounds=3, checkpoint=tmp_path)
    for _ in half:
        pass
    rest = run_on_devices(fleet=fleet, rounds=6, resume=tmp_path)
    again = list(rest)
    assert [r.simulated_seconds for r in again] == [r.simulated_seconds for r in records[3:]]
    assert rest.totals.simulated_seconds == pytest.approx(whole.totals.simulated_seconds)
    assert torch.equal(rest.x, whole.x)
    with pytest.raises(ud.CheckpointError, match="fleet"):
        run_on_devices(fleet=Fleet(MIXED), rounds=6, resume=tmp_path)


def test_the_clock_of_a_ring_all_reduce() -> None:
    """2 (m - 1) hops, each of a quarter of the vector, one after the other."""
    clients = ud.Clients(pairs((8, 8, 8, 8)))
    alike = Fleet((SLOW,) * 4)
    run = run_on_devices(ud.PSGD(lr=0.1), clients=clients, fleet=alike, work=ud.Steps(1))
    record = next(run)
    assert isinstance(record, ud.PeerRecord)
    carried = 8 * record.bytes_per_worker / SLOW.up
    assert record.hops == 6
    expected = 4 * FLOPS / SLOW.speed + carried + 6 * SLOW.latency
    assert record.simulated_seconds == pytest.approx(expected)


def test_the_clock_of_gossip_waits_for_the_slowest() -> None:
    """Two neighbours: sending is the bottleneck of the slow one, whatever the fast ones do."""
    clients = ud.Clients(pairs((8, 8, 8, 8)))
    options = {"clients": clients, "topology": ring(4), "work": ud.Steps(2)}
    record = next(run_on_devices(ud.LDSGD(lr=0.1), fleet=Fleet(MIXED), **options))
    carried = 2 * 4 * PARAMETERS * 8 / SLOW.up
    expected = 2 * 4 * FLOPS / SLOW.speed + carried + SLOW.latency
    assert record.simulated_seconds == pytest.approx(expected)


def test_the_gradient_a_peer_starts_from_takes_its_time() -> None:
    clients = ud.Clients(pairs((8, 8, 8, 8)))
    options = {"clients": clients, "topology": ring(4), "work": ud.Steps(2)}
    first, second, _ = run_on_devices(ud.NetFleet(lr=0.1), fleet=Fleet((SLOW,) * 4), **options)
    assert first.samples - second.samples == 4 * 4  # one batch each
    longer = first.simulated_seconds - second.simulated_seconds
    assert longer == pytest.approx(4 * FLOPS / SLOW.speed)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no devices": ({"fleet": None, "work": ud.Deadline(1.0)}, "the clients' devices"),
    "too short": ({"work": ud.Deadline(1e-6)}, "at least one step on one device"),
    "too many": ({"work": ud.Deadline(1e9)}, "at most 100000 steps"),
    "too many for one not asked": (
        {
            "work": ud.Deadline(7.0),
            "fleet": Fleet((SLOW, SLOW, SLOW, replace(FAST, speed=1e12))),
            "participation": ud.FixedSize(1),
        },
        "at most 100000 steps",
    ),
    "cohorts": (
        {"fleet": Fleet(MIXED, trace=Trace({0: [(0, 9)]})), "participation": [[0]] * 3},
        "cohorts drawn among those",
    ),
    "too few": ({"fleet": Fleet((FAST,))}, "one device for each of 4 clients"),
    "a list": ({"fleet": [FAST] * 4}, "or as a Fleet"),
    "twice": (
        {
            "fleet": Fleet(MIXED, trace=Trace({0: [(0, 1)]})),
            "clients": ud.Clients(pairs(), availability=ud.Resampled(2, 1)),
        },
        "by rounds or by a trace",
    ),
    "trace": ({"fleet": Fleet(MIXED, trace=Trace({7: [(0, 1)]}))}, "clients among"),
}
PEERS: dict[str, tuple[dict[str, Any], str]] = {
    "deadline": ({"work": ud.Deadline(1.0)}, "a fixed number of steps"),
    "dropout": ({"fleet": Fleet(MIXED, dropout=0.1)}, "neither fail nor leave"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        run_on_devices(**options)


@pytest.mark.parametrize("case", PEERS)
def test_bad_input_of_peers(case: str) -> None:
    options, message = PEERS[case]
    with pytest.raises(ValueError, match=message):
        run_on_devices(ud.PSGD(lr=0.1), **{"work": ud.Steps(1), **options})


def test_bad_deadlines() -> None:
    with pytest.raises(ValueError, match="seconds > 0"):
        ud.Deadline(0)
    with pytest.raises(ValueError, match="at_most"):
        ud.Deadline(1.0, ud.Deadline(1.0))
