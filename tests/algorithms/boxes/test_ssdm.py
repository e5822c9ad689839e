"""SSDM, Safaryan and Richtarik (2021), in naive loops with the draws of the documented keys.

A worker draws the signs of each piece of the ring with a generator of its own, keyed by
(seed, "allreduce/start", round, number of the all-reduce in the round, worker, first coordinate).
"""

import numpy as np
import pytest

from tests.algorithms.boxes.allreduce import PROBLEM, ROUNDS, SEED, started
from tests.algorithms.boxes.cases import assert_same, options
from tests.algorithms.boxes.ssdm import length, momenta
from undrift import SSDM, Momentum, keyed


def box(
    A, b, K, rounds, *, lr, beta=0.9, server_lr=None, mu=0.0, norm="l2", scale="none", route="ring"
):
    M, D = b.shape
    x, m, h = np.zeros(D), np.zeros((M, D)), np.zeros((M, D))
    step = lr if server_lr is None else server_lr
    chunks = np.array_split(np.arange(D), M if route == "ring" else 1)
    for t in range(rounds):
        momenta(A, b, x, m, h, K, lr=lr, beta=beta, mu=mu)
        largest = max(length(m[i], norm) for i in range(M))
        mean = np.zeros(D)
        for i in range(M):
            for chunk in chunks:
                n = largest if scale == "max" else length(m[i], norm)
                if scale == "own":
                    n = length(m[i, chunk], norm)  # of the piece that travels
                factor = {"none": 1.0, "max": largest, "own": n}[scale]
                call = 1 if scale == "max" else 0  # the first one found the largest norm
                rng = keyed.generator(SEED, "allreduce/start", t, call, i, chunk[0])
                for j, u in zip(chunk, rng.random(len(chunk)), strict=True):
                    s = 1.0 if u < 0.5 + m[i, j] / (2 * n) else -1.0
                    mean[j] += factor * s / M
        x = x - step * mean
        yield x, m


def default_code_or_richest(parameters):
    """Return whether stacked workers use the default code, or several steps are scaled."""
    options = parameters["options"]
    plain = parameters["code"] == "fixed" and parameters["mode"] == "stacked"
    return plain or (options["K"] > 1 and "scale" in options)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("code", ["fixed", "delta"])
@options(
    {"K": 1},
    {"K": 1, "scale": "max"},
    {"K": 3},
    {"K": 2, "scale": "max", "beta": 0.0},
    {"K": 1, "norm": "inf"},
    {"K": 2, "norm": "inf", "scale": "max", "server_lr": 0.03},
    {"K": 3, "server_lr": 0.01, "beta": 0.0, "mu": 0.8},
)
@pytest.mark.wide(daily=default_code_or_richest)
def test_box(mode, code, options):
    check_box(mode, "ring", options, code=code)


@pytest.mark.parametrize("route", ["ring", "server"])
@pytest.mark.parametrize("norm", ["l2", "inf"])
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_box_with_own_norms(mode, norm, route):
    check_box(mode, route, {"K": 2, "scale": "own", "norm": norm, "server_lr": 0.02})


def check_box(mode, route, options, **more):
    kwargs = dict(options)
    K, mu = kwargs.pop("K"), kwargs.pop("mu", 0.0)
    rule = {"rule": Momentum(mu)} if mu else {}
    algorithm = SSDM(lr=0.1, **rule, **kwargs, **more)
    run = started(algorithm, K, mode=mode, allreduce=route)
    settings = {"lr": 0.1, "mu": mu, "route": route, **kwargs}
    expected = box(PROBLEM.A.numpy(), PROBLEM.b.numpy(), K, ROUNDS, **settings)
    for _, (x, m) in zip(run, expected, strict=True):
        assert_same(run.state.x, np.tile(x, (4, 1)))
        assert_same(run.state.m, m)
