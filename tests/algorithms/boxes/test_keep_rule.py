"""Methods whose clients keep their rule's state from round to round, in naive loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, assert_same_rows, everywhere
from undrift import FedACG, FedAvg, FedAvgM, FedProx, Momentum

LR, BETA = 0.1, 0.5
KEPT: dict[str, Any] = {"lr": LR, "rule": Momentum(BETA), "keep_rule": True}
# The method, the weight of its prox term, and server_lr, beta and the look-ahead of its server.
METHODS = {
    "FedAvg": (FedAvg(server_lr=0.8, **KEPT), 0.0, 0.8, 0.0, 0.0),
    "FedAvgM": (FedAvgM(beta=0.4, mu=0.2, **KEPT), 0.2, 1.0, 0.4, 0.0),
    "FedProx": (FedProx(mu=0.3, **KEPT), 0.3, 1.0, 0.0, 0.0),
    "FedACG": (FedACG(lam=0.6, beta=0.2, **KEPT), 0.2, 1.0, 0.6, 0.6),
}


def box(A, b, w, K, cohorts, *, prox, server_lr, beta, ahead):
    """The box, with our own line numbers:

    1  server: broadcast Phi = x + ahead m
    2  client: y <- Phi;  K_i times:  v_i <- BETA v_i + g_i(y) + prox (y - Phi);  y <- y - LR v_i,
       where v_i goes on from the client's last round
    3  server: m <- beta m + sum_i w_i (y_i - Phi);  x <- x + server_lr m
    """
    x, m, v = np.zeros(b.shape[1]), np.zeros(b.shape[1]), np.zeros_like(b)
    for S in cohorts:
        mass = sum(w[i] for i in S)
        phi = x + ahead * m  # line 1
        delta = np.zeros_like(x)
        for i in S:
            y = phi.copy()
            for _ in range(K[i]):
                v[i] = BETA * v[i] + A[i] @ (y - b[i]) + prox * (y - phi)  # line 2
                y = y - LR * v[i]
            delta += w[i] / mass * (y - phi)
        m = beta * m + delta  # line 3
        x = x + server_lr * m
    return x, v


@everywhere
@pytest.mark.parametrize("name", METHODS)
def test_box(case, name):
    method, prox, server_lr, beta, ahead = METHODS[name]
    run = case.run(method)
    x, v = box(**case.given(), prox=prox, server_lr=server_lr, beta=beta, ahead=ahead)
    assert_same(run.state.x, x)
    assert_same_rows(run.client_states, v)
