"""FedDC against Algorithm 1 of Gao et al. (2022) in naive loops, with the server of its code."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import (
    assert_same,
    assert_same_rows,
    everywhere,
    hard,
    hardest,
    options,
)
from undrift import exponential
from undrift.algorithms.feddc import FedDC


def box(A, b, w, K, cohorts, *, lr, alpha):
    N, d = b.shape
    x, h, G_i = np.zeros(d), np.zeros((N, d)), np.zeros((N, d))
    for t, S in enumerate(cohorts):
        mass, rate = sum(w[i] for i in S), lr(t) if callable(lr) else lr
        G = sum(w[i] * G_i[i] for i in range(N))  # lines 1, 6
        mean_y = np.zeros(d)
        for i in S:
            y = x.copy()  # line 2
            for _ in range(K[i]):
                g = A[i] @ (y - b[i])
                y = y - rate * (g + alpha * (y - x + h[i]) + G - G_i[i])  # line 3
            G_i[i] = G_i[i] - G + (x - y) / (K[i] * rate)  # lines 4, 5
            h[i] = h[i] + y - x  # line 5
            mean_y += w[i] / mass * y
        x = mean_y + sum(w[i] * h[i] for i in range(N))  # line 7: of everybody
    return x, h, G_i, sum(w[i] * h[i] for i in range(N)), sum(w[i] * G_i[i] for i in range(N))


def compare(run, x, h_i, G_i, h, G):
    assert_same(run.state.x, x)
    assert_same(run.state.h, h)
    assert_same(run.state.G, G)
    assert_same_rows({i: state.h for i, state in run.client_states.items()}, h_i)
    assert_same_rows({i: state.G for i, state in run.client_states.items()}, G_i)


@everywhere
@options({}, {"alpha": 0.6})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedDC(lr=0.3, **options))
    compare(run, *box(**case.given(), lr=0.3, **{"alpha": 0.01, **options}))


@hardest
def test_box_with_a_decaying_lr(case):
    """G_i has the lr of its round, not the first one."""
    run = case.run(FedDC(lr=exponential(0.4, 0.7), alpha=0.3))
    compare(run, *box(**case.given(), lr=lambda t: 0.4 * 0.7**t, alpha=0.3))
