"""Closed forms of the six methods on quadratics: fixed points, invariants, identities and costs.

Every client is F_i(x) = 1/2 (x - b_i)' A_i (x - b_i) with exact gradients in float64, so a theorem
holds to rounding or not at all. Fixed points are checked under unequal weights too, since a method
that averages its duals with 1/N instead of w_i is right only when the two agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import undrift as ud
from tests.support.problems import bed, gradients, pair_of_five, weighted_sum
from tests.support.runs import distance, on_quadratics, start_on_quadratics

UNIFORM = [0.2] * 5
UNEQUAL = [0.5, 0.2, 0.15, 0.1, 0.05]
WORK = [3, 1, 2, 2, 1]  # its mean, 1.8 or 2.25, leaves clients on both sides

weights = pytest.mark.parametrize("w", [UNIFORM, UNEQUAL], ids=["uniform", "unequal"])
work = pytest.mark.parametrize("k", [3, WORK], ids=["equal-K", "unequal-K"])

PROBLEM = bed(condition=2.5)  # fast to converge, so that 1e-10 takes few rounds
A, B = PROBLEM.A, PROBLEM.b
N, D = B.shape
EYE = torch.eye(D, dtype=A.dtype)
START = torch.tensor([0.7, -1.1, 0.4], dtype=A.dtype)  # not 0: y and y - x must not be confused


def run_from_start(
    algorithm: Any,
    problem: ud.data.Quadratics = PROBLEM,
    *,
    rounds: int,
    k: int | Sequence[int] = WORK,
    w: Sequence[float] = UNEQUAL,
    clients: dict[int, Any] | None = None,
    server: dict[str, Tensor] | None = None,
    **options: Any,
) -> ud.Run:
    """Return a run before its first round, from `START` unless `server` has another x."""
    options = {"work": ud.Steps(k), "weighting": w, **options}
    run = start_on_quadratics(algorithm, problem, rounds=rounds, **options)
    run.state = run.state._replace(**{"x": START, **(server or {})})
    run.client_states = dict(clients or {})
    return run


def models(run: ud.Run) -> Tensor:
    """(rounds + 1, D) the server models from the first to the last."""
    return torch.stack([run.x.clone(), *(run.x.clone() for _ in run)])


def local_models(algorithm: Any, k: int | Sequence[int], **options: Any) -> Tensor:
    """(N, D) every y_i of the first round, read off the uploads y_i - x."""
    seen: dict[int, Tensor] = {}

    def keep(up: ud.Upload) -> None:
        seen[up.client] = up.upload if torch.is_tensor(up.upload) else up.upload.x

    run = run_from_start(algorithm, rounds=1, k=k, tap=keep, **options)
    x = run.x.clone()
    next(run)
    return torch.stack([x + seen[i] for i in range(N)])


def counts(k: int | Sequence[int]) -> list[int]:
    return [k] * N if isinstance(k, int) else list(k)


def psi(curvature: Tensor, lr: float, k: int | Sequence[int]) -> Tensor:
    """(N, D, D) I - (I - lr A_i)^K_i."""
    powers = [
        torch.linalg.matrix_power(EYE - lr * a, n)
        for a, n in zip(curvature, counts(k), strict=True)
    ]
    return EYE - torch.stack(powers)


def balance(w: Sequence[float], pull: Tensor) -> Tensor:
    """x with sum_i w_i pull_i (x - b_i) = 0."""
    return torch.linalg.solve(
        weighted_sum(w, pull), weighted_sum(w, torch.einsum("ijk,ik->ij", pull, B))
    )


def fedavg_point(w: Sequence[float], lr: float, k: int | Sequence[int]) -> Tensor:
    return balance(w, psi(A, lr, k))


def fedprox_point(w: Sequence[float], lr: float, mu: float, k: int | Sequence[int]) -> Tensor:
    return balance(w, psi(A + mu * EYE, lr, k) @ torch.linalg.inv(A + mu * EYE) @ A)


def held(run: ud.Run) -> Tensor:
    """(N, D) the clients' duals, zero for those never seen."""
    return torch.stack([run.client_states.get(i, torch.zeros_like(run.x)) for i in range(N)])


# FedAvg


@weights
@work
def test_fedavg_converges_to_its_biased_fixed_point(w, k):
    run = on_quadratics(ud.FedAvg(lr=0.5), PROBLEM, rounds=40, work=k, weighting=w)
    assert distance(run.x, fedavg_point(w, 0.5, k)) < 1e-10
    assert distance(run.x, PROBLEM.optimum(w)) > 1e-2


@weights
def test_fedavg_with_a_small_step_minimises_the_sum_weighted_by_steps(w):
    target = PROBLEM.optimum([a * b for a, b in zip(w, WORK, strict=True)])
    errors = []
    for lr in (1e-2, 1e-3):
        # The server step undoes the small local one and leaves the fixed point where it is.
        algorithm = ud.FedAvg(lr=lr, server_lr=1 / (lr * 3))
        run = on_quadratics(algorithm, PROBLEM, rounds=40, work=WORK, weighting=w)
        errors.append(distance(run.x, target))
    assert errors[1] < 1e-3 < distance(target, PROBLEM.optimum(w))
    assert errors[1] / errors[0] == pytest.approx(0.1, rel=0.05)  # the bias is linear in lr


