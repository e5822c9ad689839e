"""Theorem 4.4 of FedSpeed: what follows from its proof holds, and what is printed does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.theory import exact, mean_square, trained
from undrift.theory import Constants, fedspeed, violated

SETTINGS = [  # lam, steps, sigma, zeta, clients
    (0.015, 1, 1.0, 1.0, 2),
    (0.012, 4, 0.0, 3.0, 4),
    (0.012, 8, 1.0, 0.5, 4),
]


def run_of(lr, lam, steps, sigma, zeta, clients, rounds, *, x0=None, **fields):
    problem = ud.data.known_constants(clients, sigma=sigma, zeta=zeta)
    fields = {"rho": 0.0, "alpha": 0.0, "normalise": False, "perturbation": False} | fields
    method = ud.FedSpeed(lr=lr, lam=lam, **fields)
    runs = trained(method, problem, rounds=rounds, steps=steps, x0=x0)

    def gradient(run):
        z = fedspeed.auxiliary(run.state.x, run.state.g_hat, lr=lr, lam=lam, steps=steps)
        return problem.gradient(z)

    return problem, gradient, runs


@pytest.mark.parametrize(("lam", "steps", "sigma", "zeta", "clients"), SETTINGS)
def test_the_bound_of_the_proof_is_not_violated(lam, steps, sigma, zeta, clients) -> None:
    rounds, lr = 100, lam / steps
    problem, gradient, runs = run_of(lr, lam, steps, sigma, zeta, clients, rounds)
    bound = fedspeed.bound(
        exact(problem), lr=lr, lam=lam, steps=steps, rounds=rounds, clients=clients
    )
    assert not bound.void
    measured = mean_square(gradient, runs, first=problem.gradient(torch.zeros(4).double()))
    assert measured <= bound.value < math.inf


def test_the_bound_of_the_proof_covers_the_perturbation() -> None:
    lam, steps, rho, alpha = 0.01, 2, 0.05, 0.9
    fields = {"rho": rho, "alpha": alpha, "perturbation": True}
    problem, gradient, runs = run_of(lam / 2, lam, steps, 0.5, 1.0, 4, 80, **fields)
    bound = fedspeed.bound(
        exact(problem),
        lr=lam / 2,
        lam=lam,
        steps=steps,
        rounds=80,
        clients=4,
        rho=rho,
        alpha=alpha,
    )
    assert mean_square(gradient, runs) <= bound.value < math.inf


def test_one_step_with_lr_equal_to_lam_is_sgd_from_a_point_one_step_ahead() -> None:
    lam = 0.005
    problem, _, runs = run_of(lam, lam, 1, 0.0, 1.0, 2, 5)
    z = torch.zeros_like(problem.A)
    g = torch.zeros_like(z)
    for run in runs:
        g = problem.gradient(z - lam * g)
        z = z - lam * g
        found = fedspeed.auxiliary(run.state.x, run.state.g_hat, lr=lam, lam=lam, steps=1)
        assert found == pytest.approx(z, abs=1e-12)


def test_the_printed_bound_is_violated_by_the_noise_that_it_leaves_out() -> None:
    """FedSpeed as SGD with step lam, at the optimum of x^2 / 2: noise does not vanish with T."""
    lam, rounds, dim = 0.005, 3000, 50
    noise = np.random.default_rng(0).normal(size=(rounds, dim)) / math.sqrt(dim)  # sigma = 1
    z, g, path = np.zeros(dim), np.zeros(dim), []
    for xi in noise:
        path.append(z)
        g = z - lam * g + xi
        z = z - lam * g
    measured = np.mean(np.square(path).sum(1))
    constants = Constants(1.0, sigma=1.0, gap=float(path[1] @ path[1]) / 2)
    known = {"lr": lam, "lam": lam, "steps": 1, "rounds": rounds}
    printed = fedspeed.printed(constants, corrections=(1.1, 1.1), **known)
    derived = fedspeed.bound(constants, clients=1, **known)
    assert not printed.void
    assert printed.value < measured / 2
    assert measured <= derived.value


def test_the_printed_drift_is_violated_by_long_local_intervals() -> None:
    """With lr = lam / K a client moves by about 0.6 lam ||grad F_i|| however large K is."""
    lam, steps, g = 1e-3, 4000, 1.0
    r = 1 / steps
    weights = r * (1 - r) ** np.arange(steps - 1, -1, -1) / fedspeed.gamma(lam * r, lam, steps)
    moved = lam * (1 - (1 - r) ** np.arange(steps)) * g  # of y_k, for a gradient that is constant
    printed = 8 * (lam * r) ** 2 * steps * 16 * g**2  # of C.4.2 with zeta = g and no other terms
    assert float(weights @ moved**2) > 2 * printed


def test_a_of_one_needs_a_step_of_half_lam() -> None:
    for r in np.linspace(0.01, 0.49, 20):
        assert 2 * (1 - r) ** 2 > 1 - r


@pytest.mark.parametrize("clients", [1, 10, 100])
def test_the_condition_on_lam_has_no_factor_of_the_clients(clients) -> None:
    """As printed it would be lam <= 0.0035 for 100 clients and L = 1."""
    L, q = 1.0, 1.0
    printed = 1 / (clients * math.sqrt(8 * q) * L)
    held = fedspeed.conditions(Constants(L), lr=0.01, lam=0.01, steps=1)
    assert not violated(held)
    assert (printed < 0.01) == (clients == 100)


def test_the_experiments_are_outside_of_the_theorem() -> None:
    """lr 0.1, lam 10, 50 steps, rho 0.1: for L = 1 four of the conditions are violated."""
    held = fedspeed.conditions(Constants(1.0), lr=0.1, lam=10.0, steps=50, rho=0.1, alpha=0.9375)
    assert {"K >= lam / lr", "kappa > 0"} <= {each.name for each in violated(held)}


def test_recommended_parameters_satisfy_the_conditions() -> None:
    constants = Constants(2.0, 1.0, 1.0, gap=1.0)
    advice = fedspeed.recommended(constants, steps=5, rounds=1000, clients=10)
    assert not violated(advice.conditions)
    larger = fedspeed.bound(
        constants,
        lr=2 * advice.parameters["lr"],
        lam=2 * advice.parameters["lam"],
        steps=5,
        rounds=1000,
        clients=10,
    )
    here = fedspeed.bound(
        constants,
        lr=advice.parameters["lr"],
        lam=advice.parameters["lam"],
        steps=5,
        rounds=1000,
        clients=10,
    )
    assert here.value < larger.value


def test_as_printed_it_stalls_under_partial_participation() -> None:
    """Line 16 leaves lam ||mean_S grad F_i(x*)||; over all clients the error goes on falling."""
    lam, clients, participants = 1.0, 6, 2
    problem = ud.data.known_constants(clients, sigma=0.0, zeta=1.0, mu=0.5)
    floor = fedspeed.stall(lam, problem.zeta, clients=clients, participants=participants)
    errors = {}
    for aggregation in ("participants", "all"):
        method = ud.FedSpeed(lr=0.5, lam=lam, perturbation=False, average=aggregation)
        runs = trained(method, problem, rounds=120, steps=4, batch=None, participation=participants)
        late = [run.state.x - problem.optimum() for run in runs][-60:]
        errors[aggregation] = math.sqrt(np.mean([float(e.square().sum()) for e in late]))
    assert 0.5 * floor < errors["participants"] < 2 * floor
    assert errors["all"] < 0.02 * floor
