"""Marsit, Algorithms 1 and 2 of Wu et al. (2022), bit by bit on a literal ring.

The draws of a merge come from the generator keyed by (seed, "allreduce/merge", round, number of the
all-reduce in the round, receiver, first coordinate of the chunk, workers merged before, 1).
"""

import numpy as np
import pytest

from tests.algorithms.boxes.allreduce import started
from tests.algorithms.boxes.cases import assert_same, options
from tests.support.problems import bed
from undrift import Marsit, Momentum, keyed
from undrift.comm.bits import bernoulli

PROBLEM = bed(clients=4, dim=21, samples=[23, 22, 24, 21], seed=3)
ROUNDS, SEED = 8, 5


def draws(p, q, n, rng):
    """n bits, 1 with probability p / q."""
    packed = bernoulli(p, q - p, -(-n // 8), rng).numpy()
    return np.unpackbits(packed, bitorder="little")[:n].tolist()


def ring(v, t):
    """Algorithm 1: worker m sends chunk m - s, merges chunk m - s - 1; then the bits are copied."""
    M, D = v.shape
    bit = [[1 if u >= 0 else 0 for u in v[m]] for m in range(M)]
    chunks = [chunk.tolist() for chunk in np.array_split(np.arange(D), M)]
    for s in range(M - 1):
        sent = {m: [bit[m][j] for j in chunks[(m - s) % M]] for m in range(M)}
        for m in range(M):
            chunk = chunks[(m - s - 1) % M]
            position = s + 2  # of this worker on the chunk's way
            rng = keyed.generator(SEED, "allreduce/merge", t, 0, m, chunk[0], position - 1, 1)
            keep = draws(position - 1, position, len(chunk), rng)
            for j, theirs, k in zip(chunk, sent[(m - 1) % M], keep, strict=True):
                own = bit[m][j]
                tau = k if own == 0 else 1 - k  # 1 with (m - 1) / m if own is 0, else 1 / m
                bit[m][j] = (theirs & own) | ((theirs ^ own) & tau)
    for s in range(M - 1):
        sent = {m: [bit[m][j] for j in chunks[(m + 1 - s) % M]] for m in range(M)}
        for m in range(M):
            for j, theirs in zip(chunks[(m - s) % M], sent[(m - 1) % M], strict=True):
                bit[m][j] = theirs
    assert all(bit[m] == bit[0] for m in range(M))
    return np.array(bit[0])


def box(A, b, K, rounds, *, lr, server_lr, period=None, beta=0.0, decay=1.0):
    M, D = b.shape
    x, c, momentum = np.zeros(D), np.zeros((M, D)), np.zeros((M, D))
    for t in range(rounds):
        full = period is not None and t % period == 0
        if full and t > 0:
            lr, server_lr = decay * lr, decay * server_lr
        u = np.zeros((M, D))
        for m in range(M):
            y = x.copy()
            for _ in range(K):
                momentum[m] = beta * momentum[m] + A[m] @ (y - b[m])
                y = y - lr * momentum[m]
            u[m] = (x - y) + c[m]
        if full:
            g, c = sum(u) / M, np.zeros((M, D))
        else:
            g = server_lr * (2 * ring(u, t) - 1)
            c = np.array([u[m] - g for m in range(M)])
        x = x - g
        yield x, c


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@options(
    {"K": 1},
    {"K": 3},
    {"K": 1, "period": 3},
    {"K": 1, "period": 1},
    {"K": 2, "period": 3, "beta": 0.7},
    {"K": 1, "period": 3, "decay": 0.5},
)
def test_box(mode, options):
    kwargs = dict(options)
    K = kwargs.pop("K")
    given = {k: v for k, v in kwargs.items() if k != "beta"}
    rule = {"rule": Momentum(kwargs["beta"])} if "beta" in kwargs else {}
    algorithm = Marsit(lr=0.2, server_lr=0.05, **given, **rule)
    run = started(algorithm, K, PROBLEM, rounds=ROUNDS, mode=mode)
    expected = box(
        PROBLEM.A.numpy(), PROBLEM.b.numpy(), K, ROUNDS, lr=0.2, server_lr=0.05, **kwargs
    )
    for _, (x, c) in zip(run, expected, strict=True):
        assert_same(run.state.x, np.tile(x, (4, 1)))
        assert_same(run.state.c, c)
