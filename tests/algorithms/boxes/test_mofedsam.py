"""MoFedSAM against the box of Qu et al. (2022) in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, everywhere, hard, hardest
from undrift import exponential
from undrift.algorithms.mofedsam import MoFedSAM


def box(A, b, w, K, cohorts, *, lr, rho, alpha):
    """`lr` holds one step size per round. The box, with our own line numbers:

    1  client: y <- x;  K_i times: g = grad F_i(y);  g~ = grad F_i(y + rho g / ||g||)
    2  client: y <- y - lr (alpha g~ + (1 - alpha) Delta)
    3  server: x <- x + sum_i w_i (y - x)
    4  server: Delta <- -sum_i w_i (y - x) / (K lr), with the lr and K of the round that ends

    The paper has one K. With several, the momentum moves every client as far in its K_i steps:
    (1 - alpha) K_i Delta_i = (1 - alpha) K Delta.
    """
    x, k_delta = np.zeros(b.shape[1]), np.zeros(b.shape[1])
    for t, S in enumerate(cohorts):
        mass = sum(w[i] for i in S)
        mean = np.zeros_like(x)
        for i in S:
            y = x.copy()
            for _ in range(K[i]):
                g = A[i] @ (y - b[i])
                g = A[i] @ (y + rho * g / (np.sqrt(g @ g) + 1e-7) - b[i])  # line 1
                y = y - lr[t] * (alpha * g + (1 - alpha) * k_delta / K[i])  # line 2
            mean += w[i] / mass * (y - x)
        x = x + mean  # line 3
        k_delta = -mean / lr[t]  # line 4
    return x, k_delta


def compare(run, x, m):
    assert_same(run.state.x, x)
    assert_same(run.state.m, m)


@everywhere
@pytest.mark.wide(daily=hard)
def test_box(case):
    run = case.run(MoFedSAM(lr=0.3, rho=0.4, alpha=0.6))
    compare(run, *box(**case.given(), lr=[0.3] * 6, rho=0.4, alpha=0.6))


@hardest
def test_defaults(case):
    run = case.run(MoFedSAM(lr=0.3))
    compare(run, *box(**case.given(), lr=[0.3] * 6, rho=0.1, alpha=0.1))


@hardest
def test_momentum_is_divided_by_the_step_size_of_its_own_round(case):
    run = case.run(MoFedSAM(lr=exponential(0.4, 0.8), rho=0.4, alpha=0.3))
    lr = [0.4 * 0.8**t for t in range(6)]
    compare(run, *box(**case.given(), lr=lr, rho=0.4, alpha=0.3))
