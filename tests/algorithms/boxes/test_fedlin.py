"""FedLin against Algorithm 1 of Mitra et al. (2021) in naive loops, without sparsification."""

import numpy as np

from tests.algorithms.boxes.cases import assert_same, everywhere, hardest
from undrift import exponential
from undrift.algorithms.fedlin import FedLin


def box(A, b, w, K, cohorts, *, lr):
    """`lr` holds one step size per round. The box, with our own line numbers:

    1  client: send grad F_i(x)
    2  server: g = sum_i w_i grad F_i(x)
    3  client: y <- x;  K_i times: y <- y - lr / K_i (grad F_i(y) - grad F_i(x) + g)
    4  server: x <- sum_i w_i y
    """
    N, d = b.shape
    x, g, g_i = np.zeros(d), np.zeros(d), np.zeros((N, d))
    for t, S in enumerate(cohorts):
        mass = sum(w[i] for i in S)
        g = np.zeros(d)
        for i in S:
            g_i[i] = A[i] @ (x - b[i])  # line 1
            g += w[i] / mass * g_i[i]  # line 2
        mean = np.zeros(d)
        for i in S:
            y = x.copy()
            for _ in range(K[i]):
                y = y - lr[t] / K[i] * (A[i] @ (y - b[i]) - A[i] @ (x - b[i]) + g)  # line 3
            mean += w[i] / mass * y
        x = mean  # line 4
    return x, g


def compare(run, x, g):
    assert_same(run.state.x, x)
    assert_same(run.state.g, g)


@everywhere
def test_box(case):
    compare(case.run(FedLin(lr=0.6)), *box(**case.given(), lr=[0.6] * 6))


@hardest
def test_step_size_is_that_of_the_round(case):
    run = case.run(FedLin(lr=exponential(0.8, 0.7)))
    compare(run, *box(**case.given(), lr=[0.8 * 0.7**t for t in range(6)]))
