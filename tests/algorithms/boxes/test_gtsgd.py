"""GTSGD against DIGing (combine, then adapt) and GT-DSGD (adapt, then combine) in naive loops."""

import numpy as np
import pytest

from tests.algorithms.boxes.gossip import everywhere, hard
from undrift import GTSGD


def box_cta(Ws, g, x0, K, *, lr):
    m = len(K)
    x = [x0.copy() for _ in range(m)]
    grad = [g(i, -1, 0, x[i]) for i in range(m)]  # on a minibatch of its own, before round 0
    y = [grad[i].copy() for i in range(m)]  # y_i(0) = g_i(x_i(0))
    for t, W in enumerate(Ws):
        for k in range(K[0]):
            x_new = [sum(W[i, j] * x[j] for j in range(m)) - lr * y[i] for i in range(m)]
            grad_new = [g(i, t, k, x_new[i]) for i in range(m)]
            y = [sum(W[i, j] * y[j] for j in range(m)) + grad_new[i] - grad[i] for i in range(m)]
            x, grad = x_new, grad_new
        yield {"x": x, "y": y, "g": grad}


def box_atc(Ws, g, x0, K, *, lr):
    m = len(K)
    x = [x0.copy() for _ in range(m)]
    y = [np.zeros_like(x0) for _ in range(m)]  # y_i(0) = 0
    grad = [np.zeros_like(x0) for _ in range(m)]  # g_i(-1) = 0
    for t, W in enumerate(Ws):
        for k in range(K[0]):
            grad_new = [g(i, t, k, x[i]) for i in range(m)]  # at the own model
            sent = [y[j] + grad_new[j] - grad[j] for j in range(m)]
            y = [sum(W[i, j] * sent[j] for j in range(m)) for i in range(m)]  # track, then mix
            moved = [x[j] - lr * y[j] for j in range(m)]
            x = [sum(W[i, j] * moved[j] for j in range(m)) for i in range(m)]  # step, then mix
            grad = grad_new
        yield {"x": x, "y": y, "g": grad}


@everywhere
@pytest.mark.parametrize(("form", "box"), [("cta", box_cta), ("atc", box_atc)], ids=["cta", "atc"])
@pytest.mark.wide(daily=hard)
def test_box(case, form, box):
    K = [3] * 5
    case.compare(case.run(GTSGD(lr=0.2, form=form), K), box(**case.given(), K=K, lr=0.2))


def test_combine_then_adapt_is_the_default():
    assert GTSGD(lr=0.3) == GTSGD(lr=0.3, form="cta")
