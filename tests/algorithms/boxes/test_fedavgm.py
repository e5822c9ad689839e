"""FedAvgM against the box of Hsu et al. (2019) in naive loops."""

import numpy as np

from tests.algorithms.boxes.cases import assert_same, everywhere, hardest
from undrift import Momentum
from undrift.algorithms.fedavgm import FedAvgM


def box(A, b, w, K, cohorts, *, lr, beta, server_lr=1.0, mu=0.0, momentum=0.0, nesterov=0):
    """The box, with our own line numbers:

    1  client: y <- x;  K_i times: y <- y - lr (grad F_i(y) + mu (y - x));  send D_i = y - x
    2  server: m <- beta m + sum_i w_i D_i
    3  server: x <- x + server_lr m;  with Nesterov  x <- x + server_lr (beta m + sum_i w_i D_i)
    """
    x, m = np.zeros(b.shape[1]), np.zeros(b.shape[1])
    for S in cohorts:
        mass = sum(w[i] for i in S)
        delta = np.zeros_like(x)
        for i in S:
            y, v = x.copy(), np.zeros_like(x)
            for _ in range(K[i]):
                v = momentum * v + A[i] @ (y - b[i]) + mu * (y - x)  # plain SGD in the box
                y = y - lr * v  # line 1
            delta += w[i] / mass * (y - x)
        m = beta * m + delta  # line 2
        x = x + server_lr * (beta * m + delta if nesterov else m)  # line 3
    return x, m


def compare(run, x, m):
    assert_same(run.state.x, x)
    assert_same(run.state.m, m)


@everywhere
def test_box(case):
    run = case.run(FedAvgM(lr=0.2, beta=0.8, server_lr=0.3))
    compare(run, *box(**case.given(), lr=0.2, beta=0.8, server_lr=0.3))


@hardest
def test_defaults(case):
    compare(case.run(FedAvgM(lr=0.2)), *box(**case.given(), lr=0.2, beta=0.4))


@hardest
def test_local_momentum_is_not_the_servers(case):
    run = case.run(FedAvgM(lr=0.2, beta=0.3, rule=Momentum(0.6)))
    compare(run, *box(**case.given(), lr=0.2, beta=0.3, momentum=0.6))


@hardest
def test_with_a_prox_term(case):
    run = case.run(FedAvgM(lr=0.2, beta=0.8, server_lr=0.3, mu=0.7))
    compare(run, *box(**case.given(), lr=0.2, beta=0.8, server_lr=0.3, mu=0.7))


@hardest
def test_nesterov(case):
    run = case.run(FedAvgM(lr=0.2, beta=0.8, server_lr=0.3, nesterov=True))
    compare(run, *box(**case.given(), lr=0.2, beta=0.8, server_lr=0.3, nesterov=1))
