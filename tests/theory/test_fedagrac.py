"""Theorems 4.1 to 4.3 of the thesis: FedAvg's gap, and the noise of unequal steps."""

from __future__ import annotations

import numpy as np
import pytest

import undrift as ud
from tests.support.theory import slope, trained
from undrift.theory import Constants, fedagrac, fedavg, fednova, scaffold, violated
from undrift.theory.noise import floor

HUGE = [1, 1, 1, 1, 1, 1, 1, 57]  # K-bar = 8


@pytest.mark.parametrize("steps", [[1, 1, 1], [1, 3, 9], [2, 2, 50]])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_gap_of_theorem_4_1_has_the_constant_one_as_lr_vanishes(steps, seed) -> None:
    problem = ud.data.quadratics(3, 2, seed=seed)
    A, b = problem.A.numpy(), problem.b.numpy()

    def losses(x):
        return np.array([0.5 * (x - c) @ a @ (x - c) for a, c in zip(A, b, strict=True)])

    best = problem.optimum().numpy()
    bound = fedagrac.theorem_4_1(losses(best), steps=steps)
    limit = fedavg.fixed_point(A, b, lr=1e-6, steps=steps)
    gap = losses(limit).mean() - losses(best).mean()
    assert gap <= bound.value + 1e-9
    assert (gap > 1e-6) == (len(set(steps)) > 1)


def test_the_gap_of_theorem_4_1_depends_on_a_constant_that_changes_no_run() -> None:
    near, far = (fedagrac.theorem_4_1([c, c], steps=[1, 5]).value for c in (0.0, 10.0))
    assert near == 0
    assert far == 20


def test_one_huge_client_costs_fednova_and_fedagrac_a_factor_of_k() -> None:
    """The remark after Corollary 4.2.1 says so of FedNova alone; its own third term has it, too."""
    factor = fedagrac.asynchrony(HUGE)
    assert factor == pytest.approx(8 * (7 + 1 / 57) / 8)
    assert fednova.noise(steps=HUGE) / fedavg.noise(steps=HUGE) == pytest.approx(factor)
    assert scaffold.noise(steps=HUGE) == fednova.noise(steps=HUGE)
    assert fedagrac.noise(lam=1.0, steps=HUGE) > fednova.noise(steps=HUGE)
    order = fedagrac.theorem_4_2(Constants(1.0, 1.0, gap=1.0), lam=1.0, steps=HUGE, rounds=10**9)
    assert order.terms["noise of the references"] / order.terms["noise"] > 0.9 * factor
    claimed, true = fedagrac.corollary_4_2_1(steps=HUGE, rounds=10**9).terms.values()
    assert true / claimed == pytest.approx(factor)


def test_theorem_4_3_has_the_factor_that_its_corollary_drops() -> None:
    constants, options = Constants(1.0, 1.0), {"mu": 0.5, "steps": HUGE, "rounds": 10**6}
    H = fedagrac.theorem_4_3(constants, distance=1.0, **options).terms["H / (mu T)"]
    claimed, true = fedagrac.corollary_4_3_1(constants, **options).terms.values()
    assert 6 * claimed < H
    assert pytest.approx(true, rel=0.3) == H


def test_equal_steps_have_no_noise_of_references() -> None:
    for lam in (0.0, 0.5, 1.0):
        assert fedagrac.noise(lam=lam, steps=[4] * 5) == pytest.approx(fedavg.noise(steps=[4] * 5))


def test_the_conditions_of_the_proofs() -> None:
    held = fedagrac.conditions(Constants(1.0, B=3.0), lr=1e-3, steps=HUGE, lam=0.05)
    names = {each.name.split(" ")[0] for each in violated(held)}
    assert names == {"K_i", "lam"}
    good = fedagrac.conditions(Constants(1.0), lr=1e-3, steps=[4, 8], lam=1.0)
    assert not violated(good)
    advice = fedagrac.recommended(Constants(1.0), steps=[4, 8], rounds=100)
    assert not violated(advice.conditions)


