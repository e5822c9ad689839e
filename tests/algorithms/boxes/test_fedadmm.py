"""FedADMM against the box of Wang, Marella and Anderson (2022) in naive loops."""

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
from undrift.algorithms.fedadmm import FedADMM


def box(A, b, w, K, cohorts, *, lr, rho, average="all"):
    N, d = b.shape
    x, lam, x_hat = np.zeros(d), np.zeros((N, d)), np.zeros((N, d))
    counted = set(range(N)) if average == "all" else set()
    for t, S in enumerate(cohorts):
        r = rho(t) if callable(rho) else rho
        for i in S:
            y = x.copy()  # line 1
            for _ in range(K[i]):
                g = A[i] @ (y - b[i])
                y = y - lr * (g + lam[i] + r * (y - x))  # line 2
            lam[i] = lam[i] + r * (y - x)  # line 3
            x_hat[i] = y + lam[i] / r  # line 4
        counted |= set(S)
        # Line 5: of everybody, also of the absent and, unless they are left out, of the unseen.
        x = sum(w[i] * x_hat[i] for i in counted) / sum(w[i] for i in counted)
    return x, lam, x_hat


def compare(run, x, lam, x_hat):
    assert_same(run.state.x, x)
    assert_same_rows({i: state.lam for i, state in run.client_states.items()}, lam)
    assert_same_rows({i: state.x_hat for i, state in run.client_states.items()}, x_hat)


@everywhere
@options({}, {"rho": 0.7}, {"average": "seen"})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedADMM(lr=0.3, **options))
    compare(run, *box(**case.given(), lr=0.3, **{"rho": 0.1, **options}))


@hardest
def test_box_with_a_growing_rho(case):
    run = case.run(FedADMM(lr=0.3, rho=exponential(0.2, 1.3)))
    compare(run, *box(**case.given(), lr=0.3, rho=lambda t: 0.2 * 1.3**t))
