"""FedProx against Algorithm 2 of Li et al. (2020), which has no line numbers, in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, everywhere, hard, hardest, options
from undrift import FedProx, Momentum


def box(A, b, w, K, cohorts, *, lr, mu, beta=0.0):
    """The inexact minimiser of the box is K_i gradient steps, with local momentum `beta`."""
    x = np.zeros(b.shape[1])
    for S in cohorts:  # server selects S_t, sends w^t
        mass = sum(w[i] for i in S)
        total = np.zeros_like(x)
        for i in S:  # each device minimises h(w) = F_i(w) + mu / 2 ||w - w^t||^2
            y, m = x.copy(), np.zeros_like(x)
            for _ in range(K[i]):
                h = A[i] @ (y - b[i]) + mu * (y - x)
                m = beta * m + h
                y = y - lr * m
            total += w[i] / mass * y  # sends w_i back
        x = total  # server: w^{t+1} is their mean
    return x


@everywhere
@options({"mu": 0.1}, {"mu": 1.5})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedProx(lr=0.3, **options))
    assert_same(run.state.x, box(**case.given(), lr=0.3, **options))


@hardest
def test_momentum_sees_the_gradient_of_the_penalty(case):
    run = case.run(FedProx(lr=0.2, mu=1.5, rule=Momentum(0.6)))
    assert_same(run.state.x, box(**case.given(), lr=0.2, mu=1.5, beta=0.6))
