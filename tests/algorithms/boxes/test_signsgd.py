"""SignSGD with majority vote, Bernstein et al. (2019), in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.allreduce import PROBLEM, ROUNDS, started
from tests.algorithms.boxes.cases import assert_same, options
from undrift import Momentum, SignSGD


def box(A, b, K, rounds, *, lr, server_lr=None, beta=0.0):
    M, D = b.shape
    x, m = np.zeros(D), np.zeros((M, D))
    step = lr if server_lr is None else server_lr
    for _ in range(rounds):
        votes = np.zeros(D)
        for i in range(M):
            y = x.copy()
            for _ in range(K):
                m[i] = beta * m[i] + A[i] @ (y - b[i])
                y = y - lr * m[i]
            votes += [1 if u >= 0 else -1 for u in x - y]
        x = x - step * np.array([1.0 if v >= 0 else -1.0 for v in votes])  # ties: +1
        yield x, m


def default_code_or_richest(parameters):
    """Return whether stacked workers use the default code, or momentum runs over several steps."""
    options = parameters["options"]
    plain = parameters["code"] == "fixed" and parameters["mode"] == "stacked"
    return plain or (options["K"] > 1 and "beta" in options)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("code", ["fixed", "omega"])
@options(
    {"K": 1}, {"K": 1, "server_lr": 0.02}, {"K": 3}, {"K": 1, "beta": 0.8}, {"K": 2, "beta": 0.8}
)
@pytest.mark.wide(daily=default_code_or_richest)
def test_box(mode, code, options):
    kwargs = dict(options)
    K = kwargs.pop("K")
    given = {k: v for k, v in kwargs.items() if k != "beta"}
    rule = {"rule": Momentum(kwargs["beta"])} if "beta" in kwargs else {}
    algorithm = SignSGD(lr=0.1, code=code, **given, **rule)
    run = started(algorithm, K, mode=mode)
    expected = box(PROBLEM.A.numpy(), PROBLEM.b.numpy(), K, ROUNDS, lr=0.1, **kwargs)
    for _, (x, m) in zip(run, expected, strict=True):
        assert_same(run.state.x, np.tile(x, (4, 1)))
        if rule:
            assert_same(run.state.s, m)
