"""FedAdam, FedYogi and FedAdagrad against Algorithm 2 of Reddi et al. (2021) in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, everywhere, hard, hardest
from undrift.algorithms.fedadagrad import FedAdagrad
from undrift.algorithms.fedadam import FedAdam
from undrift.algorithms.fedyogi import FedYogi


def adam(v, d, beta2):
    return beta2 * v + (1 - beta2) * d**2


def yogi(v, d, beta2):
    return v - (1 - beta2) * d**2 * np.sign(v - d**2)


def adagrad(v, d, beta2):
    return v + d**2


def box(A, b, w, K, cohorts, *, rule, lr, beta1, server_lr=0.1, beta2=0.99, tau=1e-3):
    """The box, coordinate by coordinate, with our own line numbers:

    1  client: y <- x;  K_i times: y <- y - lr grad F_i(y);  send D_i = y - x
    2  server: D = sum_i w_i D_i
    3  server: m <- beta1 m + (1 - beta1) D
    4  server: v <- beta2 v + (1 - beta2) D^2           Adam
               v <- v - (1 - beta2) D^2 sign(v - D^2)   Yogi
               v <- v + D^2                             Adagrad
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
            v[j] = rule(v[j], delta[j], beta2)  # line 4
            x[j] = x[j] + server_lr * m[j] / (np.sqrt(v[j]) + tau)  # line 5
    return x, m, v


def compare(run, x, m, v):
    assert_same(run.state.x, x)
    assert_same(run.state.m, m)
    assert_same(run.state.v, v)


COMMON = {"beta1": 0.5, "tau": 0.2, "server_lr": 0.7}
WITH_BETA2 = {**COMMON, "beta2": 0.3}


@pytest.mark.parametrize(
    ("method", "rule", "options"),
    [
        pytest.param(FedAdam, adam, WITH_BETA2, marks=pytest.mark.wide(daily=hard)),
        pytest.param(FedYogi, yogi, WITH_BETA2),
        pytest.param(FedAdagrad, adagrad, COMMON, marks=pytest.mark.wide(daily=hard)),
    ],
    ids=["fedadam", "fedyogi", "fedadagrad"],
)
@everywhere
def test_box(method, rule, options, case):
    run = case.run(method(lr=0.2, **options))
    compare(run, *box(**case.given(), rule=rule, lr=0.2, **options))


@pytest.mark.parametrize(
    ("method", "rule", "beta1"),
    [(FedAdam, adam, 0.9), (FedYogi, yogi, 0.9), (FedAdagrad, adagrad, 0.0)],
    ids=["fedadam", "fedyogi", "fedadagrad"],
)
@hardest
def test_defaults(method, rule, beta1, case):
    compare(case.run(method(lr=0.2)), *box(**case.given(), rule=rule, lr=0.2, beta1=beta1))
