"""Cascading SSDM of Wu et al. (2022) on a literal ring, with the draws of the documented keys.

The generator of a message is keyed by (seed, "allreduce/send", round, number of the all-reduce in
the round, sender, first coordinate of the chunk, workers the sum stands for), that of the last
compression by (seed, "allreduce/close", round, number, worker, first coordinate).
"""

import numpy as np
import pytest

from tests.algorithms.boxes.allreduce import PROBLEM, ROUNDS, SEED, started
from tests.algorithms.boxes.cases import assert_same, options
from tests.algorithms.boxes.ssdm import length, momenta
from undrift import CascadingSSDM, Momentum, keyed


def Q(v, rng, kind):
    norm = length(v, kind)
    u = rng.random(len(v))
    return np.array([norm if u[j] < 0.5 + v[j] / (2 * norm) else -norm for j in range(len(v))])


def ring(vectors, t, norm):
    """C_M of every chunk, hop by hop."""
    M, D = vectors.shape
    total = np.zeros(D)
    for c, chunk in enumerate(np.array_split(np.arange(D), M)):
        share = vectors[c, chunk]  # chunk c starts at worker c
        for hop in range(1, M):
            sender, receiver = (c + hop - 1) % M, (c + hop) % M
            rng = keyed.generator(SEED, "allreduce/send", t, 0, sender, chunk[0], hop)
            share = Q(share, rng, norm) + vectors[receiver, chunk]
        owner = (c + M - 1) % M
        last = keyed.generator(SEED, "allreduce/close", t, 0, owner, chunk[0])
        total[chunk] = Q(share, last, norm)
    return total


def box(A, b, K, rounds, *, lr, beta=0.9, server_lr=None, mu=0.0, norm="l2"):
    M, D = b.shape
    x, m, h = np.zeros(D), np.zeros((M, D)), np.zeros((M, D))
    step = lr if server_lr is None else server_lr
    for t in range(rounds):
        momenta(A, b, x, m, h, K, lr=lr, beta=beta, mu=mu)
        x = x - step * ring(m, t, norm) / M
        yield x, m


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@options(
    {"K": 1},
    {"K": 3},
    {"K": 1, "beta": 0.0},
    {"K": 1, "norm": "inf"},
    {"K": 3, "beta": 0.0, "mu": 0.8, "server_lr": 0.01, "norm": "inf"},
)
def test_box(mode, options):
    kwargs = dict(options)
    K, mu = kwargs.pop("K"), kwargs.pop("mu", 0.0)
    rule = {"rule": Momentum(mu)} if mu else {}
    run = started(CascadingSSDM(lr=0.1, **rule, **kwargs), K, mode=mode)
    expected = box(PROBLEM.A.numpy(), PROBLEM.b.numpy(), K, ROUNDS, lr=0.1, mu=mu, **kwargs)
    for _, (x, m) in zip(run, expected, strict=True):
        assert_same(run.state.x, np.tile(x, (4, 1)))
        assert_same(run.state.m, m)
