"""Scaffold against Algorithm 1 of Karimireddy et al. (2020) in naive loops."""

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
from undrift import Scaffold, exponential


def box(A, b, w, K, cohorts, *, lr, server_lr=1.0, option="II"):
    """`lr` holds one step size per round. The 1 / N inside line 17 is w_i with general weights."""
    N, d = b.shape
    x, c = np.zeros(d), np.zeros(d)  # line 1
    c_i = np.zeros((N, d))  # line 2
    for t, S in enumerate(cohorts):  # lines 3, 4
        mass = sum(w[i] for i in S)
        dx, dc = np.zeros(d), np.zeros(d)
        for i in S:  # lines 5, 6
            y = x.copy()  # line 7
            for _ in range(K[i]):  # line 8
                g = A[i] @ (y - b[i])  # line 9
                y = y - lr[t] * (g - c_i[i] + c)  # line 10
            gradient_at_x = A[i] @ (x - b[i])  # line 12 (i)
            gradient_on_path = c_i[i] - c + (x - y) / (K[i] * lr[t])  # line 12 (ii)
            c_plus = gradient_at_x if option == "I" else gradient_on_path  # line 12
            dx += w[i] / mass * (y - x)  # lines 13, 16
            dc += w[i] / mass * (c_plus - c_i[i])  # lines 13, 16
            c_i[i] = c_plus  # line 14
        x = x + server_lr * dx  # line 17
        c = c + mass * dc  # line 17
    return x, c, c_i


def compare(run, x, c, c_i):
    assert_same(run.state.x, x)
    assert_same(run.state.c, c)
    assert_same_rows(run.client_states, c_i)


@everywhere
@options({}, {"server_lr": 0.6}, {"option": "I"}, {"option": "I", "server_lr": 1.3})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(Scaffold(lr=0.3, **options))
    compare(run, *box(**case.given(), lr=[0.3] * 6, **options))


@hardest
def test_control_variates_use_the_step_size_of_their_round(case):
    run = case.run(Scaffold(lr=exponential(0.4, 0.8)))
    compare(run, *box(**case.given(), lr=[0.4 * 0.8**t for t in range(6)]))
