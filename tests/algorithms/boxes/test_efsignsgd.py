"""EF-signSGD, Karimireddy et al. (2019), Algorithm 1, with one scale for all workers."""

import numpy as np
import pytest

from tests.algorithms.boxes.allreduce import PROBLEM, ROUNDS, started
from tests.algorithms.boxes.cases import assert_same, options
from tests.support.problems import bed
from tests.support.runs import on_quadratics
from undrift import EFSignSGD, Momentum


def box(A, b, K, rounds, *, lr, beta=0.0):
    M, D = b.shape
    x, m, e = np.zeros(D), np.zeros((M, D)), np.zeros((M, D))
    for _ in range(rounds):
        p = np.zeros((M, D))
        for i in range(M):
            y = x.copy()
            for _ in range(K):
                m[i] = beta * m[i] + A[i] @ (y - b[i])
                y = y - lr * m[i]
            p[i] = (x - y) + e[i]
        scale = sum(sum(abs(v) for v in p[i]) / D for i in range(M)) / M
        for i in range(M):
            delta = np.array([scale if v >= 0 else -scale for v in p[i]])
            x = x - delta / M
            e[i] = p[i] - delta
        yield x, e


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("code", ["fixed", "gamma"])
@options({"K": 1}, {"K": 3}, {"K": 2, "beta": 0.8})
def test_box(mode, code, options):
    kwargs = dict(options)
    K = kwargs.pop("K")
    rule = {"rule": Momentum(**kwargs)} if kwargs else {}
    algorithm = EFSignSGD(lr=0.2, code=code, **rule)
    run = started(algorithm, K, mode=mode)
    expected = box(PROBLEM.A.numpy(), PROBLEM.b.numpy(), K, ROUNDS, lr=0.2, **kwargs)
    for _, (x, e) in zip(run, expected, strict=True):
        assert_same(run.state.x, np.tile(x, (4, 1)))
        assert_same(run.state.e, e)


def test_one_worker_is_the_papers_algorithm():
    alone = bed(clients=1, dim=7, samples=9, seed=5)
    A, b = alone.A[0].numpy(), alone.b[0].numpy()
    x, e = np.zeros(7), np.zeros(7)
    for rounds in range(1, ROUNDS + 1):
        p = 0.2 * A @ (x - b) + e
        delta = np.abs(p).sum() / 7 * np.where(p >= 0, 1, -1)
        x, e = x - delta, p - delta
        run = on_quadratics(EFSignSGD(lr=0.2), alone, rounds=rounds, work=1)
        assert_same(run.state.x, x[None])
        assert_same(run.state.e, e[None])
