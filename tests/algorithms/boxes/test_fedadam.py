"""FedAdam against Algorithm 2 of Reddi et al. (2021) in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, everywhere, hardest
from undrift.algorithms.fedadam import FedAdam


def box(A, b, w, K, cohorts, *, lr, server_lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3):
    """The box, coordinate by coordinate, with our own line numbers:

    1  client: y <- x;  K_i times: y <- y - lr grad F_i(y);  send D_i = y - x
    2  server: D = sum_i w_i D_i
    3  server: m <- beta1 m + (1 - beta1) D
    4  server: v <- beta2 v + (1 - beta2) D^2
    5  server: x <- x + server_lr m / (sqrt(v) + tau)
    """
    d = b.shape[1]
    x, m, v = np.zeros(d), np.zeros(d), np.zeros(d) + tau**2
    for S in cohorts:
        mass = sum(w[i] for i in S)
        delta = np.zeros(d)
        for i in S:
            y = x.copy()
            for _ in range(K[i]):
                y = y - lr * A[i] @ (y - b[i])  # line 1
            delta += w[i] / mass * (y - x)  # line 2
        for j in range(d):
            m[j] = beta1 * m[j] + (1 - beta1) * delta[j]  # line 3
            v[j] = beta2 * v[j] + (1 - beta2) * delta[j] ** 2  # line 4
            x[j] = x[j] + server_lr * m[j] / (np.sqrt(v[j]) + tau)  # line 5
    return x, m, v


def compare(run, x, m, v):
    assert_same(run.state.x, x)
    assert_same(run.state.m, m)
    assert_same(run.state.v, v)


OPTIONS = {"beta1": 0.5, "beta2": 0.3, "tau": 0.2, "server_lr": 0.7}


@everywhere
@pytest.mark.wide
def test_box(case):
    run = case.run(FedAdam(lr=0.2, **OPTIONS))
    compare(run, *box(**case.given(), lr=0.2, **OPTIONS))


@hardest
def test_defaults(case):
    compare(case.run(FedAdam(lr=0.2)), *box(**case.given(), lr=0.2))