@weights
@pytest.mark.parametrize("k", [60, [60, 61, 62, 63, 64]], ids=["equal-K", "unequal-K"])
def test_fedavg_with_endless_local_work_averages_the_local_optima(w, k):
    run = on_quadratics(ud.FedAvg(lr=1.0), PROBLEM, rounds=1, work=k, weighting=w)
    assert distance(run.x, weighted_sum(w, B)) < 1e-10


@weights
def test_fedavg_is_exact_for_equal_curvatures_and_equal_steps(w):
    inputs, _ = PROBLEM.clients[0]
    same = ud.data.Quadratics(
        ud.Clients([(inputs, inputs @ b[:, None]) for b in B]), A[:1].expand(N, D, D), B
    )
    run = on_quadratics(ud.FedAvg(lr=0.8), same, rounds=30, work=3, weighting=w)
    assert distance(run.x, same.optimum(w)) < 1e-10
    run = on_quadratics(ud.FedAvg(lr=0.8), same, rounds=30, work=WORK, weighting=w)
    assert distance(run.x, same.optimum(w)) > 1e-2


@weights
@work
def test_fedavg_is_an_affine_map_on_quadratics(w, k):
    fixed, contraction = fedavg_point(w, 0.4, k), EYE - weighted_sum(w, psi(A, 0.4, k))
    x = models(run_from_start(ud.FedAvg(lr=0.4), rounds=5, k=k, w=w))
    assert distance(x[1:] - fixed, (x[:-1] - fixed) @ contraction.T) < 1e-13


@weights
@work
def test_fedavg_contracts_at_the_spectral_radius(w, k):
    values, vectors = torch.linalg.eigh(EYE - weighted_sum(w, psi(A, 0.4, k)))
    fixed, radius = fedavg_point(w, 0.4, k), float(values[-1])
    slowest = {"x": fixed + vectors[:, -1]}
    x = models(run_from_start(ud.FedAvg(lr=0.4), rounds=4, k=k, w=w, server=slowest))
    errors = (x - fixed).norm(dim=1)
    assert torch.allclose(errors, radius ** torch.arange(5.0, dtype=A.dtype), rtol=1e-12)
    x = models(run_from_start(ud.FedAvg(lr=0.4), rounds=4, k=k, w=w))
    errors = (x - fixed).norm(dim=1)
    assert (errors[1:] < radius * errors[:-1]).all()  # from elsewhere it is faster


@pytest.mark.parametrize("algorithm", [ud.FedAvg(lr=0.3, server_lr=1.7), ud.Scaffold(lr=0.3)])
@weights
def test_one_local_step_of_everybody_is_gradient_descent(algorithm, w):
    x = models(run_from_start(algorithm, rounds=5, k=1, w=w))
    step = 0.3 * algorithm.server_lr
    descent = torch.stack(
        [before - step * weighted_sum(w, gradients(PROBLEM, before)) for before in x[:-1]]
    )
    assert distance(x[1:], descent) < 1e-13


def test_splitting_a_client_into_two_of_half_its_weight_changes_nothing():
    data = [PROBLEM.clients[i] for i in range(N)]
    split = ud.data.Quadratics(ud.Clients([*data, data[0]]), A, B)
    halves = [0.25, 0.2, 0.15, 0.1, 0.05, 0.25]
    whole = models(run_from_start(ud.FedAvg(lr=0.4), rounds=3))
    parts = models(run_from_start(ud.FedAvg(lr=0.4), split, rounds=3, k=[*WORK, WORK[0]], w=halves))
    assert distance(whole, parts) < 1e-13


def test_identical_clients_are_one_client():
    copies = ud.data.Quadratics(ud.Clients([PROBLEM.clients[0]] * N), A, B)
    x = models(run_from_start(ud.FedAvg(lr=0.4), copies, rounds=3, k=4))
    y = START
    for _ in range(3 * 4):
        y = y - 0.4 * A[0] @ (y - B[0])
    assert distance(x[-1], y) < 1e-13


# FedProx


@weights
@work
def test_fedprox_converges_to_its_closed_form(w, k):
    algorithm = ud.FedProx(lr=0.5, mu=0.3)
    run = on_quadratics(algorithm, PROBLEM, rounds=40, work=k, weighting=w)
    assert distance(run.x, fedprox_point(w, 0.5, 0.3, k)) < 1e-10
    assert distance(run.x, fedavg_point(w, 0.5, k)) > 1e-3


