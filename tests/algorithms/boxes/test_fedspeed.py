"""FedSpeed against Algorithm 1 of Sun et al. (2023) in naive loops."""

from itertools import product

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
from undrift import FedSpeed


def box(
    A,
    b,
    w,
    K,
    cohorts,
    *,
    lr,
    lam,
    rho,
    alpha=0.9375,
    normalise=True,
    correction=True,
    prox=True,
    perturbation=True,
    average="all",
):
    N, d = b.shape
    x, g_hat = np.zeros(d), np.zeros((N, d))  # line 1
    for S in cohorts:  # lines 2, 3
        mass = sum(w[i] for i in S)
        mean_y, mean_sent = np.zeros(d), np.zeros(d)
        for i in S:
            y = x.copy()  # lines 4, 5
            for _ in range(K[i]):  # line 6
                g1 = A[i] @ (y - b[i])  # line 7
                length = np.sqrt(g1 @ g1) + 1e-7 if normalise else 1.0
                g2 = A[i] @ (y + rho * g1 / length - b[i])  # lines 8, 9
                g = (1 - alpha) * g1 + alpha * g2 if perturbation else g1  # line 10
                pull = (y - x) / lam if prox else 0
                y = y - lr * (g - g_hat[i] + pull)  # line 11
            if correction:
                g_hat[i] = g_hat[i] - (y - x) / lam  # line 13
            mean_y += w[i] / mass * y
            mean_sent += w[i] / mass * (y - lam * g_hat[i])  # line 14
        if average == "participants":
            x = mean_sent  # line 16
        else:  # line 16 as in the authors' code: the duals of everybody, also of the absent
            x = mean_y - lam * sum(w[i] * g_hat[i] for i in range(N))
    return x, g_hat, sum(w[i] * g_hat[i] for i in range(N))


def compare(run, x, g_hat, mean_g_hat):
    assert_same(run.state.x, x)
    assert_same_rows(run.client_states, g_hat)
    if run.algorithm.average == "all":  # otherwise nobody needs the mean of the duals
        assert_same(run.state.g_hat, mean_g_hat)


@everywhere
@options({}, {"normalise": False}, {"average": "participants"}, {"alpha": 0.3})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedSpeed(lr=0.3, lam=2.0, rho=0.4, **options))
    compare(run, *box(**case.given(), lr=0.3, lam=2.0, rho=0.4, **options))


SWITCHES = product((True, False), (True, False), (True, False), ("all", "participants"))
NAMES = ("correction", "prox", "perturbation", "average")


def one_or_all_changed(parameters):
    """Return whether at most one switch is not at its default, or all are."""
    options, default = parameters["options"], FedSpeed(lr=0.3)
    changed = sum(options[name] != getattr(default, name) for name in NAMES)
    return changed <= 1 or changed == len(NAMES)


@hardest
@options(*(dict(zip(NAMES, values, strict=True)) for values in SWITCHES))
@pytest.mark.wide(daily=one_or_all_changed)
def test_switches(case, options):
    run = case.run(FedSpeed(lr=0.3, lam=2.0, rho=0.4, **options))
    compare(run, *box(**case.given(), lr=0.3, lam=2.0, rho=0.4, **options))
