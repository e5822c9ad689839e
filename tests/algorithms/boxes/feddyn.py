"""Algorithm 1 of Acar et al. (2021) in naive loops."""

import numpy as np

from tests.algorithms.boxes.cases import assert_same, assert_same_rows


def box(A, b, w, K, cohorts, *, lr, alpha):
    N, d = b.shape
    x, lam = np.zeros(d), np.zeros((N, d))
    for t, S in enumerate(cohorts):
        mass, a = sum(w[i] for i in S), alpha(t) if callable(alpha) else alpha
        mean_y = np.zeros(d)
        for i in S:
            y = x.copy()  # line 1
            for _ in range(K[i]):
                g = A[i] @ (y - b[i])
                y = y - lr * (g - lam[i] + a * (y - x))  # line 2
            lam[i] = lam[i] - a * (y - x)  # line 3
            mean_y += w[i] / mass * y
        h = sum(w[i] * lam[i] for i in range(N))  # line 4: of everybody, also of the absent
        x = mean_y - h / a  # line 5
    return x, lam, h


def compare(run, x, lam, h):
    assert_same(run.state.x, x)
    assert_same(run.state.h, h)
    assert_same_rows(run.client_states, lam)
