"""FedCM, FedDyn, FedPD, FedADMM and FedDC: reductions, fixed points, invariants, costs, defects.

The quadratics start away from zero, so that y and y - x cannot be confused, and fixed points are
checked under unequal weights too, where a mean of duals with 1 / N would end elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from tests.algorithms.boxes.cases import ALL
from tests.algorithms.boxes.feddyn import box as feddyn_box
from tests.algorithms.boxes.feddyn import compare as compare_with_feddyn_box
from tests.algorithms.reductions import Runner, on_the_stacked_net
from tests.support.problems import From, bed, gradients, pair_of_five, weighted_sum
from tests.support.runs import distance, finished, on_net, on_quadratics, start_on_quadratics
from undrift import FedAvg, FedProx, FedSpeed, Scaffold, testing, tree
from undrift.algorithms.fedadmm import FedADMM
from undrift.algorithms.fedcm import FedCM
from undrift.algorithms.feddc import FedDC, FedDCDown, FedDCServer
from undrift.algorithms.feddyn import FedDyn, FedDynServer
from undrift.algorithms.fedpd import FedPD, FedPDClient
from undrift.core import Cohort, Loop, Objective, Vector
from undrift.testing import small_clients, small_net

UNIFORM = [0.2] * 5
UNEQUAL = [0.5, 0.2, 0.15, 0.1, 0.05]
WORK = [3, 1, 2, 2, 1]

weights = pytest.mark.parametrize("w", [UNIFORM, UNEQUAL], ids=["uniform", "unequal"])
work = pytest.mark.parametrize("k", [3, WORK], ids=["equal-K", "unequal-K"])


def quadratics(x0: Sequence[float] = (0.7, -1.1, 0.4), **options: Any) -> From:
    problem = bed(condition=2.5, **options)
    return From(problem.clients, problem.A, problem.b, torch.tensor(x0, dtype=torch.float64))


PROBLEM = quadratics()
A, B, START = PROBLEM.A, PROBLEM.b, PROBLEM.x0
N, D = B.shape
EYE = torch.eye(D, dtype=A.dtype)


def unequal_run(
    algorithm: Any,
    *,
    rounds: int,
    k: int | Sequence[int] = WORK,
    w: Sequence[float] = UNEQUAL,
    problem: ud.data.Quadratics = PROBLEM,
    **options: Any,
) -> ud.Run:
    """Return a run before its first round, with unequal work and weights."""
    options = {"work": ud.Steps(k), "weighting": w, "mode": "loop", **options}
    return start_on_quadratics(algorithm, problem, rounds=rounds, **options)


def unequal_end(algorithm: Any, **options: Any) -> ud.Run:
    """Return such a run after its last round."""
    return finished(unequal_run(algorithm, **options))


def learnt(algorithm: Any, state: Any) -> Tensor:
    """What a client has learnt of its gradient, in gradient units."""
    if isinstance(algorithm, FedPD | FedADMM):
        return -state.lam
    return state.G - algorithm.alpha * state.h if isinstance(algorithm, FedDC) else state


def duals(run: ud.Run) -> Tensor:
    """(N, D) the same of all clients; zero if never seen."""
    states, zero = run.client_states, torch.zeros_like(run.x)
    count = len(run._executor.planner.census)
    return torch.stack(
        [learnt(run.algorithm, states[i]) if i in states else zero for i in range(count)]
    )


FIVE = [FedCM(lr=0.1), FedDyn(lr=0.1), FedPD(lr=0.1, p=0.3), FedADMM(lr=0.1), FedDC(lr=0.1)]


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
def test_contract_with_silent_passes(check: Any) -> None:
    check(FedPD(lr=0.1, p=0.3))


@pytest.mark.parametrize(
    "check", [testing.check_stacked_equals_loop, testing.check_resume], ids=["stacked", "resume"]
)
def test_a_client_of_fedpd_may_hold_no_model(check: Any) -> None:
    check(FedPD(lr=0.1, p=0.3, start="server"))


# Reductions, on quadratics and on a net with ragged minibatches and dropout.

PARTIAL = [[1, 3], [0, 2, 3], [1, 0]]
FOUR = [0.4, 0.1, 0.2, 0.3]


@pytest.fixture(params=["quadratics-loop", "quadratics-stacked", "net-loop", "net-stacked"])
def on(request: pytest.FixtureRequest) -> Runner:
    """Three rounds of four clients with unequal work and weights."""
    task, mode = request.param.split("-")
    problem = quadratics(clients=4, samples=[5, 9, 4, 7], seed=1)

    def run(algorithm: Any, **options: Any) -> ud.Run:
        options = {"rounds": 3, "work": ud.Steps([2, 4, 1, 3]), "weighting": FOUR, **options}
        if task == "net":
            return on_net(algorithm, mode=mode, **options)
        return on_quadratics(algorithm, problem, mode=mode, **options)

    return run


class WithoutCorrection(FedDC):
    """FedDC whose clients see no G and no G_i: what is left is its drift variable."""

    def local(self, down: FedDCDown, client: Any, steps: Loop) -> Any:
        zero = torch.zeros_like(down.x)
        return super().local(down._replace(G=zero), client._replace(G=zero), steps)


class WithoutDrift(FedDC):
    """FedDC whose server ignores the drifts; with a vanishing alpha so do the clients."""

    def update(self, server: FedDCServer, mean: Any, cohort: Cohort) -> FedDCServer:
        return super().update(server, mean, cohort)._replace(x=server.x + mean.x)


SAME_ANYWHERE = {
    "FedCM(alpha=1) = FedAvg": (FedCM(lr=0.3, alpha=1), FedAvg(lr=0.3)),
    "FedDyn = FedSpeed without perturbation": (
        FedDyn(lr=0.3, alpha=0.4),
        FedSpeed(lr=0.3, lam=2.5, perturbation=False),
    ),
    "FedDyn = FedSpeed(alpha=0)": (
        FedDyn(lr=0.3, alpha=0.4),
        FedSpeed(lr=0.3, lam=2.5, alpha=0),
    ),
    "FedPD(p=0) = FedSpeed over participants": (
        FedPD(lr=0.3, eta=2.5, start="server"),
        FedSpeed(lr=0.3, lam=2.5, perturbation=False, average="participants"),
    ),
    "FedDC without correction = FedDyn": (
        WithoutCorrection(lr=0.3, alpha=0.4),
        FedDyn(lr=0.3, alpha=0.4),
    ),
    "FedDC without drift = Scaffold": (WithoutDrift(lr=0.3, alpha=1e-13), Scaffold(lr=0.3)),
}


@pytest.mark.parametrize("name", SAME_ANYWHERE)
@pytest.mark.wide(daily=on_the_stacked_net)
def test_same_for_any_participation_and_weights(name: str, on: Runner) -> None:
    one, other = SAME_ANYWHERE[name]
    assert distance(on(one, participation=PARTIAL).x, on(other, participation=PARTIAL).x) < 1e-10


def test_fedcm_with_alpha_one_is_fedavg_to_the_bit(on: Runner) -> None:
    options = {"participation": PARTIAL}
    assert torch.equal(on(FedCM(lr=0.3, alpha=1), **options).x, on(FedAvg(lr=0.3), **options).x)


FAMILY = [
    FedSpeed(lr=0.3, lam=2.5, perturbation=False),
    FedADMM(lr=0.3, rho=0.4),
    FedPD(lr=0.3, eta=2.5, start="server"),
]


@pytest.mark.parametrize("other", FAMILY, ids=lambda a: type(a).__name__)
def test_feddyn_has_many_names_when_all_take_part(other: Any, on: Runner) -> None:
    one, other = on(FedDyn(lr=0.3, alpha=0.4)), on(other)
    assert distance(one.x, other.x) < 1e-10
    assert distance(duals(one), duals(other)) < 1e-10


@pytest.mark.parametrize("other", FAMILY[1:], ids=lambda a: type(a).__name__)
def test_the_names_part_when_some_are_absent(other: Any, on: Runner) -> None:
    """Otherwise the test above would prove little: they differ in whose duals the server takes."""
    one = on(FedDyn(lr=0.3, alpha=0.4), participation=PARTIAL)
    assert distance(one.x, on(other, participation=PARTIAL).x) > 1e-3


def test_every_part_of_feddc_matters(on: Runner) -> None:
    x = on(FedDC(lr=0.3, alpha=0.4)).x
    assert distance(x, on(WithoutCorrection(lr=0.3, alpha=0.4)).x) > 1e-4
    assert distance(x, on(WithoutDrift(lr=0.3, alpha=0.4)).x) > 1e-4


def test_fedpd_starts_from_its_own_model_unless_told(on: Runner) -> None:
    own, server = (on(FedPD(lr=0.3, eta=2.5, start=s), rounds=2) for s in ("own", "server"))
    assert distance(own.x, server.x) > 1e-4


# One local step of FedCM.


@weights
def test_one_step_of_fedcm_is_gradient_descent_with_averaged_momentum(w: Sequence[float]) -> None:
    run = unequal_run(FedCM(lr=0.4, alpha=0.3), rounds=6, k=1, w=w)
    x, v = START, torch.zeros(D, dtype=A.dtype)
    for _ in run:
        v = 0.3 * weighted_sum(w, gradients(PROBLEM, x)) + 0.7 * v
        x = x - 0.4 * v
        assert distance(run.x, x) < 1e-13
        assert distance(run.state.m, v) < 1e-13


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_one_step_of_fedcm_on_a_net(mode: str) -> None:
    """The whole local data and no dropout, since autograd by hand cannot see our masks."""
    model, clients = small_net(dropout=0), small_clients()
    run = on_net(
        FedCM(lr=0.4, alpha=0.3),
        mode=mode,
        model=small_net(dropout=0),
        work=ud.Steps(1),
        batch_size=None,
        weighting=FOUR,
    )
    v = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(4):
        model.zero_grad()
        for weight, (inputs, targets) in zip(FOUR, (clients[i] for i in range(4)), strict=True):
            (weight * nn.functional.cross_entropy(model(inputs), targets)).backward()
        with torch.no_grad():
            for n, p in enumerate(model.parameters()):
                v[n] = 0.3 * p.grad + 0.7 * v[n]  # type: ignore[operator]
                p -= 0.4 * v[n]
    assert distance(run.x, nn.utils.parameters_to_vector(model.parameters()).detach()) < 1e-10


def test_weight_decay_of_fedcm_is_weighed_by_alpha() -> None:
    run = unequal_end(FedCM(lr=0.4, alpha=0.3), rounds=3, k=1, weight_decay=0.5)
    x, v = START, torch.zeros(D, dtype=A.dtype)
    for _ in range(3):
        v = 0.3 * (weighted_sum(UNEQUAL, gradients(PROBLEM, x)) + 0.5 * x) + 0.7 * v
        x = x - 0.4 * v
    assert distance(run.x, x) < 1e-13


# The first round, before there are duals or momenta.


def first_uploads(on: Runner, algorithm: Any) -> tuple[Tensor, dict[int, Any]]:
    """How far the server moved, and what each of three clients sent."""
    sent: dict[int, Any] = {}
    options = {"participation": [[0, 1, 3]], "tap": lambda up: sent.update({up.client: up.upload})}
    x0 = on(algorithm, rounds=0).x
    return on(algorithm, rounds=1, **options).x - x0, sent


@pytest.mark.parametrize(
    ("algorithm", "sent", "moved"),
    [  # in units of FedProx's; the mass of the cohort is 0.4 + 0.1 + 0.3
        (FedDyn(lr=0.3, alpha=0.4), 1, 1.8),
        (FedSpeed(lr=0.3, lam=2.5, alpha=0), 1, 1.8),
        (FedDC(lr=0.3, alpha=0.4), 1, 1.8),
        (FedPD(lr=0.3, eta=2.5, start="server"), 2, 2),
        (FedPD(lr=0.3, eta=2.5, start="own"), 2, 2),
        (FedADMM(lr=0.3, rho=0.4), 2, 1.6),
    ],
    ids=repr,
)
@pytest.mark.wide(daily=on_the_stacked_net)
def test_first_round_is_fedprox_with_the_server_moving_further(
    algorithm: Any, sent: float, moved: float, on: Runner
) -> None:
    move, uploads = first_uploads(on, algorithm)
    prox_move, prox = first_uploads(on, FedProx(lr=0.3, mu=0.4))
    for i in (0, 1, 3):
        upload = uploads[i] if torch.is_tensor(uploads[i]) else uploads[i].x
        assert distance(upload, sent * prox[i]) < 1e-12
    assert distance(move, moved * prox_move) < 1e-12


def test_first_round_of_fedcm_is_fedavg_with_a_shorter_step(on: Runner) -> None:
    options = {"participation": [[0, 1, 3], [0, 1]]}
    one, other = FedCM(lr=0.3, alpha=0.2), FedAvg(lr=0.3 * 0.2)
    assert distance(on(one, rounds=1, **options).x, on(other, rounds=1, **options).x) < 1e-12
    assert distance(on(one, rounds=2, **options).x, on(other, rounds=2, **options).x) > 1e-4


# Trajectories, fixed points and invariants on quadratics.


@weights
@work
@pytest.mark.parametrize(
    "algorithm",
    [FedDyn(lr=0.4, alpha=0.7), FedADMM(lr=0.4, rho=0.7), FedPD(lr=0.4, eta=1 / 0.7)],
    ids=lambda a: type(a).__name__,
)
def test_model_extrapolates_the_means_of_the_local_models(algorithm: Any, w: Any, k: Any) -> None:
    """x_{t+1} = 2 y_t - y_{t-1} for the means y_t of the local models, when everybody is there."""
    run = unequal_run(algorithm, rounds=6, k=k, w=w)
    x, old, before = run.x, duals(run), run.x
    for _ in run:
        y = x - weighted_sum(w, duals(run) - old) / 0.7  # every dual loses 0.7 (y_i - x)
        assert distance(run.x, 2 * y - before) < 1e-13
        x, old, before = run.x, duals(run), y


# Method, rounds for everybody, rounds for two of five.
EXACT = {
    "FedDyn": (FedDyn(lr=0.5, alpha=1.2), 58, 120),
    "FedADMM": (FedADMM(lr=0.5, rho=1.0), 45, 105),
    "FedDC": (FedDC(lr=0.4, alpha=0.6), 42, 176),
}
exact = pytest.mark.parametrize("name", EXACT)


def all_unequal(parameters: Mapping[str, Any]) -> bool:
    """Return whether the clients differ in weight and in work."""
    return parameters["w"] is UNEQUAL and parameters["k"] is WORK


def assert_at_the_optimum(run: ud.Run, w: Sequence[float]) -> None:
    """The model is x*, the duals are the gradients there, and so their mean is zero."""
    optimum = PROBLEM.optimum(w)
    assert distance(run.x, optimum) < 1e-10
    assert distance(duals(run), gradients(PROBLEM, optimum)) < 1e-9
    assert weighted_sum(w, duals(run)).norm() < 1e-9
    assert gradients(PROBLEM, optimum).norm(dim=1).min() > 0.1  # the clients do disagree


@exact
@weights
@work
@pytest.mark.wide(daily=all_unequal)
def test_optimum_is_reached_when_all_take_part(name: str, w: Any, k: Any) -> None:
    algorithm, rounds, _ = EXACT[name]
    assert_at_the_optimum(unequal_end(algorithm, rounds=rounds, k=k, w=w), w)


@exact
@weights
@work
@pytest.mark.wide(daily=all_unequal)
def test_optimum_is_reached_with_two_of_five_clients(name: str, w: Any, k: Any) -> None:
    algorithm, _, rounds = EXACT[name]
    assert_at_the_optimum(
        unequal_end(algorithm, rounds=rounds, k=k, w=w, participation=pair_of_five), w
    )


@weights
@work
def test_fedpd_reaches_the_optimum_when_all_take_part(w: Any, k: Any) -> None:
    """From its own models; from the server's it is FedDyn."""
    assert_at_the_optimum(unequal_end(FedPD(lr=0.5, eta=1.0), rounds=48, k=k, w=w), w)


