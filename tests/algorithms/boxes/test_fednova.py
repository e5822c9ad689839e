"""FedNova against the update rule of Wang et al. (2020) in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, everywhere, hard, hardest, options
from undrift.algorithms.fednova import FedNova


def coefficients(k, lr, mu, rho):
    """What each of the k gradients weighs in -(y - x) / lr: a_i of the paper, as a vector.

    Gradient j enters the momentum of step s >= j with rho^(s - j), and what moved y in step s is
    still there at the end but for (1 - lr mu)^(k - 1 - s).
    """
    a = np.zeros(k)
    for j in range(k):
        for s in range(j, k):
            a[j] += rho ** (s - j) * (1 - lr * mu) ** (k - 1 - s)
    return a


def box(A, b, w, K, cohorts, *, lr, mu=0.0, rho=0.0):
    """The rule, with our own line numbers:

    1  client: y_0 = x;  K_i times: y <- y - lr (momentum of the gradients + mu (y - x))
    2  client: d_i = G_i a_i / ||a_i||_1, the columns of G_i being the K_i gradients
    3  server: tau_eff = sum_i w_i ||a_i||_1
    4  server: x <- x - tau_eff sum_i w_i lr d_i
    """
    x = np.zeros(b.shape[1])
    for S in cohorts:
        mass = sum(w[i] for i in S)
        tau_eff, d = 0.0, np.zeros_like(x)
        for i in S:
            y, G = x.copy(), []
            for _ in range(K[i]):
                G.append(A[i] @ (y - b[i]))
                m = sum(rho**age * g for age, g in enumerate(reversed(G)))
                y = y - lr * (m + mu * (y - x))  # line 1
            a = coefficients(K[i], lr, mu, rho)
            d_i = np.array(G).T @ a / np.abs(a).sum()  # line 2
            tau_eff += w[i] / mass * np.abs(a).sum()  # line 3
            d += w[i] / mass * d_i
        x = x - tau_eff * lr * d  # line 4
    return x


@everywhere
@options({}, {"mu": 0.8, "rho": 0.7})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedNova(lr=0.2, **options))
    assert_same(run.x, box(**case.given(), lr=0.2, **options))


@hardest
@options({"mu": 0.8}, {"rho": 0.7})
def test_prox_and_momentum_alone(case, options):
    run = case.run(FedNova(lr=0.2, **options))
    assert_same(run.x, box(**case.given(), lr=0.2, **options))