@weights
def test_fedprox_with_endless_local_work_balances_the_proximal_pulls(w):
    algorithm = ud.FedProx(lr=1.0, mu=0.1)
    run = on_quadratics(algorithm, PROBLEM, rounds=15, work=40, weighting=w)
    limit = balance(w, torch.linalg.inv(A + 0.1 * EYE) @ A)
    assert distance(run.x, limit) < 1e-10
    assert distance(weighted_sum(w, B), limit) > 1e-2


@pytest.mark.parametrize("mu", [0.05, 0.4])
@pytest.mark.parametrize("k", [1, 3])
def test_fedprox_penalty_gradient_is_that_of_half_mu_times_the_square(mu, k):
    """What a local step adds to the data gradient, against differences of the penalty itself."""
    algorithm = ud.FedProx(lr=0.5, mu=mu)
    before, after = local_models(algorithm, k), local_models(algorithm, k + 1)
    added = (before - after) / 0.5 - gradients(PROBLEM, before)

    def penalty(y: Tensor) -> Tensor:
        return mu / 2 * (y - START).square().sum(1)

    h = 1e-3  # central differences of a square are exact for every h
    slopes = [(penalty(before + h * e) - penalty(before - h * e)) / (2 * h) for e in EYE]
    assert (added.norm(dim=1) > 1e-3).all()
    assert distance(added, torch.stack(slopes, 1)) < 1e-12


def test_fedprox_first_local_step_has_no_penalty():
    assert torch.equal(
        local_models(ud.FedProx(lr=0.5, mu=0.9), 1), local_models(ud.FedAvg(lr=0.5), 1)
    )


# Scaffold


def assert_at_the_optimum(run: ud.Run, w: Sequence[float], duals: Tensor) -> None:
    """The model is x*, the duals are the gradients there, and so their mean is zero."""
    optimum = PROBLEM.optimum(w)
    assert distance(run.x, optimum) < 1e-10
    assert distance(duals, gradients(PROBLEM, optimum)) < 1e-10
    assert weighted_sum(w, duals).norm() < 1e-10


@weights
@work
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_converges_to_the_optimum(w, k, option):
    algorithm = ud.Scaffold(lr=0.5, option=option)
    run = on_quadratics(algorithm, PROBLEM, rounds=40, work=k, weighting=w)
    assert_at_the_optimum(run, w, held(run))


@weights
@pytest.mark.parametrize(
    ("option", "participation"),
    [("I", pair_of_five), ("II", pair_of_five), ("II", 2)],
    ids=["I-pairs", "II-pairs", "II-any-two"],
)
def test_scaffold_converges_to_the_optimum_with_two_of_five_clients(w, option, participation):
    run = on_quadratics(
        ud.Scaffold(lr=0.4, option=option),
        PROBLEM,
        rounds=150,
        work=WORK,
        weighting=w,
        participation=participation,
        mode="loop",  # the faster one for so few clients
    )
    assert_at_the_optimum(run, w, held(run))


@weights
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_server_variate_is_the_weighted_mean_over_all_clients(w, option):
    run = run_from_start(
        ud.Scaffold(lr=0.4, option=option), rounds=8, w=w, participation=pair_of_five
    )
    for record in run:
        assert distance(run.state.c, weighted_sum(w, held(run))) < 1e-13
        assert (len(run.client_states) < N) == (record.round < 4)  # the unseen count as zeros
        assert run.state.c.norm() > 1e-3


def test_scaffold_option_two_is_the_mean_of_the_raw_gradients_of_the_round():
    run = run_from_start(ud.Scaffold(lr=0.4), rounds=3)
    next(run), next(run)
    (x, c), c_i = run.state, held(run)
    next(run)
    for i, k in enumerate(WORK):
        y, total = x, torch.zeros_like(x)
        for _ in range(k):
            g = A[i] @ (y - B[i])
            y, total = y - 0.4 * (g - c_i[i] + c), total + g
        assert distance(run.client_states[i], total / k) < 1e-13


@weights
def test_scaffold_has_a_form_with_the_traffic_of_fedavg(w):
    """With everybody present a client can keep d_i = c - c_i itself and c need not travel."""
    k, lr = 4, 0.4
    x = models(run_from_start(ud.Scaffold(lr=lr), rounds=6, k=k, w=w))
    model, d = START, torch.zeros(N, D, dtype=A.dtype)
    for after in x[1:]:
        y = model.expand(N, D)
        for _ in range(k):
            y = y - lr * (gradients(PROBLEM, y) + d)
        model = weighted_sum(w, y)
        d = d + (y - model) / (k * lr)
        assert distance(after, model) < 1e-13


@pytest.mark.parametrize("participation", [1.0, pair_of_five], ids=["full", "pairs"])
def test_scaffold_first_round_ignores_a_common_shift_of_its_variates(participation):
    shift = torch.tensor([3.0, -2.0, 5.0], dtype=A.dtype)

    def first(server: Tensor, client: Tensor) -> Tensor:
        state, clients = {"c": server}, dict.fromkeys(range(N), client)
        run = run_from_start(
            ud.Scaffold(lr=0.4),
            rounds=1,
            server=state,
            clients=clients,
            participation=participation,
        )
        next(run)
        return run.x

    zero = torch.zeros_like(shift)
    assert distance(first(shift, shift), first(zero, zero)) < 1e-13
    assert distance(first(shift, zero), first(zero, zero)) > 0.1