def test_feddc_with_few_large_steps_diverges_where_feddyn_converges() -> None:
    """Its two corrections add up; fixed here so that the warning in docs/algorithms stays true."""
    options = {"rounds": 90, "w": UNIFORM, "participation": pair_of_five}
    optimum = PROBLEM.optimum()
    assert distance(unequal_end(FedDyn(lr=1.0, alpha=0.6), **options).x, optimum) < 1e-4
    assert distance(unequal_end(FedDC(lr=1.0, alpha=0.6), **options).x, optimum) > 10


@weights
def test_fedpd_stalls_when_some_are_absent(w: Sequence[float]) -> None:
    """At x* what a cohort sends averages to x* - eta mean_S grad F_i(x*), which is not x*."""
    eta, rounds, optimum = 1.0, 80, PROBLEM.optimum(w)
    run = unequal_run(FedPD(lr=0.6, eta=eta), rounds=rounds, k=3, w=w, participation=2)
    errors = [float((run.x - optimum).norm()) for _ in run][rounds // 4 :]
    floors = []
    for cohort in itertools.combinations(range(N), 2):
        share = torch.tensor([w[i] if i in cohort else 0.0 for i in range(N)], dtype=A.dtype)
        floors.append(eta * float((share @ gradients(PROBLEM, optimum) / share.sum()).norm()))
    assert 0.5 < (sum(errors) / len(errors)) / (sum(floors) / len(floors)) < 1.8


@weights
@work
def test_fedcm_converges_to_the_point_of_fedavg_with_a_shorter_step(w: Any, k: Any) -> None:
    lr, alpha = 0.9, 0.5
    run = unequal_end(FedCM(lr=lr, alpha=alpha), rounds=60, k=k, w=w)
    counts = [k] * N if isinstance(k, int) else k

    def fedavg_point(step: float) -> Tensor:
        """x with sum_i w_i (I - (I - step A_i)^K_i) (x - b_i) = 0."""
        powers = (
            torch.linalg.matrix_power(EYE - step * a, n) for a, n in zip(A, counts, strict=True)
        )
        pull = EYE - torch.stack(list(powers))
        return torch.linalg.solve(
            weighted_sum(w, pull), weighted_sum(w, torch.einsum("ijk,ik->ij", pull, B))
        )

    assert distance(run.x, fedavg_point(alpha * lr)) < 1e-10
    assert run.state.m.norm() < 1e-9
    for other in (fedavg_point(lr), PROBLEM.optimum(w)):
        assert distance(run.x, other) > 5e-3


def assert_server_holds_the_means(run: ud.Run, w: Sequence[float]) -> None:
    """Of what the clients hold, or of what they begin with."""
    x0, server = run._x0, run.state
    fresh = run.algorithm.init_client(x0, run.algorithm.broadcast(server))
    states = [run.client_states.get(i, fresh) for i in range(N)]
    if isinstance(run.algorithm, FedDyn):
        held = [(server.h, states)]
    elif isinstance(run.algorithm, FedADMM):
        held = [(server.x, [s.x_hat for s in states])]
    else:
        held = [(server.h, [s.h for s in states]), (server.G, [s.G for s in states])]
    for mine, rows in held:
        assert distance(mine, weighted_sum(w, torch.stack(rows))) < 1e-13
        assert mine.norm() > 1e-3


@weights
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_fedadmm_can_leave_those_never_seen_out_of_the_mean(w: Any, mode: str) -> None:
    algorithm = FedADMM(lr=0.5, rho=1.0, average="seen")
    run = unequal_run(algorithm, rounds=105, w=w, participation=pair_of_five, mode=mode)
    for record in run:
        held = {i: state.x_hat for i, state in run.client_states.items()}
        total = sum(w[i] for i in held)
        mean = sum(w[i] / total * x_hat for i, x_hat in held.items())
        assert distance(run.x, mean) < 1e-12
        assert (len(held) < N) == (record.round < 4)
    assert_at_the_optimum(run, w)


@pytest.mark.parametrize(
    "algorithm",
    [
        FedDyn(lr=0.3, alpha=1.4 / 0.3),
        FedADMM(lr=0.3, rho=1.4 / 0.3),
        FedSpeed(lr=0.3, lam=0.3 / 1.4, perturbation=False),
    ],
    ids=repr,
)
def test_prox_steps_may_overshoot(algorithm: Any) -> None:
    """A step turns y - x into (1 - lr / lam) (y - x), which grows only beyond lr = 2 lam."""
    run = unequal_end(algorithm, rounds=150)
    assert distance(run.x, PROBLEM.optimum(UNEQUAL)) < 1e-7


class UncheckedFedDC(FedDC):
    def __post_init__(self) -> None:
        pass


class UncheckedFedPD(FedPD):
    def __post_init__(self) -> None:
        pass


@pytest.mark.parametrize(
    "algorithm",
    [UncheckedFedDC(lr=0.3, alpha=1.4 / 0.3), UncheckedFedPD(lr=0.3, eta=0.3 / 1.4)],
    ids=repr,
)
def test_prox_steps_of_feddc_and_fedpd_may_not_overshoot(algorithm: Any) -> None:
    """Where FedDyn still converges their states grow, so that both refuse lr > lam."""
    with pytest.raises(ud.DivergenceError, match="far larger than the others"):
        unequal_end(algorithm, rounds=60)


@exact
@weights
def test_server_holds_the_weighted_means_over_all_clients(name: str, w: Sequence[float]) -> None:
    run = unequal_run(EXACT[name][0], rounds=8, w=w, participation=pair_of_five)
    for record in run:
        assert (len(run.client_states) < N) == (record.round < 4)  # the unseen count too
        assert_server_holds_the_means(run, w)


@exact
def test_newcomers_enlarge_the_population(name: str) -> None:
    """Two clients first, a third in round 2, the rest in round 3; not all take part at once."""
    joins = ud.data.Spans([(0, None), (0, None), (2, None), (3, None), (3, None)])
    held = [PROBLEM.clients[i] for i in range(N)]
    growing = replace(PROBLEM, clients=ud.Clients(held, availability=joins))
    cohorts = [[0, 1], [0], [1, 2], [2, 3], *(pair_of_five(t) for t in range(4, 176))]
    run = unequal_run(EXACT[name][0], rounds=176, problem=growing, participation=cohorts)
    for record in run:
        registered = (2, 2, 3, 5)[min(record.round, 4) - 1]
        w = [weight * (i < registered) for i, weight in enumerate(UNEQUAL)]
        if record.round <= 8:
            assert_server_holds_the_means(run, [weight / sum(w) for weight in w])
    assert_at_the_optimum(run, UNEQUAL)


@pytest.mark.parametrize("algorithm", [a for a, *_ in EXACT.values()] + FIVE[:1], ids=repr)
def test_shift_of_everything_shifts_the_trajectory(algorithm: Any) -> None:
    v = torch.tensor([3.0, -2.0, 5.0], dtype=A.dtype)
    moved = ud.Clients(
        [(a, y + (a @ v)[:, None]) for a, y in (PROBLEM.clients[i] for i in range(N))]
    )
    shifted = From(moved, A, B + v, START + v)
    one = unequal_end(algorithm, rounds=4, participation=pair_of_five)
    other = unequal_end(algorithm, rounds=4, participation=pair_of_five, problem=shifted)
    assert distance(one.x, START) > 1e-2
    assert distance(one.x + v, other.x) < 1e-12


# FedPD's silent passes.


@dataclass(frozen=True)
class Passes(FedPD):
    """FedPD with a given number of passes in every round."""

    number: int = 1

    def passes(self, t: int) -> int:
        return self.number


@pytest.mark.parametrize("start", ["own", "server"])
def test_a_round_of_fedpd_with_silent_passes_is_so_many_passes(start: Any) -> None:
    lr, eta = 0.4, 1.5
    run = unequal_end(Passes(lr=lr, eta=eta, start=start, number=3), rounds=2)
    x0, x, lam = START, [START] * N, [torch.zeros_like(START)] * N
    for _ in range(2):
        ends = []
        for i in range(N):
            x0_i = x0
            for _ in range(3):
                y = x[i] if start == "own" else x0_i
                for _ in range(WORK[i]):
                    y = y - lr * (A[i] @ (y - B[i]) + lam[i] + (y - x0_i) / eta)
                x[i], lam[i] = y, lam[i] + (y - x0_i) / eta
                x0_i = y + eta * lam[i]
            ends.append(x0_i)
        x0 = weighted_sum(UNEQUAL, torch.stack(ends))
    assert distance(run.x, x0) < 1e-13
    assert distance(-duals(run), torch.stack(lam)) < 1e-13


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_silent_passes_cost_gradients_and_no_bytes(mode: str) -> None:
    algorithm = FedPD(lr=0.3, eta=2.0, p=0.6, coin=5)
    passes = [algorithm.passes(t) for t in range(6)]
    assert len(set(passes)) >= 3
    for record, n in zip(unequal_run(algorithm, rounds=6, mode=mode), passes, strict=True):
        assert record.gradients == n * sum(WORK)
        assert record.bytes_up == record.bytes_down == N * D * 8


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_silent_passes_go_on_in_the_stream_of_minibatches_and_masks(mode: Any) -> None:
    """Without dual and prox, two passes of K_i steps are FedAvg's one of 2 K_i."""
    sent: dict[int, Tensor] = {}
    twice, once = ud.Steps([6, 10, 4, 12]), ud.Steps([3, 5, 2, 6])
    tap = {"tap": lambda up: sent.update({up.client: up.upload})}
    x0 = on_net(FedAvg(lr=0.1), mode=mode, rounds=0).x
    on_net(FedAvg(lr=0.1), mode=mode, rounds=1, work=twice, **tap)
    run = on_net(Passes(lr=0.1, eta=1e13, number=2), mode=mode, rounds=1, work=once)
    for i, moved in sent.items():
        assert distance(run.client_states[i].x, x0 + moved) < 1e-10


def test_number_of_passes_is_geometric() -> None:
    for p in (0.0, 0.3, 0.75):
        drawn = np.array(
            [FedPD(lr=0.1, p=p, coin=s).passes(t) for s in range(8) for t in range(250)]
        )
        assert drawn.min() == 1
        assert abs(drawn.mean() - 1 / (1 - p)) <= 4 * np.sqrt(p / (1 - p) ** 2 / len(drawn))
        assert abs((drawn == 1).mean() - (1 - p)) <= 4 * np.sqrt(p * (1 - p) / len(drawn))
    rows = [[FedPD(lr=0.1, p=0.7, coin=s).passes(t) for t in range(20)] for s in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.parametrize("start", ["own", "server"])
def test_clients_that_hardly_communicate_solve_their_own_problems(start: Any) -> None:
    """The limit p -> 1: a proximal point method on each F_i alone, so x_i -> b_i, lam_i -> 0."""
    run = unequal_end(Passes(lr=0.7, eta=2.0, start=start, number=60), rounds=1)
    assert duals(run).norm() < 1e-9
    assert distance(run.x, weighted_sum(UNEQUAL, B)) < 1e-9


# The regularisers, by differences of the penalty as the papers write it.


@dataclass
class Quadratic:
    """F_1 alone, as an objective."""

    k: int = 0

    def grad(self, y: Vector) -> Vector:
        return A[1] @ (y - B[1])


class Probe:
    """A loop that tries the step at points of its own choice instead of running it."""

    t, mean_count = 0, 4.0
    count = torch.tensor(4.0, dtype=A.dtype)

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        self.points = [START + torch.tensor(rng.normal(size=D)) for _ in range(4)]
        self.moves: list[Tensor] = []

    def __call__(self, step: Callable[[Any, Objective], Any], init: Any) -> Any:
        self.moves = [step(y, Quadratic()) - y for y in self.points]  # type: ignore[arg-type]
        return init


DUAL = torch.tensor([0.3, 0.1, -0.6], dtype=A.dtype)
OTHER = torch.tensor([-0.5, 0.8, 0.2], dtype=A.dtype)
LOCAL = torch.tensor([1.5, 0.3, -0.2], dtype=A.dtype)


def square(v: Tensor) -> Tensor:
    return v @ v


# Algorithm, broadcast, client state, weight of the data gradient, penalty.
PENALTIES: list[tuple[Any, Any, Any, float, Callable[[Tensor], Tensor]]] = [
    (
        FedDyn(lr=0.3, alpha=0.4),
        START,
        DUAL,
        1,
        lambda y: -DUAL @ y + 0.4 / 2 * square(y - START),
    ),
    (
        FedPD(lr=0.3, eta=2.5),
        START,
        FedPDClient(LOCAL, DUAL),
        1,
        lambda y: DUAL @ (y - START) + square(y - START) / (2 * 2.5),
    ),
    (
        FedADMM(lr=0.3, rho=0.4),
        START,
        FedADMM(lr=0.3).init_client(LOCAL, START)._replace(lam=DUAL),
        1,
        lambda y: DUAL @ (y - START) + 0.4 / 2 * square(y - START),
    ),
    (
        FedDC(lr=0.3, alpha=0.4),
        FedDCDown(START, OTHER),
        FedDC(lr=0.3).init_client(START, FedDCDown(START, OTHER))._replace(h=LOCAL, G=DUAL),
        1,
        lambda y: 0.4 / 2 * square(y - (START - LOCAL)) + y @ (OTHER - DUAL),
    ),
    (
        FedCM(lr=0.3, alpha=0.4),
        FedCM(lr=0.3).init(START)._replace(m=DUAL),
        (),
        0.4,
        lambda y: 0.6 * DUAL @ y / 4,
    ),
]


def assert_penalty(
    algorithm: Any, down: Any, client: Any, share: float, penalty: Callable[[Tensor], Tensor]
) -> None:
    """What a local step adds to the data gradient is the slope of the penalty."""
    probe, h = Probe(), 1e-3  # central differences of a square are exact for every h
    algorithm.local(down, client, probe)
    for y, move in zip(probe.points, probe.moves, strict=True):
        added = -move / algorithm.lr - share * Quadratic().grad(y)
        slope = torch.stack([(penalty(y + h * e) - penalty(y - h * e)) / (2 * h) for e in EYE])
        assert added.norm() > 1e-2
        assert distance(added, slope) < 1e-11


@pytest.mark.parametrize("row", PENALTIES, ids=lambda row: type(row[0]).__name__)
def test_gradient_of_the_regulariser(row: Any) -> None:
    assert_penalty(*row)


# Costs.


@pytest.mark.parametrize(
    ("algorithm", "down", "up", "server", "client"),
    [  # in vectors of the model's size
        (FedCM(lr=0.1), 2, 1, 2, 0),
        (FedDyn(lr=0.1), 1, 1, 2, 1),
        (FedPD(lr=0.1), 1, 1, 1, 2),
        (FedPD(lr=0.1, start="server"), 1, 1, 1, 1),
        (FedADMM(lr=0.1), 1, 1, 3, 2),
        (FedADMM(lr=0.1, average="seen"), 1, 1 + 1 / D, 3 + 1 / D, 2 + 1 / D),
        (FedDC(lr=0.1), 2, 2, 3, 2),
    ],
    ids=repr,
)
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_costs(algorithm: Any, down: int, up: int, server: int, client: int, mode: str) -> None:
    run = unequal_run(algorithm, rounds=2, participation=[[0, 3], [1, 2, 4]], mode=mode)
    for record, cohort in zip(run, ([0, 3], [1, 2, 4]), strict=True):
        assert record.bytes_down == down * D * 8 * len(cohort)
        assert record.bytes_up == up * D * 8 * len(cohort)
        assert record.gradients == sum(WORK[i] for i in cohort)
    assert tree.nbytes(run.state) == server * D * 8
    assert {tree.nbytes(state) for state in run.client_states.values()} == {client * D * 8}


# Defects of FedDyn found in other libraries, and the check that must refuse each.


def in_the_box(algorithm: FedDyn) -> None:
    for case in ALL:
        if case.work == "unequal" and case.weights == "weighted" and case.mode == "loop":
            given = {"lr": algorithm.lr, "alpha": algorithm.alpha}
            compare_with_feddyn_box(case.run(algorithm), *feddyn_box(**case.given(), **given))


def at_the_fixed_point(algorithm: FedDyn) -> None:
    for participation, rounds in ((1.0, 60), (pair_of_five, 95)):
        run = unequal_end(algorithm, rounds=rounds, participation=participation)
        assert distance(run.x, PROBLEM.optimum(UNEQUAL)) < 1e-9


def proves_feddyn(algorithm: FedDyn) -> None:
    """Raises unless this is FedDyn, which the box alone would show."""
    in_the_box(algorithm)
    at_the_fixed_point(replace(algorithm, lr=0.5, alpha=1.5))
    a = algorithm.alpha
    assert_penalty(algorithm, START, DUAL, 1, lambda y: -DUAL @ y + a / 2 * square(y - START))


@dataclass(frozen=True)
class Mutant(FedDyn):
    """FedDyn with another direction of the local step, as `self.direction` says."""

    def direction(self, y: Vector, x: Vector, lam: Vector, g: Vector) -> Vector:
        raise NotImplementedError

    def local(self, down: Vector, client: Vector, steps: Loop) -> tuple[Vector, Vector]:
        x, lam = down, client

        def step(y: Vector, f: Objective) -> Vector:
            return y - self.lr * self.direction(y, x, lam, f.grad(y))

        y = steps(step, x)
        return y - x, lam - self.alpha * (y - x)


class Same(Mutant):
    """No defect: shows that the mutants are refused for theirs."""

    def direction(self, y: Vector, x: Vector, lam: Vector, g: Vector) -> Vector:
        return g - lam + self.alpha * (y - x)


class FLBench(Mutant):
    """The linear term alpha (h_i - x) without alpha y, which weight decay was to supply."""

    def direction(self, y: Vector, x: Vector, lam: Vector, g: Vector) -> Vector:
        return g - lam - self.alpha * x


class PFLlib(Mutant):
    """(alpha / 2) ||y - x||, not squared."""

    def direction(self, y: Vector, x: Vector, lam: Vector, g: Vector) -> Vector:
        return g - lam + self.alpha / 2 * (y - x) / ((y - x).norm() + 1e-12)


class FedML(Mutant):
    """A detached square, a linear term scaled by alpha / 2, a server without 1 / alpha."""

    def direction(self, y: Vector, x: Vector, lam: Vector, g: Vector) -> Vector:
        return g - self.alpha / 2 * lam

    def update(self, server: FedDynServer, mean: Vector, cohort: Cohort) -> FedDynServer:
        h = server.h - self.alpha * cohort.mass * mean
        return FedDynServer(server.x + mean - h, h)


class FedMLServer(Same):
    """Its server alone."""

    def update(self, server: FedDynServer, mean: Vector, cohort: Cohort) -> FedDynServer:
        h = server.h - self.alpha * cohort.mass * mean
        return FedDynServer(server.x + mean - h, h)


class FedLab(Mutant):
    """Both penalties detached: no gradient of either."""

    def direction(self, y: Vector, x: Vector, lam: Vector, g: Vector) -> Vector:
        return g


class Plato(FedDyn):
    """The last local model in place of the accumulated offset."""

    def local(self, down: Vector, client: Vector, steps: Loop) -> tuple[Vector, Vector]:
        up, _ = super().local(down, client, steps)
        return up, -self.alpha * (down + up)


class Uniform(FedDyn):
    """|S| / N where the population weight of the cohort belongs."""

    def update(self, server: FedDynServer, mean: Vector, cohort: Cohort) -> FedDynServer:
        return super().update(server, mean, replace(cohort, mass=cohort.size / cohort.population))


MUTANTS = [FLBench, PFLlib, FedML, FedMLServer, FedLab, Plato, Uniform]
REFUSED = (AssertionError, ud.DivergenceError)


@pytest.mark.parametrize("cls", [FedDyn, Same])
def test_feddyn_is_accepted(cls: type[FedDyn]) -> None:
    proves_feddyn(cls(lr=0.3, alpha=0.4))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_defects_of_feddyn_are_refused(mutant: type[FedDyn]) -> None:
    with pytest.raises(REFUSED):
        proves_feddyn(mutant(lr=0.3, alpha=0.4))


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m is not FedMLServer])
def test_fixed_point_alone_refuses_all_but_a_slower_server(mutant: type[FedDyn]) -> None:
    with pytest.raises(REFUSED):
        at_the_fixed_point(mutant(lr=0.5, alpha=1.5))


