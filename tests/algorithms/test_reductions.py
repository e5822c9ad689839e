"""Method A at parameter p is method B: on quadratics and on a net, clients looped and stacked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import undrift as ud
from tests.algorithms.reductions import (
    PARTIAL,
    ROUNDS,
    SAME_ANYWHERE,
    STEPS,
    TIGHT,
    UNEQUAL,
    Plain,
    Runner,
    four_copies,
    on_the_stacked_net,
    orthogonal,
    quadratics,
    rotated,
    shifted,
    start_of,
    trajectory_end,
    vector,
)
from tests.support.runs import distance, on_net, on_quadratics
from undrift import FedACG, FedaGrac, FedAvg, FedProx, FedSpeed, Scaffold
from undrift.testing import small_net

METHODS = [
    FedAvg(lr=0.3),
    FedProx(lr=0.3, mu=0.7),
    Scaffold(lr=0.3),
    Scaffold(lr=0.3, option="I"),
    FedSpeed(lr=0.3, lam=2.0),
    FedSpeed(lr=0.3, lam=2.0, average="participants"),
    FedACG(lr=0.3, lam=0.6, beta=0.4),
    FedaGrac(lr=0.3),
    FedaGrac(lr=0.3, lam=0.5, scheme="first", local_reference="sent", nu_scope="all"),
]


@pytest.fixture(params=["quadratics-loop", "quadratics-stacked", "net-loop", "net-stacked"])
def on(request: pytest.FixtureRequest) -> Runner:
    """Runs an algorithm for three rounds; the net has ragged minibatches and dropout."""
    task, mode = request.param.split("-")

    def run(algorithm: Any, **options: Any) -> ud.Run:
        options = {"rounds": ROUNDS, "work": ud.Steps(STEPS), **options}
        if task == "net":
            return on_net(algorithm, mode=mode, **options)
        return on_quadratics(algorithm, quadratics(), mode=mode, **options)

    return run


@pytest.mark.parametrize("name", SAME_ANYWHERE)
@pytest.mark.wide(daily=on_the_stacked_net)
def test_same_for_any_participation_and_weights(name: str, on: Runner) -> None:
    one, other = SAME_ANYWHERE[name]
    options = {"participation": PARTIAL, "weighting": UNEQUAL}
    assert distance(on(one, **options).x, on(other, **options).x) < TIGHT


def test_fedagrac_without_calibration_is_fedavg_to_the_bit(on: Runner) -> None:
    assert torch.equal(on(FedaGrac(lr=0.3, lam=0)).x, on(FedAvg(lr=0.3)).x)


@pytest.mark.parametrize("steps", [4, STEPS], ids=["equal", "unequal"])
def test_fedagrac_avg_is_scaffold_when_all_take_part_with_equal_weights(
    steps: Any, on: Runner
) -> None:
    options = {"work": ud.Steps(steps), "weighting": "uniform"}
    one = on(FedaGrac(lr=0.3, lam=1, scheme="avg"), **options)
    other = on(Scaffold(lr=0.3, option="II"), **options)
    assert distance(one.x, other.x) < TIGHT
    assert distance(one.state.nu, other.state.c) < TIGHT


@pytest.mark.parametrize("pair", [("fedagrac", "avg"), ("reverse", "first")], ids="=".join)
def test_nobody_is_fast_when_all_run_the_same_number_of_steps(pair: Any, on: Runner) -> None:
    """With weights whose sum rounds, so that the mean of the K_i must not come out below K."""
    options = {"work": ud.Steps(3), "participation": PARTIAL, "weighting": [0.7, 0.1, 0.1, 0.3]}
    one, other = (on(FedaGrac(lr=0.3, scheme=scheme), **options) for scheme in pair)
    assert distance(one.x, other.x) < TIGHT


def test_schemes_differ_when_steps_do(on: Runner) -> None:
    """Otherwise the test above would prove nothing."""
    standard = on(FedaGrac(lr=0.3)).x
    for scheme in ("avg", "first", "reverse"):
        assert distance(standard, on(FedaGrac(lr=0.3, scheme=scheme)).x) > 1e-5


def test_fedspeed_aggregates_alike_when_all_take_part(on: Runner) -> None:
    one, other = (
        on(FedSpeed(lr=0.3, lam=2.0, average=rule), weighting=UNEQUAL)
        for rule in ("all", "participants")
    )
    assert distance(one.x, other.x) < TIGHT
    for i in range(4):
        assert distance(one.client_states[i], other.client_states[i]) < TIGHT


FIRST_ROUNDS = [
    (Scaffold(lr=0.3), FedAvg(lr=0.3)),
    (Scaffold(lr=0.3, option="I", server_lr=0.5), FedAvg(lr=0.3, server_lr=0.5)),
    (FedaGrac(lr=0.3), FedAvg(lr=0.3)),
    (FedACG(lr=0.3, lam=0.6, beta=0.7), FedProx(lr=0.3, mu=0.7)),
]


@pytest.mark.parametrize(
    ("one", "other"), FIRST_ROUNDS, ids=["Scaffold", "Scaffold-I", "FedaGrac", "FedACG"]
)
@pytest.mark.wide(daily=on_the_stacked_net)
def test_first_round_has_no_correction_yet(one: Any, other: Any, on: Runner) -> None:
    options = {"participation": [[0, 1, 3], [0, 1]], "weighting": UNEQUAL}
    assert distance(on(one, rounds=1, **options).x, on(other, rounds=1, **options).x) < TIGHT
    assert distance(on(one, rounds=2, **options).x, on(other, rounds=2, **options).x) > 1e-4


@pytest.mark.parametrize("cohort", [[0, 1, 2, 3], [1, 3]], ids=["full", "partial"])
@pytest.mark.parametrize("average", ["all", "participants"])
@pytest.mark.wide(daily=on_the_stacked_net)
def test_first_round_of_fedspeed_is_fedprox_with_the_server_moving_further(
    average: Any, cohort: list[int], on: Runner
) -> None:
    """Twice as far, but only by the cohort's share of the duals if these are everybody's."""
    speed, prox = {}, {}
    options = {"rounds": 1, "participation": [cohort], "weighting": UNEQUAL}
    one = on(
        FedSpeed(lr=0.3, lam=2.5, alpha=0, average=average),
        tap=lambda up: speed.update({up.client: up.upload}),
        **options,
    )
    other = on(
        FedProx(lr=0.3, mu=0.4), tap=lambda up: prox.update({up.client: up.upload}), **options
    )
    assert sorted(speed) == sorted(prox) == cohort
    sent = 2 if average == "participants" else 1
    moved = 2 if average == "participants" else 1 + sum(UNEQUAL[i] for i in cohort)
    for i in cohort:
        assert distance(speed[i], sent * prox[i]) < TIGHT
        assert distance(one.client_states[i], -prox[i] / 2.5) < TIGHT
    x0 = on(FedProx(lr=0.3), rounds=0).x
    assert distance(one.x - x0, moved * (other.x - x0)) < TIGHT


def test_scaffold_with_one_step_is_fedavg_with_one_step(on: Runner) -> None:
    """Both are then gradient descent on the same minibatches."""
    options = {"work": ud.Steps(1), "weighting": UNEQUAL}
    one = on(Scaffold(lr=0.3, server_lr=0.7), **options)
    assert distance(one.x, on(FedAvg(lr=0.3, server_lr=0.7), **options).x) < TIGHT


# Against torch.optim: whole local data and no dropout, since it cannot see our batches and masks.


@pytest.fixture(params=["quadratics-loop", "quadratics-stacked", "net-loop", "net-stacked"])
def plain(request: pytest.FixtureRequest) -> Plain:
    return Plain(*request.param.split("-"))


@pytest.mark.parametrize("method", [FedAvg, Scaffold])
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_one_step_of_everybody_is_gradient_descent(
    method: Any, server_lr: float, plain: Plain
) -> None:
    run = plain.run(
        method(lr=0.5, server_lr=server_lr), rounds=5, work=ud.Steps(1), weighting=UNEQUAL
    )
    expected = plain.by_hand(torch.optim.SGD, 5, UNEQUAL, lr=0.5 * server_lr)
    assert distance(run.x, expected) < TIGHT


@pytest.mark.parametrize("rounds", [1, 6])
def test_one_step_of_fedacg_is_nesterov(rounds: int, plain: Plain) -> None:
    """The look-ahead, not the model, is what torch's optimiser holds."""
    run = plain.run(
        FedACG(lr=0.2, lam=0.7, beta=0), rounds=rounds, work=ud.Steps(1), weighting=UNEQUAL
    )
    nesterov = {"momentum": 0.7, "nesterov": True, "lr": 0.2}
    expected = plain.by_hand(torch.optim.SGD, rounds, UNEQUAL, **nesterov)
    assert distance(run.x + 0.7 * run.state.m, expected) < TIGHT
    assert distance(run.x, expected) > 1e-3


