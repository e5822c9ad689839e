"""DiLoCo against the box of Douillard et al. (2023) in naive loops."""

import numpy as np

from tests.algorithms.boxes.cases import assert_same, assert_same_rows, everywhere, hardest
from undrift import AdamW, Momentum
from undrift.algorithms.diloco import DiLoCo


def box(A, b, w, K, cohorts, *, lr, server_lr=0.7, beta=0.9, b1=0.9, b2=0.999, eps=1e-8, decay):
    """The box, with our own line numbers:

    1  client: y <- x;  K_i times: AdamW on grad F_i, whose moments and count the client keeps
    2  server: D = sum_i w_i (x - y_i), the outer gradient
    3  server: m <- beta m + D;  x <- x - server_lr (D + beta m)
    """
    n, dim = b.shape
    x, m = np.zeros(dim), np.zeros(dim)
    first, second, count = np.zeros((n, dim)), np.zeros((n, dim)), np.zeros(n)
    for S in cohorts:
        mass = sum(w[i] for i in S)
        outer = np.zeros(dim)
        for i in S:
            y = x.copy()
            for _ in range(K[i]):
                g = A[i] @ (y - b[i])
                count[i] += 1
                first[i] = b1 * first[i] + (1 - b1) * g
                second[i] = b2 * second[i] + (1 - b2) * g**2
                root = np.sqrt(second[i] / (1 - b2 ** count[i])) + eps
                d = first[i] / (1 - b1 ** count[i]) / root
                y = (1 - lr * decay) * y - lr * d  # line 1
            outer += w[i] / mass * (x - y)  # line 2
        m = beta * m + outer
        x = x - server_lr * (outer + beta * m)  # line 3
    return x, m, first, second, count


@everywhere
def test_box(case):
    rule = AdamW(0.8, 0.9, 1e-3, decay=0.2)
    run = case.run(DiLoCo(lr=0.1, server_lr=0.5, beta=0.6, rule=rule))
    settings = {"server_lr": 0.5, "beta": 0.6, "b1": 0.8, "b2": 0.9, "eps": 1e-3, "decay": 0.2}
    x, m, first, second, count = box(**case.given(), lr=0.1, **settings)
    assert_same(run.state.x, x)
    assert_same(run.state.m, -m)
    states = run.client_states
    assert_same_rows({i: s.m for i, s in states.items()}, first)
    assert_same_rows({i: s.v for i, s in states.items()}, second)
    assert_same_rows({i: s.k for i, s in states.items()}, count)


@hardest
def test_defaults(case):
    x, *_ = box(**case.given(), lr=0.01, decay=0.01)
    assert_same(case.run(DiLoCo(lr=0.01)).state.x, x)


@hardest
def test_another_rule_is_kept_as_well(case):
    given = case.given()
    A, b, w, K = (given[name] for name in "AbwK")
    x, m, v = np.zeros(b.shape[1]), np.zeros(b.shape[1]), np.zeros_like(b)
    for S in given["cohorts"]:
        delta = np.zeros_like(x)
        for i in S:
            y = x.copy()
            for _ in range(K[i]):
                v[i] = 0.5 * v[i] + A[i] @ (y - b[i])
                y = y - 0.1 * v[i]
            delta += w[i] / sum(w[j] for j in S) * (y - x)
        m = 0.9 * m + delta
        x = x + 0.3 * (delta + 0.9 * m)
    assert_same(case.run(DiLoCo(lr=0.1, server_lr=0.3, rule=Momentum(0.5))).state.x, x)
