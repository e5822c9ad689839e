"""NetFleet against Algorithm 1 of Zhang et al. (2022) in naive loops."""

import pytest

from tests.algorithms.boxes.gossip import GossipCase, everywhere
from undrift import NetFleet


def box(Ws, g, x0, K, *, lr):
    m = len(K)
    x = [x0.copy() for _ in range(m)]
    v = [g(i, -1, 0, x[i]) for i in range(m)]  # a first minibatch, before round 0
    y = [v[i].copy() for i in range(m)]  # y_i,0 = g_i(x_i,0)
    for t, W in enumerate(Ws):
        mixed_x = [sum(W[i, j] * x[j] for j in range(m)) for i in range(m)]  # sent: x and y
        mixed_y = [sum(W[i, j] * y[j] for j in range(m)) for i in range(m)]
        for i in range(m):
            x[i] = mixed_x[i] - lr * y[i]  # line 5: its own y, not the mixed one
            v_new = g(i, t, 0, x[i])
            y[i] = mixed_y[i] + v_new - v[i]  # y^(j) in the sum; y^(i) is a misprint
            v[i] = v_new
            for k in range(1, K[i]):  # K - 1 local steps with recursive correction
                x[i] = x[i] - lr * y[i]
                v_new = g(i, t, k, x[i])
                y[i] = y[i] + v_new - v[i]
                v[i] = v_new
        yield {"x": x, "y": y, "g": v}


WORK = {"one": [1] * 5, "equal": [4] * 5}


@everywhere
def test_box(case):
    K = [3, 5, 1, 4, 6]
    case.compare(case.run(NetFleet(lr=0.1), K), box(**case.given(), K=K, lr=0.1))


@pytest.mark.parametrize("work", WORK)
def test_box_with_equal_work(work):
    case, K = GossipCase("noisy", "own", "stacked"), WORK[work]
    case.compare(case.run(NetFleet(lr=0.1), K), box(**case.given(), K=K, lr=0.1))