RULES = {
    "sgd": (ud.SGD(), torch.optim.SGD, {}),
    "momentum": (ud.Momentum(0.8), torch.optim.SGD, {"momentum": 0.8}),
    "nesterov": (
        ud.Momentum(0.8, nesterov=True),
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True},
    ),
    "adam": (
        ud.Adam(0.7, 0.9, 1e-3),
        torch.optim.Adam,
        {"betas": (0.7, 0.9), "eps": 1e-3},
    ),
    "adam-default": (ud.Adam(), torch.optim.Adam, {}),
}


@pytest.mark.parametrize("rule", RULES)
def test_one_client_for_one_round_runs_the_optimiser(rule: str, plain: Plain) -> None:
    mine, optimiser, options = RULES[rule]
    alone = ud.Clients([plain.clients()[1]])
    run = plain.run(FedAvg(lr=0.1, rule=mine), alone, rounds=1, work=ud.Steps(7))
    expected = plain.by_hand(optimiser, 7, [1.0], alone, lr=0.1, **options)
    assert distance(run.x, expected) < TIGHT


def test_a_client_split_into_two_halves_changes_nothing(plain: Plain) -> None:
    """Two copies with half the weight each."""
    pairs = [plain.clients()[i] for i in range(4)]
    whole = plain.run(FedAvg(lr=0.3), rounds=ROUNDS, work=ud.Steps(STEPS), weighting=UNEQUAL)
    halves = plain.run(
        FedAvg(lr=0.3),
        ud.Clients([*pairs, pairs[0]]),
        rounds=ROUNDS,
        work=ud.Steps([*STEPS, STEPS[0]]),
        weighting=[UNEQUAL[0] / 2, *UNEQUAL[1:], UNEQUAL[0] / 2],
    )
    assert distance(whole.x, halves.x) < TIGHT