def stationary(method, steps, *, rounds, lr_a=0.5, seed=0, clients=None):
    """Return E||x - x*||^2 over late rounds on one bowl for all clients, by the library."""
    problem = ud.data.known_constants(
        clients or len(steps), 64, sigma=1.0, zeta=0.0, L=lr_a, mu=lr_a, samples=4096, seed=seed
    )
    runs = trained(method, problem, rounds=rounds, steps=steps, x0=problem.optimum(), seed=seed)
    squares = [float((run.x - problem.optimum()).square().sum()) for run in runs]
    return float(np.mean(squares[rounds // 5 :]))


SMALL, CURVATURE = 0.01, 0.5
STEPS = [1, 2, 9]
FORMS = [
    (ud.FedAvg(lr=SMALL), fedavg.noise(steps=STEPS)),
    (ud.FedNova(lr=SMALL), fednova.noise(steps=STEPS)),
    (ud.Scaffold(lr=SMALL), scaffold.noise(steps=STEPS)),
    (ud.FedaGrac(lr=SMALL, lam=1.0), fedagrac.noise(lam=1.0, steps=STEPS)),
    (ud.FedaGrac(lr=SMALL, lam=0.5), fedagrac.noise(lam=0.5, steps=STEPS)),
]


@pytest.mark.long
@pytest.mark.parametrize(("method", "variance"), FORMS, ids=lambda v: type(v).__name__)
def test_noise_floors_are_their_closed_forms(method, variance) -> None:
    predicted = floor(variance, lr=SMALL, sigma=1.0, curvature=CURVATURE, mean_steps=4.0)
    found = stationary(method, STEPS, rounds=1500)
    assert found == pytest.approx(predicted, rel=0.2)


def boxed(steps, *, scheme, lr, curvature, rounds, dim=64, seed=0):
    """Return E||x||^2 of FedaGrac at lam = 1, by its box as loops with iid noise of sigma 1."""
    rng = np.random.default_rng(seed)
    K, M = np.array(steps), len(steps)
    mean, squares = K.mean(), []
    x, nu, nu_i = np.zeros(dim), np.zeros(dim), np.zeros((M, dim))
    for _ in range(rounds):
        ends, sent = [], []
        for i in range(M):
            y, gradients = x, []
            for _ in range(K[i]):
                gradients.append(curvature * y + rng.normal(size=dim) / dim**0.5)
                y = y - lr * (gradients[-1] + nu - nu_i[i])
            average = np.mean(gradients, axis=0)
            sent.append(gradients[0] if K[i] > mean and scheme == "fedagrac" else average)
            nu_i[i] = average
            ends.append(y)
        x, nu = np.mean(ends, axis=0), np.mean(sent, axis=0)
        squares.append(float(x @ x))
    return np.mean(squares[rounds // 5 :])


@pytest.mark.parametrize(
    ("scheme", "variance"),
    [("fedagrac", fedagrac.noise(lam=1.0, steps=STEPS)), ("avg", scaffold.noise(steps=STEPS))],
)
def test_first_gradients_make_fedagrac_noisier_than_averages(scheme, variance) -> None:
    """At lam = 1 the references of fast clients have the noise of one minibatch."""
    found = boxed(STEPS, scheme=scheme, lr=SMALL, curvature=CURVATURE, rounds=1500)
    predicted = floor(variance, lr=SMALL, sigma=1.0, curvature=CURVATURE, mean_steps=4.0)
    assert found == pytest.approx(predicted, rel=0.12)
    ratio = fedagrac.noise(lam=1.0, steps=STEPS) / scaffold.noise(steps=STEPS)
    assert ratio == pytest.approx((1 + 0.5 + 1) / (1 + 0.5 + 1 / 9))


@pytest.mark.long
def test_slopes_in_steps_clients_and_rate() -> None:
    """FedAvg's floor is lr sigma^2 / (2 a M): slope -1 in M, 1 in lr, 0 in K."""
    few = {"rounds": 300, "lr_a": CURVATURE}
    M = {m: stationary(ud.FedAvg(lr=0.06), [2] * m, **few) for m in (2, 8, 32)}
    K = {k: stationary(ud.FedAvg(lr=0.04), [k] * 4, **few) for k in (1, 3, 9)}
    lr = {r: stationary(ud.FedAvg(lr=r), [4] * 4, **few) for r in (0.02, 0.04, 0.08)}
    assert -1.15 < slope(M) < -0.85
    assert -0.15 < slope(K) < 0.15
    assert 0.8 < slope(lr) < 1.2