@pytest.mark.parametrize("mutant", [FLBench, PFLlib, FedML, FedLab])
def test_finite_differences_refuse_every_wrong_penalty(mutant: type[FedDyn]) -> None:
    algorithm = mutant(lr=0.3, alpha=0.4)
    with pytest.raises(AssertionError):
        assert_penalty(algorithm, *PENALTIES[0][1:])


def test_missing_square_term_is_negative_weight_decay() -> None:
    """FL-bench's fixed point solves grad F(x) = alpha x, hence its exploding loss."""
    w = UNEQUAL
    run = unequal_end(FLBench(lr=0.5, alpha=0.2), rounds=150, w=w)
    target = torch.linalg.solve(
        weighted_sum(w, A) - 0.2 * EYE, weighted_sum(w, torch.einsum("ijk,ik->ij", A, B))
    )
    assert distance(run.x, target) < 1e-8
    assert distance(target, PROBLEM.optimum(w)) > 0.1


# Arguments.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedCM(lr=0.1, alpha=0), r"alpha in \(0, 1\], got 0"),
        (lambda: FedCM(lr=0.1, alpha=1.5), r"alpha in \(0, 1\], got 1.5"),
        (lambda: FedCM(lr=0), "lr > 0"),
        (lambda: FedDyn(lr=0.1, alpha=0), "FedDyn needs alpha > 0"),
        (lambda: FedDyn(lr=0.5, alpha=4.1), "FedDyn needs alpha <= 2 / lr = 4, got 4.1; above"),
        (lambda: FedADMM(lr=0.1, rho=-1), "FedADMM needs rho > 0"),
        (lambda: FedADMM(lr=0.5, rho=4.1), "FedADMM needs rho <= 2 / lr = 4, got 4.1; above"),
        (lambda: FedDC(lr=0.1, alpha=0), "FedDC needs alpha > 0"),
        (lambda: FedDC(lr=0.5, alpha=4.1), "FedDC needs alpha <= 1 / lr = 2, got 4.1; above"),
        (lambda: FedPD(lr=0.1, p=1.0), r"p in \[0, 1\), got 1.0; .* nobody would ever communicate"),
        (lambda: FedPD(lr=0.1, p=-0.1), r"p in \[0, 1\), got -0.1"),
        (lambda: FedPD(lr=0.1, eta=0.05), "FedPD needs eta >= lr = 0.1, got 0.05; below"),
        (lambda: FedPD(lr=0.1, start="x"), "start to be one of own, server"),  # type: ignore
    ],
)
def test_bad_hyper_parameters_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("cls", [FedDyn, FedDC])
def test_border_of_the_prox_is_allowed(cls: Any) -> None:
    assert cls(lr=0.5, alpha=2.0).alpha == 2.0


@pytest.mark.long
@pytest.mark.parametrize("cohorts", [[[0, 1, 2, 3, 4]], [[0, 2], [1, 3], [4, 0], [2, 1], [3, 4]]])
def test_fedadmm_with_l1_satisfies_the_soft_threshold_optimality(cohorts: Any) -> None:
    """0 lies in grad F(x) + l1 d|x|: some coordinates vanish, the others balance."""
    problem, w, l1 = bed(clients=5, dim=6), [0.3, 0.1, 0.25, 0.15, 0.2], 0.12
    run = on_quadratics(
        FedADMM(lr=0.3, rho=0.5, l1=l1),
        problem,
        rounds=1500,
        participation=cohorts * (1500 // len(cohorts)),
        weighting=w,
    )
    gap = run.x - problem.b
    g = torch.einsum("i,ijk,ik->j", torch.tensor(w, dtype=torch.float64), problem.A, gap)
    zero = run.x == 0
    assert 0 < int(zero.sum()) < 6, "the case must have both kinds"
    assert float(g[zero].abs().max()) <= l1 + 1e-9
    assert distance(g[~zero], -l1 * run.x[~zero].sign()) < 1e-7