@pytest.mark.parametrize(
    "algorithm",
    [m for m in METHODS if isinstance(m, FedProx | FedSpeed | FedACG)],
    ids=repr,
)
@pytest.mark.wide(daily=lambda case: case["plain"] == "net-stacked")
def test_identical_clients_are_one_client_where_the_correction_stays(
    algorithm: Any, plain: Plain
) -> None:
    many, one = four_copies(plain)
    options = {"rounds": ROUNDS, "work": ud.Steps(3)}
    expected = plain.run(algorithm, one, **options).x
    actual = plain.run(algorithm, many, **options, weighting=UNEQUAL).x
    assert distance(actual, expected) < TIGHT


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(lr=0.3),
        Scaffold(lr=0.3),
        Scaffold(lr=0.3, option="I"),
        FedaGrac(lr=0.3),
        FedaGrac(lr=0.3, lam=0.5, scheme="avg", nu_scope="all"),
        FedaGrac(lr=0.3, scheme="first", local_reference="sent"),
    ],
    ids=repr,
)
@pytest.mark.wide(daily=lambda case: case["plain"] == "net-stacked")
def test_identical_clients_are_sgd_where_the_correction_vanishes(
    algorithm: Any, plain: Plain
) -> None:
    many, one = four_copies(plain)
    run = plain.run(algorithm, many, rounds=ROUNDS, work=ud.Steps(3), weighting=UNEQUAL)
    expected = plain.by_hand(torch.optim.SGD, 3 * ROUNDS, [1.0], one, lr=0.3)
    assert distance(run.x, expected) < TIGHT


# Limits of the engine's own arguments.


@pytest.mark.parametrize("algorithm", METHODS, ids=repr)
def test_no_rounds_leave_the_start(algorithm: Any, on: Runner) -> None:
    run = on(algorithm, rounds=0)
    assert torch.equal(run.x, start_of(run.model))
    expected = quadratics().x0 if len(run.x) == 3 else start_of(small_net())
    assert torch.equal(run.x, expected)


@pytest.mark.parametrize("method", [FedAvg, Scaffold])
def test_server_that_does_not_move_leaves_the_start(method: Any, on: Runner) -> None:
    x0 = on(method(lr=0.3), rounds=0).x
    assert torch.equal(on(method(lr=0.3, server_lr=0), participation=PARTIAL).x, x0)


@pytest.mark.parametrize("algorithm", [FedAvg(lr=0.3), Scaffold(lr=0.3)], ids=repr)
def test_a_count_of_all_clients_is_everybody(algorithm: Any, on: Runner) -> None:
    everybody = on(algorithm, participation=1.0).x
    assert torch.equal(on(algorithm, participation=4).x, everybody)
    assert torch.equal(on(algorithm, participation=[[0, 1, 2, 3]] * ROUNDS).x, everybody)


# Symmetries of the quadratics.


@pytest.mark.parametrize("algorithm", METHODS, ids=repr)
def test_shift_moves_the_trajectory(algorithm: Any) -> None:
    problem, v = quadratics(), 5 * vector(8)
    x = trajectory_end(algorithm, problem)
    moved = trajectory_end(algorithm, shifted(problem, v))
    assert distance(x, problem.x0) > 1e-2
    assert distance(x + v, moved) < TIGHT


@pytest.mark.parametrize("algorithm", METHODS, ids=repr)
def test_rotation_turns_the_trajectory(algorithm: Any) -> None:
    problem, Q = quadratics(), orthogonal()
    x = trajectory_end(algorithm, problem)
    turned = trajectory_end(algorithm, rotated(problem, Q))
    assert distance(x, turned) > 1e-2
    assert distance(Q @ x, turned) < TIGHT


def test_adam_knows_its_coordinates() -> None:
    """A coordinate-wise rule shifts like the others but does not turn."""
    problem, v, Q = quadratics(), 5 * vector(8), orthogonal()
    adam = FedAvg(lr=0.1, rule=ud.Adam())
    x = trajectory_end(adam, problem)
    moved = trajectory_end(adam, shifted(problem, v))
    turned = trajectory_end(adam, rotated(problem, Q))
    assert distance(x + v, moved) < TIGHT
    assert distance(Q @ x, turned) > 1e-2
