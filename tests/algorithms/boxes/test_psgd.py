"""PSGD in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.allreduce import PROBLEM, ROUNDS, started
from tests.algorithms.boxes.cases import assert_same, options
from undrift import PSGD, Momentum

# Unequal sample sizes, so that the stacked mode has to mask its padding; 7 is no multiple of 4.


def box(A, b, K, rounds, *, lr, beta=0.0, nesterov=False):
    M, D = b.shape
    x, m = np.zeros(D), np.zeros((M, D))
    for _ in range(rounds):
        update = np.zeros((M, D))
        for i in range(M):
            y = x.copy()
            for _ in range(K):
                g = A[i] @ (y - b[i])
                m[i] = beta * m[i] + g  # the worker's own, from round to round
                y = y - lr * (g + beta * m[i] if nesterov else m[i])
            update[i] = x - y
        x = x - sum(update[i] for i in range(M)) / M
        yield x, m


def on_a_ring_or_nesterov(parameters):
    """Return whether the route is the default one, or the rule the richest and workers stacked."""
    richest = "nesterov" in parameters["options"] and parameters["mode"] == "stacked"
    return parameters["route"] == "ring" or richest


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("route", ["ring", "segmented-ring:3", "torus:2x2", "tree", "server"])
@options({"K": 1}, {"K": 3}, {"K": 3, "beta": 0.7}, {"K": 2, "beta": 0.7, "nesterov": True})
@pytest.mark.wide(daily=on_a_ring_or_nesterov)
def test_box(mode, route, options):
    kwargs = dict(options)
    K = kwargs.pop("K")
    rule = {"rule": Momentum(**kwargs)} if kwargs else {}
    algorithm = PSGD(lr=0.3, **rule)
    run = started(algorithm, K, mode=mode, allreduce=route)
    expected = box(PROBLEM.A.numpy(), PROBLEM.b.numpy(), K, ROUNDS, lr=0.3, **kwargs)
    for _, (x, m) in zip(run, expected, strict=True):
        assert_same(run.state.x, np.tile(x, (4, 1)))
        if kwargs:
            assert_same(run.state.s, m)
