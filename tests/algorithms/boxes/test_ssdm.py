"""SSDM, Safaryan and Richtarik (2021), in naive loops with the draws of the documented keys.

A worker draws the signs of each piece of the ring with a generator of its own, keyed by
(seed, "allreduce/start", round, number of the all-reduce in the round, worker, first coordinate).
"""

import numpy as np
import pytest

from tests.algorithms.boxes.allreduce import PROBLEM, ROUNDS, SEED, started
from tests.algorithms.boxes.cases import assert_same, options
from undrift import SSDM, keyed


def box(A, b, K, rounds, *, lr, beta=0.9, norm="none"):
    M, D = b.shape
    x, m = np.zeros(D), np.zeros((M, D))
    for t in range(rounds):
        for i in range(M):
            y, g = x.copy(), np.zeros(D)
            for _ in range(K):
                g = g + A[i] @ (y - b[i])
                y = y - lr * A[i] @ (y - b[i])
            m[i] = beta * m[i] + (1 - beta) * g
        largest = max(np.sqrt(m[i] @ m[i]) for i in range(M))
        mean = np.zeros(D)
        for i in range(M):
            length = np.sqrt(m[i] @ m[i]) if norm == "none" else largest
            for chunk in np.array_split(np.arange(D), M):
                call = 0 if norm == "none" else 1  # the first one found the largest norm
                rng = keyed.generator(SEED, "allreduce/start", t, call, i, chunk[0])
                for j, u in zip(chunk, rng.random(len(chunk)), strict=True):
                    s = 1.0 if u < 0.5 + m[i, j] / (2 * length) else -1.0
                    mean[j] += s / M
        x = x - lr * mean * (1 if norm == "none" else largest)
        yield x, m


def default_code_or_richest(parameters):
    """Return whether stacked workers use the default code, or several steps are scaled."""
    options = parameters["options"]
    plain = parameters["code"] == "fixed" and parameters["mode"] == "stacked"
    return plain or (options["K"] > 1 and "norm" in options)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("code", ["fixed", "delta"])
@options({"K": 1}, {"K": 1, "norm": "max"}, {"K": 3}, {"K": 2, "norm": "max", "beta": 0.0})
@pytest.mark.wide(daily=default_code_or_richest)
def test_box(mode, code, options):
    kwargs = dict(options)
    K = kwargs.pop("K")
    algorithm = SSDM(lr=0.1, code=code, **kwargs)
    run = started(algorithm, K, mode=mode)
    expected = box(PROBLEM.A.numpy(), PROBLEM.b.numpy(), K, ROUNDS, lr=0.1, **kwargs)
    for _, (x, m) in zip(run, expected, strict=True):
        assert_same(run.state.x, np.tile(x, (4, 1)))
        assert_same(run.state.m, m)
