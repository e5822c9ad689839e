"""FedCM against the box of Xu et al. (2021) in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import (
    PROBLEM,
    WORK,
    assert_same,
    everywhere,
    hard,
    hardest,
    options,
)
from tests.support.runs import on_quadratics
from undrift import exponential
from undrift.algorithms.fedcm import FedCM


def box(A, b, w, K, cohorts, *, lr, alpha):
    d = b.shape[1]
    x, m = np.zeros(d), np.zeros(d)
    for t, S in enumerate(cohorts):
        mass, rate = sum(w[i] for i in S), lr(t) if callable(lr) else lr
        mean = np.zeros(d)
        for i in S:
            y = x.copy()  # line 1
            for _ in range(K[i]):
                g = A[i] @ (y - b[i])
                y = y - rate * (alpha * g + (1 - alpha) * m / K[i])  # line 2
            mean += w[i] / mass * (y - x)  # line 3
        m = -mean / rate  # line 4
        x = x - rate * m  # line 4
    return x, m


def published_box(A, b, w, K, *, lr, alpha, rounds):
    """The paper's own, in which all clients take the same K steps and Delta has gradient units."""
    N, d = b.shape
    x, delta = np.zeros(d), np.zeros(d)
    for _ in range(rounds):
        total = np.zeros(d)
        for i in range(N):
            y = x.copy()
            for _ in range(K):
                y = y - lr * (alpha * A[i] @ (y - b[i]) + (1 - alpha) * delta)
            total += w[i] * (y - x)
        delta = -total / (K * lr)
        x = x - lr * K * delta
    return x, delta


def compare(run, x, m):
    assert_same(run.state.x, x)
    assert_same(run.state.m, m)
    assert all(state == () for state in run.client_states.values())


@everywhere
@options({}, {"alpha": 0.4})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedCM(lr=0.3, **options))
    compare(run, *box(**case.given(), lr=0.3, **{"alpha": 0.1, **options}))


@hardest
def test_box_with_a_decaying_lr(case):
    run = case.run(FedCM(lr=exponential(0.4, 0.7), alpha=0.3))
    compare(run, *box(**case.given(), lr=lambda t: 0.4 * 0.7**t, alpha=0.3))


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_published_box_where_all_take_the_same_number_of_steps(mode):
    w, K = (0.35, 0.05, 0.25, 0.15, 0.2), WORK["equal"][0]
    algorithm = FedCM(lr=0.3, alpha=0.2)
    run = on_quadratics(algorithm, PROBLEM, rounds=5, work=K, weighting=w, mode=mode)
    A, b = PROBLEM.A.numpy(), PROBLEM.b.numpy()
    x, delta = published_box(A, b, w, K, lr=0.3, alpha=0.2, rounds=5)
    assert_same(run.state.x, x)
    assert_same(run.state.m / K, delta)
