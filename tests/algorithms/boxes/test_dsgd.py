"""DSGD against the loops of Lian et al. (2017)."""

from __future__ import annotations

import numpy as np
import pytest

import undrift as ud
from tests.algorithms.boxes.gossip import GossipCase, everywhere, hard


def box_cta(Ws, g, x0, K, *, lr):
    m = len(K)
    x = [x0.copy() for _ in range(m)]  # everybody starts at x_0
    for t, W in enumerate(Ws):
        for k in range(K[0]):
            grad = [g(i, t, k, x[i]) for i in range(m)]  # on an own minibatch, at x_i
            half = [sum(W[i, j] * x[j] for j in range(m)) for i in range(m)]  # average
            x = [half[i] - lr * grad[i] for i in range(m)]  # step
        yield {"x": x}


def box_atc(Ws, g, x0, K, *, lr):
    m = len(K)
    x = [x0.copy() for _ in range(m)]
    for t, W in enumerate(Ws):
        for k in range(K[0]):
            half = [x[i] - lr * g(i, t, k, x[i]) for i in range(m)]  # step
            x = [sum(W[i, j] * half[j] for j in range(m)) for i in range(m)]  # then average
        yield {"x": x}


@everywhere
@pytest.mark.parametrize(("form", "box"), [("cta", box_cta), ("atc", box_atc)], ids=["cta", "atc"])
@pytest.mark.wide(daily=hard)
def test_box(case, form, box):
    K = [3] * 5
    case.compare(case.run(ud.DSGD(lr=0.3, form=form), K), box(**case.given(), K=K, lr=0.3))


def test_combine_then_adapt_is_the_default():
    assert ud.DSGD(lr=0.3) == ud.DSGD(lr=0.3, form="cta")


def test_the_step_size_may_follow_a_schedule():
    case, K = GossipCase("exact", "own", "stacked"), [2] * 5
    decaying = case.run(ud.DSGD(lr=ud.exponential(0.4, 0.5)), K)
    g, Ws, x = case.given()["g"], case.given()["Ws"], case.given()["x0"]
    rows = [x] * 5
    for t, W in enumerate(Ws):  # a round of the box with the round's own step
        lr = 0.4 * 0.5**t
        for k in range(2):
            rows = list(W @ np.array(rows) - lr * np.array([g(i, t, k, rows[i]) for i in range(5)]))
        next(decaying)
        assert np.abs(decaying.x.numpy() - np.array(rows)).max() < 1e-12
