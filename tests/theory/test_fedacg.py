"""Theorems 1 and 2 of FedACG: Lemma 3 holds, and the rate that is claimed does not follow."""

from __future__ import annotations

import math

import pytest
import torch

import undrift as ud
from tests.support.theory import exact, mean_square, trained
from undrift.theory import Constants, fedacg, violated


@pytest.mark.parametrize(
    ("lam", "steps", "sigma", "participants"),
    [(0.0, 1, 1.0, 6), (0.6, 4, 0.5, 6), (0.85, 4, 0.0, 6), (0.6, 2, 0.5, 2)],
)
def test_the_bound_of_lemma_3_is_not_violated(lam, steps, sigma, participants) -> None:
    problem = ud.data.known_constants(6, sigma=sigma, zeta=0.5)
    constants = exact(problem)
    options = {"lam": lam, "steps": steps, "rounds": 100, "clients": 6}
    options["participants"] = participants
    lr = 5 * fedacg.recommended(constants, **options).parameters["lr"]
    bound = fedacg.bound(constants, lr=lr, **options)
    runs = trained(
        ud.FedACG(lr=lr, lam=lam, beta=0.0),
        problem,
        rounds=100,
        steps=steps,
        participation=participants,
    )
    first = problem.gradient(torch.zeros(4).double())
    measured = mean_square(
        lambda run: problem.gradient(run.state.x + lam * run.state.m), runs, first=first
    )
    assert measured <= bound.value < math.inf


def test_theorem_2_covers_the_run_at_the_recommended_step() -> None:
    problem = ud.data.known_constants(4, sigma=0.5, zeta=0.5)
    constants, options = exact(problem), {"lam": 0.85, "steps": 4, "rounds": 60, "clients": 4}
    lr = fedacg.recommended(constants, **options).parameters["lr"]
    runs = trained(ud.FedACG(lr=lr, lam=0.85, beta=0.0), problem, rounds=60, steps=4)
    measured = mean_square(lambda run: problem.gradient(run.state.x + 0.85 * run.state.m), runs)
    lemma, theorem = (
        fedacg.bound(constants, lr=lr, **options),
        fedacg.theorem_2(constants, **options),
    )
    assert measured <= lemma.value <= theorem.value


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.85, 0.95])
@pytest.mark.parametrize("participants", [1, 3, 100])
@pytest.mark.parametrize("B", [1.0, 3.0])
def test_the_simplifications_of_lemma_3(lam, participants, B) -> None:
    """C_10 <= -lr K / (10 (1 - lam)) and the printed bounds of C_8 and C_9 at the largest lr."""
    constants, K = Constants(2.0, B=B), 5
    A = fedacg.participation_factor(100, participants)
    lr = (1 - lam) / (100 * K * constants.L * (B**2 + 1))
    c8, c9, c10 = fedacg.coefficients(constants, lr=lr, lam=lam, steps=K, A=A)
    psi_1, psi_2, psi_3, psi_4 = fedacg.psi(lam, K, A)
    unit = (lr * K / (1 - lam)) ** 2 * constants.L
    h = lr * K * constants.L / (1 - lam)
    assert c10 <= -lr * K / (10 * (1 - lam))
    assert c8 <= unit * (psi_1 + h * A * psi_3) * (1 + 1e-9)
    assert c9 <= unit * (psi_2 + h * A * psi_4) * (1 + 1e-9)


def test_the_printed_psi_have_no_speed_up() -> None:
    """As K and |S| grow, psi_1 -> 2.80 and psi_2 -> 5.52 at lam = 0.85."""
    psi_1, psi_2, _, _ = fedacg.psi(0.85, 10**9, 1.0)
    assert psi_1 == pytest.approx(2.80, abs=0.005)
    assert psi_2 == pytest.approx(5.52, abs=0.005)
    orders = [
        fedacg.theorem_1(
            Constants(1.0, 1.0, 1.0, 1.0),
            lam=0.85,
            steps=10,
            rounds=100,
            clients=10**6,
            participants=p,
        )
        for p in (10, 10**6)
    ]
    (few,), (many,) = (list(order.terms.values()) for order in orders)
    assert many > 0.8 * few  # a hundred thousand times as many clients


def test_no_step_below_the_limit_is_enough_for_inequality_six() -> None:
    """Theorem 2 says "by setting lr <= ..."; for lr -> 0 nothing moves and the bound fails."""
    problem = ud.data.known_constants(4, sigma=0.0, zeta=0.0, L=1.0)
    constants = exact(problem)
    theorem = fedacg.theorem_2(constants, lam=0.85, steps=4, rounds=10**6, clients=4)
    start = float(problem.gradient(torch.zeros(4).double()).square().sum())
    assert not violated(fedacg.conditions(constants, lr=1e-12, lam=0.85, steps=4))
    moved = 1e-12 * 4 / 0.15 * 10**6 * problem.L  # at most this share of the distance
    assert start * (1 - moved) ** 2 > theorem.value
