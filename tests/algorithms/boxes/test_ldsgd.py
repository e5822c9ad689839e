"""LDSGD against the loops of Li et al. (2019), with the gossip steps first or last."""

import pytest

from tests.algorithms.boxes.gossip import GossipCase, everywhere, hard, hardest
from undrift import LDSGD


def box_cta(Ws, g, x0, K, *, lr, gossip=1):
    m = len(K)
    x = [x0.copy() for _ in range(m)]
    for t, W in enumerate(Ws):
        for k in range(gossip):  # I2 steps of decentralised SGD, everybody together
            grad = [g(i, t, k, x[i]) for i in range(m)]
            half = [sum(W[i, j] * x[j] for j in range(m)) for i in range(m)]
            x = [half[i] - lr * grad[i] for i in range(m)]
        for i in range(m):  # I1 = K_i - I2 steps of local SGD, everybody alone
            for k in range(gossip, K[i]):
                x[i] = x[i] - lr * g(i, t, k, x[i])
        yield {"x": x}


def box_atc(Ws, g, x0, K, *, lr, gossip=1):
    m = len(K)
    x = [x0.copy() for _ in range(m)]
    for t, W in enumerate(Ws):
        for i in range(m):  # K_i steps of local SGD, everybody alone
            for k in range(K[i]):
                x[i] = x[i] - lr * g(i, t, k, x[i])
        for _ in range(gossip):  # then averages with the neighbours
            x = [sum(W[i, j] * x[j] for j in range(m)) for i in range(m)]
        yield {"x": x}


BOXES = {"cta": box_cta, "atc": box_atc}
WORK = {"one": [1] * 5, "equal": [4] * 5}
UNEQUAL = [3, 5, 2, 4, 6]
forms = pytest.mark.parametrize("form", BOXES)


@everywhere
@forms
@pytest.mark.wide(daily=hard)
def test_box(case, form):
    run = case.run(LDSGD(lr=0.2, form=form), UNEQUAL)
    case.compare(run, BOXES[form](**case.given(), K=UNEQUAL, lr=0.2))


@hardest
@forms
def test_box_with_two_gossips(case, form):
    run = case.run(LDSGD(lr=0.2, form=form, gossip=2), UNEQUAL)
    case.compare(run, BOXES[form](**case.given(), K=UNEQUAL, lr=0.2, gossip=2))


@forms
@pytest.mark.parametrize("gossip", [1, 2])
@pytest.mark.parametrize("work", WORK)
def test_box_with_equal_work(form, gossip, work):
    """One step a round has room for one gossip in the cta form."""
    case, K = GossipCase("noisy", "own", "stacked"), WORK[work]
    run = case.run(LDSGD(lr=0.2, form=form, gossip=gossip), K)
    room = min(gossip, K[0]) if form == "cta" else gossip
    case.compare(run, BOXES[form](**case.given(), K=K, lr=0.2, gossip=room))


def test_one_gossip_that_opens_the_round_is_the_default():
    assert LDSGD(lr=0.3) == LDSGD(lr=0.3, form="cta", gossip=1)
