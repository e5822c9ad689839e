"""Theorem 1 and Corollary 2 of NET-FLEET: the bound, its conditions, and noise like K lr."""

from __future__ import annotations

import math

import numpy as np
import pytest

import undrift as ud
from tests.support.theory import exact, slope, trained
from undrift.theory import Constants, netfleet, violated


def second(topology) -> float:
    return 1 - topology.spectral_gap


def boxed(problem, W, *, lr, steps, rounds, sigma, seed=0):
    """Return (rounds x steps) the models of all nodes, by NET-FLEET's box as loops, iid noise."""
    rng = np.random.default_rng(seed)
    A, b = problem.A.numpy(), problem.b.numpy()
    x, models = np.zeros_like(b), []

    def gradient(x):
        return A * (x - b) + rng.normal(size=b.shape) * sigma / math.sqrt(b.shape[1])

    y = g = gradient(x)
    for _ in range(rounds):
        for k in range(steps):
            models.append(x)
            mixed, track = (W @ x, W @ y) if k == 0 else (x, y)
            x = mixed - lr * y
            new = gradient(x)
            y, g = track + new - g, new
    return models


def metric(problem, models):
    """Return the mean of Theorem 1 over the models."""
    A, best = problem.A.numpy(), problem.optimum().numpy()
    return np.mean(
        [
            np.square(A * (x.mean(0) - best)).sum()
            + problem.L**2 * np.square(x - x.mean(0)).sum(1).mean()
            for x in models
        ]
    )


@pytest.mark.parametrize(
    ("graph", "steps", "sigma"), [("ring", 1, 1.0), ("ring", 4, 0.5), ("complete", 3, 0.0)]
)
def test_the_bound_of_theorem_1_is_not_violated(graph, steps, sigma) -> None:
    nodes, rounds = 5, 300
    topology = getattr(ud.topology, graph)(nodes)
    problem = ud.data.known_constants(nodes, sigma=sigma, zeta=1.0)
    constants = exact(problem)
    known = {"steps": steps, "nodes": nodes, "eigenvalue": second(topology)}
    lr = netfleet.largest_step(constants, **known)
    models = boxed(problem, topology.W, lr=lr, steps=steps, rounds=rounds, sigma=sigma)
    measured = metric(problem, models)
    bound = netfleet.bound(constants, lr=lr, rounds=rounds, **known)  # y may only add to it
    assert not bound.void
    assert measured <= bound.value < math.inf


def test_the_engine_agrees_with_the_box_of_the_bound() -> None:
    topology, rounds = ud.topology.ring(5), 4
    problem = ud.data.known_constants(5, sigma=0.0, samples=2)
    known = {"lr": 0.05, "steps": 3}
    models = boxed(problem, topology.W, rounds=rounds + 1, sigma=0.0, **known)
    method = ud.NetFleet(lr=0.05)
    runs = trained(method, problem, rounds=rounds, steps=3, batch=None, topology=topology)
    assert list(runs)[-1].state.x == pytest.approx(models[3 * rounds], abs=1e-12)


def test_the_theorem_leaves_out_the_condition_that_counts() -> None:
    """r_4 <= r_5, and with K_1's factor 6 lost the printed limits allow what the proof does not."""
    constants, known = Constants(50.0), {"steps": 4, "nodes": 1000, "eigenvalue": 0.99}
    limits = {
        reading: min(
            each.limit
            for each in netfleet.conditions(constants, lr=1e-9, reading=reading, **known)
            if each.name.startswith("lr <=")
            and "m L^2" not in each.name
            and "m K L^2" not in each.name
        )
        for reading in ("printed", "derived")
    }
    assert limits["derived"] < limits["printed"]


def test_the_experiments_are_outside_of_the_theorem() -> None:
    """m = 50, K = 10: even for L = 1 and the best graph lr is at most 2e-4, and 0.01 was used."""
    known = {"steps": 10, "nodes": 50, "eigenvalue": 0.5}
    held = netfleet.conditions(Constants(1.0), lr=0.01, reading="printed", **known)
    assert len(violated(held)) >= 2
    assert netfleet.largest_step(Constants(1.0), **known) < 2e-4
    order = netfleet.corollary_2(steps=10, rounds=1000, nodes=50)
    assert [each.name for each in violated(order.conditions)] == ["K <= S^(1/3) / m"]


def test_recommended_steps_satisfy_the_conditions() -> None:
    advice = netfleet.recommended(Constants(1.0), rounds=8000, nodes=5, eigenvalue=0.6)
    assert advice.parameters["steps"] == 4
    assert not violated(advice.conditions)


def consensus(lr, steps, *, nodes=6, rounds=4000):
    """Return mean_i ||x_i - x-bar||^2 at late rounds and its closed form, by the box with noise."""
    topology = ud.topology.ring(nodes)
    problem = ud.data.known_constants(nodes, 32, sigma=0.0, zeta=0.0, L=0.01, mu=0.01, samples=2)
    late = boxed(problem, topology.W, lr=lr, steps=steps, rounds=rounds, sigma=1.0)[1000 * steps :]
    found = np.mean([np.square(x - x.mean(0)).sum(1).mean() for x in late[::steps]])
    eigenvalues = np.linalg.eigvalsh(topology.W).tolist()
    return found, netfleet.consensus_noise(1.0, lr=lr, steps=steps, eigenvalues=eigenvalues)


def test_consensus_noise_is_its_closed_form() -> None:
    found, predicted = consensus(0.02, 8, rounds=2500)
    assert found == pytest.approx(predicted, rel=0.1)


@pytest.mark.long
def test_noise_grows_like_k_lr() -> None:
    """The root of the consensus error has slope one in K and in lr."""
    steps = {K: consensus(0.02, K)[0] ** 0.5 for K in (8, 16, 32)}
    rates = {lr: consensus(lr, 16)[0] ** 0.5 for lr in (0.005, 0.01, 0.02)}
    assert 0.85 < slope(steps) < 1.15
    assert 0.9 < slope(rates) < 1.1
