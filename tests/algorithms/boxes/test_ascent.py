"""The ascent: along the gradient with weight decay and clip or without, and its length."""

import numpy as np
import pytest

from tests.algorithms.boxes.cases import assert_same, hardest, options
from undrift import FedGamma, FedSAM, FedSpeed, MoFedSAM, piecewise
from undrift.testing import check_stacked_equals_loop, check_threads_equal_loop, finish, start

LR, RHO, DECAY, CLIP = 0.3, 0.4, 0.2, 0.7
ASCENTS = pytest.mark.parametrize("ascent", ["full", "data"])


class Client:
    """The gradient of one client, and the point that the ascent reaches."""

    def __init__(self, A, b, rho, ascent="full", normalise=True, relative=False):
        self.A, self.b, self.rho, self.ascent = A, b, rho, ascent
        self.normalise, self.relative = normalise, relative

    def plain(self, y):
        return self.A @ (y - self.b)

    def full(self, y):
        g = self.plain(y)
        return g * min(1.0, CLIP / np.sqrt(g @ g)) + DECAY * y

    def above(self, y):
        g = self.full(y) if self.ascent == "full" else self.plain(y)
        length = self.rho * np.sqrt(y @ y) if self.relative else self.rho
        return y + length * g / (np.sqrt(g @ g) + 1e-7 if self.normalise else 1.0)


def fedspeed(client, x, y, g_hat, lam=2.0, alpha=0.75):
    g1, g2 = client.full(y), client.full(client.above(y))  # lines 7 to 9
    g = (1 - alpha) * g1 + alpha * g2  # line 10
    return y - LR * (g - g_hat + (y - x) / lam)  # line 11


def rounds(A, b, w, K, cohorts, method, rhos=(RHO,) * 6, **ascent):
    """The first rounds of FedSpeed, FedGamma, MoFedSAM or FedSAM; each has its rho."""
    N, d = b.shape
    x, dual, mean_dual, m = np.zeros(d), np.zeros((N, d)), np.zeros(d), np.zeros(d)
    for S, rho in zip(cohorts, rhos, strict=True):
        mass, mean = sum(w[i] for i in S), np.zeros(d)
        for i in S:
            client, y = Client(A[i], b[i], rho, **ascent), x.copy()
            for _ in range(K[i]):
                g = client.full(client.above(y))
                if method is FedSpeed:
                    y = fedspeed(client, x, y, dual[i])
                elif method is FedGamma:
                    y = y - LR * (g - dual[i] + mean_dual)
                elif method is MoFedSAM:
                    y = y - LR * (0.6 * g + 0.4 * m / K[i])
                else:
                    y = y - LR * g
            if method is FedSpeed:
                dual[i] = dual[i] - (y - x) / 2.0  # line 13
            if method is FedGamma:
                dual[i] = dual[i] - mean_dual + (x - y) / (K[i] * LR)
            mean += w[i] / mass * (y - x)
        x = x + mean
        m = -mean / LR
        mean_dual = sum(w[i] * dual[i] for i in range(N))
        if method is FedSpeed:
            x = x - 2.0 * mean_dual  # line 16 of the authors' code
    return x


METHODS = {
    FedSpeed: {"lam": 2.0, "alpha": 0.75},
    FedSAM: {},
    FedGamma: {},
    MoFedSAM: {"alpha": 0.6},
}
methods = pytest.mark.parametrize("method", METHODS)


@hardest
@methods
@ASCENTS
def test_box(case, method, ascent):
    algorithm = method(lr=LR, rho=RHO, ascent=ascent, **METHODS[method])
    run = case.run(algorithm, weight_decay=DECAY, clip=CLIP)
    assert_same(run.state.x, rounds(**case.given(), ascent=ascent, method=method))


@methods
def test_both_are_the_same_without_decay_and_clip_and_cost_the_same(method):
    full, data = (start(method(lr=0.1, ascent=ascent)) for ascent in ("full", "data"))
    assert (finish(full) == finish(data)).all()
    for one, other in zip(full.records, data.records, strict=True):
        assert (one.gradients, one.bytes_up) == (other.gradients, other.bytes_up)


@hardest
@methods
@options({"normalise": False}, {"relative": True}, {"relative": True, "ascent": "data"})
def test_lengths(case, method, options):
    """The first model is zero, so the first step of `relative` has no ascent."""
    algorithm = method(lr=LR, rho=RHO, **options, **METHODS[method])
    run = case.run(algorithm, weight_decay=DECAY, clip=CLIP)
    assert_same(run.state.x, rounds(**case.given(), **options, method=method))


@hardest
@methods
def test_rho_may_be_raised_by_a_schedule(case, method):
    algorithm = method(lr=LR, rho=piecewise(0.0, {2: 0.1, 4: 0.4}), **METHODS[method])
    run = case.run(algorithm, weight_decay=DECAY, clip=CLIP)
    rhos = 0.0, 0.0, 0.1, 0.1, 0.4, 0.4
    assert_same(run.state.x, rounds(**case.given(), method=method, rhos=rhos))


@methods
def test_two_lengths_are_refused(method):
    with pytest.raises(ValueError, match=r"needs normalise=True where relative=True.*leave one"):
        method(lr=0.1, normalise=False, relative=True)


@methods
@options({"ascent": "data"}, {"normalise": False}, {"relative": True})
def test_the_ascents_are_in_the_contract(method, options):
    algorithm = method(lr=0.1, **options)
    check_stacked_equals_loop(algorithm)
    check_threads_equal_loop(algorithm)


@methods
def test_decay_makes_a_difference(method):
    ends = [
        finish(start(method(lr=0.1, ascent=ascent), weight_decay=0.1))
        for ascent in ("full", "data")
    ]
    assert (ends[0] - ends[1]).abs().max() > 1e-4
