"""FedACG against Algorithm 1 of Kim et al. (2024) in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, everywhere, hard, hardest, options
from undrift import FedACG, Momentum


def box(A, b, w, K, cohorts, *, lr, lam, beta, momentum=0.0):
    """The box, with our own line numbers:

    1  server: broadcast theta + lam m
    2  client: theta_i <- theta + lam m
    3  client, K_i times: theta_i <- theta_i - lr grad, the loss
       being F_i + beta / 2 ||theta_i - (theta + lam m)||^2
    4  client: send Delta_i = theta_i - (theta + lam m)
    5  server: m <- lam m + sum_i w_i Delta_i
    6  server: theta <- theta + m
    """
    theta, m = np.zeros(b.shape[1]), np.zeros(b.shape[1])
    for S in cohorts:
        mass = sum(w[i] for i in S)
        delta = np.zeros_like(theta)
        for i in S:
            theta_i, v = theta + lam * m, np.zeros_like(theta)  # lines 1, 2
            for _ in range(K[i]):
                g = A[i] @ (theta_i - b[i]) + beta * (theta_i - (theta + lam * m))  # line 3
                v = momentum * v + g  # plain SGD in the box
                theta_i = theta_i - lr * v  # line 3
            delta += w[i] / mass * (theta_i - (theta + lam * m))  # line 4
        m = lam * m + delta  # line 5
        theta = theta + m  # line 6
    return theta, m


def compare(run, theta, m):
    assert_same(run.state.x, theta)
    assert_same(run.state.m, m)


@everywhere
@options({"lam": 0.85, "beta": 0.01}, {"lam": 0.5, "beta": 1.2}, {"lam": 0.0, "beta": 0.3})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedACG(lr=0.2, **options))
    compare(run, *box(**case.given(), lr=0.2, **options))


@hardest
def test_momentum_sees_the_gradient_of_the_penalty(case):
    run = case.run(FedACG(lr=0.2, lam=0.5, beta=1.2, rule=Momentum(0.6)))
    compare(run, *box(**case.given(), lr=0.2, lam=0.5, beta=1.2, momentum=0.6))