# FedSpeed


def quasi_gradients(
    algorithm: ud.FedSpeed, i: int, x: Tensor, g_hat: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """g~ and gamma of steps 0...k-1, with the iterates from equation (2), not from the recursion:
    y_k - x = -lam sum_j gamma_j g~_j + gamma lam g_hat."""
    ratio, found = algorithm.lr / algorithm.lam, torch.zeros(0, D, dtype=A.dtype)
    for n in range(k):
        y = x - algorithm.lam * (gammas(ratio, n) @ found - (1 - (1 - ratio) ** n) * g_hat)
        g1 = A[i] @ (y - B[i])
        size = g1.norm() + 1e-7 if algorithm.normalise else 1.0
        g2 = A[i] @ (y + algorithm.rho * g1 / size - B[i])
        g = (1 - algorithm.alpha) * g1 + algorithm.alpha * g2
        found = torch.cat([found, g[None]])
    return found, gammas(ratio, k)


def gammas(ratio: float, k: int) -> Tensor:
    return ratio * (1 - ratio) ** torch.arange(k - 1, -1, -1, dtype=A.dtype)


PERTURBED = [
    ud.FedSpeed(lr=0.4, lam=1.5, rho=0.2, alpha=0.7),
    ud.FedSpeed(lr=0.4, lam=1.5, rho=0.2, alpha=0.7, normalise=False),
]


@pytest.mark.parametrize("algorithm", PERTURBED, ids=["normalised", "constant"])
def test_fedspeed_local_round_obeys_equations_two_and_three(algorithm):
    uploads: dict[int, Tensor] = {}
    run = run_from_start(
        algorithm,
        rounds=6,
        participation=pair_of_five,
        tap=lambda up: uploads.__setitem__(up.client, up.upload),
    )
    x, old = run.x, held(run)
    for _ in run:
        for i, moved in uploads.items():
            g, gamma = quasi_gradients(algorithm, i, x, old[i], WORK[i])
            total = 1 - (1 - algorithm.lr / algorithm.lam) ** WORK[i]
            two = -algorithm.lam * (gamma @ g) + total * algorithm.lam * old[i]
            three = (1 - total) * old[i] + gamma @ g
            assert distance(moved, two) < 1e-13
            assert distance(run.client_states[i], three) < 1e-13
        uploads.clear()
        x, old = run.x, held(run)
    assert (old.norm(dim=1) > 1e-3).all()  # every dual has been in use


@pytest.mark.parametrize("k", [1, 3, 8])
def test_fedspeed_weights_of_the_gradients_sum_to_gamma(k):
    """Under a constant gradient g the local round moves by -lam (sum of gamma_k) (g - g_hat)."""
    lr, lam = 0.4, 1.5
    g_hat = torch.tensor([0.3, 0.1, -0.6], dtype=A.dtype)
    run = ud.simulate(
        ud.FedSpeed(lr=lr, lam=lam),
        PROBLEM.model(),
        PROBLEM.clients,
        loss=lambda outputs, _: outputs.mean(),
        work=ud.Steps(k),
        rounds=1,
        tap=lambda up: moved.__setitem__(up.client, up.upload),
    )
    moved: dict[int, Tensor] = {}
    run.client_states = dict.fromkeys(range(N), g_hat)
    next(run)
    for i in range(N):
        g = PROBLEM.clients[i][0].mean(0)
        assert distance(moved[i], -lam * (1 - (1 - lr / lam) ** k) * (g - g_hat)) < 1e-13


@weights
@pytest.mark.parametrize("algorithm", PERTURBED, ids=["normalised", "constant"])
def test_fedspeed_is_gradient_descent_in_the_sequence_of_equation_five(algorithm, w):
    k = 4
    gamma = 1 - (1 - algorithm.lr / algorithm.lam) ** k
    means: list[Tensor] = []
    run = run_from_start(
        algorithm, rounds=6, k=k, w=w, tap=lambda up: means.append(up.weight * up.upload)
    )
    x, old, u, u_before = run.x, held(run), run.x, run.x
    for _ in run:
        parts = [quasi_gradients(algorithm, i, x, old[i], k) for i in range(N)]
        g = weighted_sum(w, torch.stack([shares @ g / gamma for g, shares in parts]))
        u_after = x + sum(means)
        z = u + (1 - gamma) / gamma * (u - u_before)
        z_after = u_after + (1 - gamma) / gamma * (u_after - u)
        assert distance(z_after, z - algorithm.lam * g) < 1e-12
        x, old, u, u_before = run.x, held(run), u_after, u
        means.clear()


@weights
@work
@pytest.mark.parametrize("average", ["all", "participants"])
def test_fedspeed_extrapolates_the_means_of_the_local_models(average, w, k):
    """x_{t+1} = 2 y_t - y_{t-1} for the means y_t of the local models, when everybody is there."""
    algorithm = ud.FedSpeed(lr=0.4, lam=1.5, rho=0.2, average=average)
    run = run_from_start(algorithm, rounds=6, k=k, w=w)
    x, duals, before = run.x, held(run), run.x
    for _ in run:
        y = x + algorithm.lam * weighted_sum(
            w, duals - held(run)
        )  # line 13: g_hat_i loses (y_i - x) / lam
        assert distance(run.x, 2 * y - before) < 1e-13
        x, duals, before = run.x, held(run), y


@weights
@work
def test_fedspeed_with_constant_ascent_minimises_the_penalised_objective(w, k):
    """argmin of sum_i w_i (F_i + alpha rho / 2 ||grad F_i||^2)."""
    algorithm = ud.FedSpeed(lr=0.5, lam=1.0, rho=0.5, alpha=0.6, normalise=False)
    run = on_quadratics(algorithm, PROBLEM, rounds=45, work=k, weighting=w)
    target = balance(w, A @ (EYE + 0.6 * 0.5 * A))
    assert distance(run.x, target) < 1e-10
    assert distance(target, PROBLEM.optimum(w)) > 1e-2


@weights
@work
def test_fedspeed_without_perturbation_converges_to_the_optimum(w, k):
    algorithm = ud.FedSpeed(lr=0.5, lam=1.0, perturbation=False)
    run = on_quadratics(algorithm, PROBLEM, rounds=55, work=k, weighting=w)
    assert_at_the_optimum(run, w, held(run))


def test_fedspeed_with_alpha_zero_has_no_perturbation():
    zero = models(run_from_start(ud.FedSpeed(lr=0.5, lam=1.0, alpha=0.0), rounds=4))
    off = models(run_from_start(ud.FedSpeed(lr=0.5, lam=1.0, perturbation=False), rounds=4))
    on = models(run_from_start(ud.FedSpeed(lr=0.5, lam=1.0), rounds=4))
    assert torch.equal(zero, off)
    assert distance(on, off) > 1e-3


@weights
def test_fedspeed_over_all_clients_converges_where_over_participants_it_stalls(w):
    """At x* the dual of client i is grad F_i(x*), whose mean over a cohort is not zero."""
    lam, rounds, optimum = 1.0, 130, PROBLEM.optimum(w)
    errors = {}
    for average in ("all", "participants"):
        algorithm = ud.FedSpeed(lr=0.6, lam=lam, perturbation=False, average=average)
        run = run_from_start(algorithm, rounds=rounds, k=3, w=w, participation=2, mode="loop")
        errors[average] = (models(run) - optimum).norm(dim=1)
    floors = []
    for cohort in itertools.combinations(range(N), 2):
        share = torch.tensor([w[i] if i in cohort else 0.0 for i in range(N)], dtype=A.dtype)
        floors.append(lam * float((share @ gradients(PROBLEM, optimum) / share.sum()).norm()))
    stall = float(errors["participants"][rounds // 4 :].mean())
    assert 0.6 < stall / (sum(floors) / len(floors)) < 1.6
    assert errors["all"][-1] < 1e-9 * stall


@weights
def test_fedspeed_server_dual_is_the_weighted_mean_over_all_clients(w):
    run = run_from_start(ud.FedSpeed(lr=0.4, lam=1.5), rounds=8, w=w, participation=pair_of_five)
    for record in run:
        assert distance(run.state.g_hat, weighted_sum(w, held(run))) < 1e-13
        assert (len(run.client_states) < N) == (record.round < 4)
        assert run.state.g_hat.norm() > 1e-3


@weights
def test_fedspeed_with_a_vanishing_prox_first_moves_twice_as_far_as_fedavg(w):
    fedspeed = run_from_start(ud.FedSpeed(lr=0.4, lam=1e12, perturbation=False), rounds=1, w=w)
    fedavg = run_from_start(ud.FedAvg(lr=0.4), rounds=1, w=w)
    next(fedspeed), next(fedavg)
    assert distance(fedspeed.x - START, 2 * (fedavg.x - START)) < 1e-10


@pytest.mark.parametrize("k", [2, 5])
def test_fedspeed_with_lam_equal_to_lr_keeps_only_the_last_step(k):
    algorithm = ud.FedSpeed(lr=0.6, lam=0.6, perturbation=False)
    g_hat = torch.tensor([0.3, 0.1, -0.6], dtype=A.dtype)
    duals = {i: (i + 1) * g_hat for i in range(N)}
    last_but_one = local_models(algorithm, k - 1, clients=duals)
    y = local_models(algorithm, k, clients=duals)
    only = START - 0.6 * (gradients(PROBLEM, last_but_one) - torch.stack(list(duals.values())))
    assert distance(y, only) < 1e-13


# FedACG


@weights
@work
def test_fedacg_converges_to_the_point_of_fedprox_with_no_momentum_left(w, k):
    algorithm = ud.FedACG(lr=0.5, lam=0.4, beta=0.3)
    run = on_quadratics(algorithm, PROBLEM, rounds=50, work=k, weighting=w)
    assert distance(run.x, fedprox_point(w, 0.5, 0.3, k)) < 1e-10
    assert run.state.m.norm() < 1e-10


@weights
@pytest.mark.parametrize("participation", [1.0, pair_of_five], ids=["full", "pairs"])
def test_fedacg_extrapolated_model_moves_by_the_mean_update_alone(w, participation):
    """z = x + lam / (1 - lam) m obeys z_t - z_{t-1} = mean D / (1 - lam)."""
    lam, updates = 0.85, []
    run = run_from_start(
        ud.FedACG(lr=0.3, lam=lam),
        rounds=8,
        w=w,
        participation=participation,
        tap=lambda up: updates.append(up.weight * up.upload),
    )
    z = run.x
    for _ in run:
        after = run.x + lam / (1 - lam) * run.state.m
        assert distance(after - z, sum(updates) / (1 - lam)) < 1e-12
        z = after
        updates.clear()


def test_fedacg_with_one_step_of_everybody_is_nesterovs_method():
    """The look-ahead x + lam m follows torch's SGD."""
    algorithm = ud.FedACG(lr=0.4, lam=0.7, beta=0.0)
    phi = START.clone().requires_grad_()
    torch_sgd = torch.optim.SGD([phi], lr=0.4, momentum=0.7, nesterov=True)
    run = run_from_start(algorithm, rounds=8, k=1)
    for _ in run:
        phi.grad = weighted_sum(UNEQUAL, gradients(PROBLEM, phi.detach()))
        torch_sgd.step()
        assert distance(run.x + 0.7 * run.state.m, phi.detach()) < 1e-13


def test_fedacg_does_not_care_who_a_client_is():
    """Replacing every client after each round by a newcomer with the same data changes nothing."""
    thrice = ud.data.Quadratics(ud.Clients([PROBLEM.clients[i] for i in range(N)] * 3), A, B)

    def gap(algorithm: Any) -> float:
        stay = run_from_start(
            algorithm, thrice, rounds=3, k=WORK * 3, w=[1.0] * 15, participation=old
        )
        leave = run_from_start(
            algorithm, thrice, rounds=3, k=WORK * 3, w=[1.0] * 15, participation=new
        )
        return distance(models(stay), models(leave))

    def old(t: int) -> range:
        return range(N)

    def new(t: int) -> range:
        return range(N * t, N * t + N)

    assert gap(ud.FedACG(lr=0.4)) == 0
    assert gap(ud.Scaffold(lr=0.4)) > 1e-3  # which keeps a state


def test_fedacg_clients_hold_no_tensors():
    run = on_quadratics(ud.FedACG(lr=0.4), PROBLEM, rounds=3)
    assert run.client_states == dict.fromkeys(range(N), ())


@weights
def test_fedacg_evaluates_the_model_and_not_the_look_ahead(w):
    run = run_from_start(ud.FedACG(lr=0.3), rounds=3, w=w)
    *_, last = run

    def objective(x: Tensor) -> float:
        return 0.5 * float(weighted_sum(w, torch.einsum("ij,ij->i", x - B, gradients(PROBLEM, x))))

    ahead = run.x + 0.85 * run.state.m
    assert last.loss == pytest.approx(objective(run.x), rel=1e-12)
    assert abs(objective(ahead) - last.loss) > 1e-3
    assert torch.equal(run.model.weight.flatten(), run.x)


# FedaGrac

SCHEMES = ["fedagrac", "avg", "first", "reverse"]
schemes = pytest.mark.parametrize("scheme", SCHEMES)


def sends_average(scheme: str, w: Sequence[float], k: Sequence[int]) -> list[bool]:
    """For each client, whether what it sends is its average gradient or its first one."""
    fast = [n > sum(a * b for a, b in zip(w, k, strict=True)) for n in k]
    rule = {
        "fedagrac": [not f for f in fast],
        "avg": [True] * N,
        "first": [False] * N,
        "reverse": fast,
    }
    return rule[scheme]


def unequal_with_one_change(parameters):
    """Return whether weights differ and at most one option is not at its default."""
    changed = (parameters["scheme"] != "fedagrac") + (parameters["reference"] != "avg")
    return parameters["w"] is UNEQUAL and changed <= 1


@weights
@schemes
@pytest.mark.parametrize("reference", ["avg", "sent"])
@pytest.mark.wide(daily=unequal_with_one_change)
def test_fedagrac_with_full_calibration_converges_to_the_optimum(w, scheme, reference):
    algorithm = ud.FedaGrac(lr=0.5, scheme=scheme, local_reference=reference)
    run = on_quadratics(algorithm, PROBLEM, rounds=45, work=WORK, weighting=w)
    assert_at_the_optimum(run, w, torch.stack([run.client_states[i].nu for i in range(N)]))
    assert run.state.nu.norm() < 1e-10
    assert distance(fedavg_point(w, 0.5, WORK), PROBLEM.optimum(w)) > 1e-2


def fedagrac_point(
    w: Sequence[float], lr: float, lam: float, k: Sequence[int], scheme: str
) -> Tensor:
    """x of the linear system of 2D equations in (x, nu); every row below is [of x | of nu | 1]."""
    zero, one = torch.zeros(D, D, dtype=A.dtype), torch.zeros(D, 1, dtype=A.dtype)
    nu = torch.cat([zero, EYE, one], 1)
    s = psi(A, lr, k) @ torch.linalg.inv(A)
    pull, sent = torch.zeros(D, 2 * D + 1, dtype=A.dtype), torch.zeros(D, 2 * D + 1, dtype=A.dtype)
    for i, average in enumerate(sends_average(scheme, w, k)):
        theta = s[i] / (lr * k[i])
        gradient = torch.cat([A[i], zero, -(A[i] @ B[i])[:, None]], 1)
        nu_i = torch.linalg.solve(
            (1 - lam) * EYE + lam * theta, theta @ gradient - lam * (EYE - theta) @ nu
        )
        pull += w[i] * k[i] * ((1 - lam) * nu_i + lam * nu)
        sent += w[i] * (nu_i if average else gradient)
    system = torch.cat([pull, nu - sent])
    return torch.linalg.solve(system[:, :-1], -system[:, -1])[:D]


@weights
@schemes
def test_fedagrac_with_partial_calibration_converges_to_its_closed_form(w, scheme):
    algorithm = ud.FedaGrac(lr=0.5, lam=0.6, scheme=scheme)
    run = on_quadratics(algorithm, PROBLEM, rounds=35, work=WORK, weighting=w)
    assert distance(run.x, fedagrac_point(w, 0.5, 0.6, WORK, scheme)) < 1e-10
    assert distance(run.x, PROBLEM.optimum(w)) > 1e-3


@schemes
@pytest.mark.parametrize("lam", [0.3, 1.0])
def test_fedagrac_server_can_read_the_average_gradient_off_the_displacement(scheme, lam):
    """avg_i = (x - y_i) / (lr K_i) - lam (nu - nu_i); it or the first gradient is what is sent."""
    lr = 0.4
    uploads: dict[int, Any] = {}
    algorithm = ud.FedaGrac(lr=lr, lam=lam, scheme=scheme, nu_scope="participants")
    run = run_from_start(
        algorithm, rounds=3, tap=lambda up: uploads.__setitem__(up.client, up.upload)
    )
    x, nu, nu_i = run.x, run.state.nu, torch.zeros(N, D, dtype=A.dtype)
    for _ in run:
        for i, average in enumerate(sends_average(scheme, UNEQUAL, WORK)):
            read_off = -uploads[i].x / (lr * WORK[i]) - lam * (nu - nu_i[i])
            assert distance(run.client_states[i].nu, read_off) < 1e-13
            due = read_off if average else A[i] @ (x - B[i])
            assert distance(nu + uploads[i].nu, due) < 1e-13
        x, nu = run.state.x, run.state.nu
        nu_i = torch.stack([run.client_states[i].nu for i in range(N)])


@weights
@pytest.mark.parametrize("scheme", ["fedagrac", "avg"])
def test_fedagrac_over_all_clients_converges_where_over_participants_it_stalls(w, scheme):
    """nu over a cohort is the mean of its gradients at x*, which is not zero."""
    errors = {}
    for scope in ("all", "participants"):
        algorithm = ud.FedaGrac(lr=0.4, scheme=scheme, nu_scope=scope)
        run = run_from_start(algorithm, rounds=150, w=w, participation=pair_of_five, mode="loop")
        errors[scope] = (models(run) - PROBLEM.optimum(w)).norm(dim=1)
    assert errors["all"][-1] < 1e-10
    assert errors["participants"][50:].min() > 1e-3
    assert errors["participants"][50:].mean() > 0.1


@weights
@schemes
def test_fedagrac_over_all_clients_keeps_the_weighted_mean_of_what_was_sent(w, scheme):
    algorithm = ud.FedaGrac(lr=0.4, scheme=scheme, nu_scope="all")
    run = run_from_start(algorithm, rounds=6, w=w, participation=pair_of_five)
    for _ in run:
        seen = run.client_states
        sent = [seen[i].sent if i in seen else torch.zeros_like(run.x) for i in range(N)]
        assert distance(run.state.nu, weighted_sum(w, torch.stack(sent))) < 1e-13


@pytest.mark.parametrize(("one", "other"), [("fedagrac", "avg"), ("reverse", "first")])
def test_fedagrac_counts_clients_of_equal_work_as_slow(one, other):
    # In floats their mean of 3, 3, 3, 3, 3 is 3 - 4e-16: rounding must not make everybody fast.
    awkward = [1, 1, 3, 3, 6]
    trajectories = [
        models(run_from_start(ud.FedaGrac(lr=0.4, scheme=scheme), rounds=4, k=3, w=awkward))
        for scheme in (one, other)
    ]
    assert torch.equal(*trajectories)


# Costs

COSTS = [  # vectors down, vectors up, scalars down, gradients a step
    (ud.FedAvg(lr=0.1), 1, 1, 0, 1),
    (ud.FedProx(lr=0.1), 1, 1, 0, 1),
    (ud.FedACG(lr=0.1), 1, 1, 0, 1),
    (ud.Scaffold(lr=0.1), 2, 2, 0, 1),
    (ud.FedSpeed(lr=0.1), 1, 1, 0, 2),
    (ud.FedSpeed(lr=0.1, average="participants"), 1, 1, 0, 2),
    (ud.FedSpeed(lr=0.1, perturbation=False), 1, 1, 0, 1),
    (ud.FedaGrac(lr=0.1), 2, 2, 1, 1),
    (ud.FedaGrac(lr=0.1, scheme="reverse"), 2, 2, 1, 1),
    (ud.FedaGrac(lr=0.1, scheme="avg"), 2, 2, 0, 1),
    (ud.FedaGrac(lr=0.1, scheme="first", nu_scope="all"), 2, 2, 0, 1),
]


@pytest.mark.parametrize(("algorithm", "down", "up", "scalars", "per_step"), COSTS, ids=repr)
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_bytes_and_gradients_are_those_of_the_cost_table(
    algorithm, down, up, scalars, per_step, mode
):
    problem = bed(dtype=torch.float32)
    cohorts = [[0, 1, 3], [4], [0, 1, 2, 3, 4]]
    run = run_from_start(algorithm, problem, rounds=3, mode=mode, participation=cohorts)
    run.state = run.state._replace(x=run.x.float())
    for record, cohort in zip(run, cohorts, strict=True):
        assert record.clients == len(cohort)
        assert record.bytes_down == len(cohort) * (down * 4 * D + scalars * 4)
        assert record.bytes_up == len(cohort) * up * 4 * D
        assert record.gradients == per_step * sum(WORK[i] for i in cohort)
        assert record.samples == record.gradients * 16


def test_bytes_follow_the_precision_of_the_model():
    record = next(run_from_start(ud.FedaGrac(lr=0.1), rounds=1))
    assert record.bytes_down == N * (2 * 8 * D + 4)
    assert record.bytes_up == N * 2 * 8 * D


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_scaffold_option_one_pays_for_one_pass_over_the_local_data(mode):
    options = {"rounds": 1, "mode": mode, "batch_size": 6}  # slices of 6, 6 and 4 samples
    plain = next(run_from_start(ud.Scaffold(lr=0.1), **options))
    full = next(run_from_start(ud.Scaffold(lr=0.1, option="I"), **options))
    assert full.gradients - plain.gradients == 3 * N
    assert full.samples - plain.samples == 16 * N
    assert (full.bytes_up, full.bytes_down) == (plain.bytes_up, plain.bytes_down)


# Weight decay and clipping


@weights
@pytest.mark.parametrize("option", ["I", "II"])
def test_weight_decay_moves_scaffold_to_the_optimum_of_the_decayed_problem(w, option):
    run = on_quadratics(
        ud.Scaffold(lr=0.4, option=option),
        PROBLEM,
        rounds=40,
        work=WORK,
        weighting=w,
        weight_decay=0.2,
    )
    linear = weighted_sum(w, torch.einsum("ijk,ik->ij", A, B))
    decayed = torch.linalg.solve(weighted_sum(w, A) + 0.2 * EYE, linear)
    assert distance(run.x, decayed) < 1e-10
    assert distance(decayed, PROBLEM.optimum(w)) > 1e-2


@pytest.mark.parametrize("decay", [0.0, 0.7])
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_clip_bounds_the_data_gradient_and_leaves_the_decay_whole(decay, mode):
    lr, clip = 0.5, 1.35
    y = local_models(ud.FedAvg(lr=lr), 1, clip=clip, weight_decay=decay, mode=mode)
    g = gradients(PROBLEM, START)
    sizes = g.norm(dim=1, keepdim=True)
    assert (sizes > clip).any()
    assert (sizes < clip).any()  # these must stay as they are
    expected = g * (clip / sizes).clamp(max=1) + decay * START
    assert distance((START - y) / lr, expected) < 1e-13


def test_clip_bounds_every_local_step():
    lr, clip = 0.3, 0.1
    path = [local_models(ud.FedAvg(lr=lr), k, clip=clip) for k in range(1, 5)]
    steps = torch.stack([b - a for a, b in itertools.pairwise([START.expand(N, D), *path])])
    assert torch.allclose(
        steps.norm(dim=2), torch.full((4, N), lr * clip, dtype=A.dtype), rtol=1e-12
    )
