"""FedAvg against the box of McMahan et al. (2017), which has no line numbers, in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, everywhere, hard, options
from undrift import Adam, FedAvg, Momentum


def box(A, b, w, K, cohorts, *, lr, server_lr=1.0, rule="sgd", **rule_options):
    """`server_lr` and `rule` are not in the box: it has 1 and plain SGD."""
    x = np.zeros(b.shape[1])  # server: initialise w_0
    for S in cohorts:  # server: for each round, S_t
        mass = sum(w[i] for i in S)
        total = np.zeros_like(x)
        for i in S:  # server: for each client in S_t
            y, s = x.copy(), {}  # the rule starts anew in every round
            for k in range(K[i]):  # client: for each local batch
                g = A[i] @ (y - b[i])
                y = y - lr * RULES[rule](g, s, k + 1, **rule_options)  # client: w <- w - lr grad
            total += w[i] / mass * (y - x)  # client: return w
        x = x + server_lr * total  # server: w_{t+1} <- sum n_k / n w^k
    return x


def sgd(g, s, k):
    return g


def momentum(g, s, k, beta, nesterov=False):
    s["m"] = beta * s.get("m", 0) + g
    return g + beta * s["m"] if nesterov else s["m"]


def adam(g, s, k, beta1=0.9, beta2=0.999, eps=1e-8):
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * g**2
    return s["m"] / (1 - beta1**k) / (np.sqrt(s["v"] / (1 - beta2**k)) + eps)


RULES = {"sgd": sgd, "momentum": momentum, "adam": adam}


@everywhere
@options({}, {"server_lr": 0.7}, {"server_lr": 1.4})
@pytest.mark.wide(daily=hard)
def test_box(case, options):
    run = case.run(FedAvg(lr=0.3, **options))
    assert_same(run.state.x, box(**case.given(), lr=0.3, **options))


@everywhere
@options({"beta": 0.9}, {"beta": 0.5, "nesterov": True})
@pytest.mark.wide(daily=hard)
def test_local_momentum(case, options):
    run = case.run(FedAvg(lr=0.2, server_lr=0.8, rule=Momentum(**options)))
    expected = box(**case.given(), lr=0.2, server_lr=0.8, rule="momentum", **options)
    assert_same(run.state.x, expected)


@everywhere
@options({}, {"beta1": 0.5, "beta2": 0.8, "eps": 0.1})
@pytest.mark.wide(daily=hard)
def test_local_adam(case, options):
    run = case.run(FedAvg(lr=0.05, rule=Adam(**options)))
    assert_same(run.state.x, box(**case.given(), lr=0.05, rule="adam", **options))
