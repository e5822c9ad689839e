"""FedGamma against the box of Dai et al. (2023) in naive loops."""

import numpy as np

from tests.algorithms.boxes.cases import assert_same, assert_same_rows, everywhere, hardest
from undrift import exponential
from undrift.algorithms.fedgamma import FedGamma


def box(A, b, w, K, cohorts, *, lr, rho, server_lr=1.0):
    """`lr` holds one step size per round. The box, with our own line numbers:

    1  client: y <- x;  K_i times: g = grad F_i(y);  g~ = grad F_i(y + rho g / ||g||)
    2  client: y <- y - lr (g~ - c_i + c)
    3  client: c_i+ = c_i - c + (x - y) / (K_i lr)
    4  server: x <- x + server_lr sum_i w_i (y - x), over those present
    5  server: c = sum_i w_i c_i, over everybody (1 / N in the paper)
    """
    N, d = b.shape
    x, c, c_i = np.zeros(d), np.zeros(d), np.zeros((N, d))
    for t, S in enumerate(cohorts):
        mass = sum(w[i] for i in S)
        mean = np.zeros(d)
        for i in S:
            y = x.copy()
            for _ in range(K[i]):
                g = A[i] @ (y - b[i])
                g = A[i] @ (y + rho * g / (np.sqrt(g @ g) + 1e-7) - b[i])  # line 1
                y = y - lr[t] * (g - c_i[i] + c)  # line 2
            c_i[i] = c_i[i] - c + (x - y) / (K[i] * lr[t])  # line 3
            mean += w[i] / mass * (y - x)
        x = x + server_lr * mean  # line 4
        c = sum(w[i] * c_i[i] for i in range(N))  # line 5
    return x, c, c_i


def compare(run, x, c, c_i):
    assert_same(run.state.x, x)
    assert_same(run.state.c, c)
    assert_same_rows(run.client_states, c_i)


@everywhere
def test_box(case):
    run = case.run(FedGamma(lr=0.3, rho=0.4, server_lr=0.6))
    compare(run, *box(**case.given(), lr=[0.3] * 6, rho=0.4, server_lr=0.6))


@hardest
def test_defaults(case):
    run = case.run(FedGamma(lr=0.3))
    compare(run, *box(**case.given(), lr=[0.3] * 6, rho=0.1))


@hardest
def test_control_variates_use_the_step_size_of_their_round(case):
    run = case.run(FedGamma(lr=exponential(0.4, 0.8), rho=0.4))
    compare(run, *box(**case.given(), lr=[0.4 * 0.8**t for t in range(6)], rho=0.4))
