"""X + ACG: accelerated broadcast around any method."""

from __future__ import annotations

from typing import Any

import pytest

import undrift as ud
from tests.support.problems import bed
from tests.support.runs import distance, on_net, on_quadratics
from undrift import testing
from undrift.algorithms.accelerated import Accelerated
from undrift.algorithms.fedmlb import FedMLB
from undrift.optim.schedules import resolve
from undrift.testing import small_net

WEIGHTS = [0.4, 0.1, 0.3, 0.2]


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_around_fedavg_and_fedprox_it_is_fedacg(mode: str) -> None:
    pairs = [
        (Accelerated(ud.FedAvg(lr=0.2), lam=0.7), ud.FedACG(lr=0.2, lam=0.7, beta=0.0)),
        (Accelerated(ud.FedProx(lr=0.2, mu=0.3)), ud.FedACG(lr=0.2, beta=0.3)),
    ]
    for wrapped, plain in pairs:
        cohorts = [[0, 1], [1, 2, 3], [0, 3], [2]]
        ends = [
            on_net(a, mode=mode, participation=cohorts, weighting=WEIGHTS) for a in (wrapped, plain)
        ]
        assert distance(ends[0].x, ends[1].x) < 1e-12
        assert distance(ends[0].state.m, ends[1].state.m) < 1e-12
        assert ends[0].totals.bytes_up == ends[1].totals.bytes_up
        assert ends[0].totals.bytes_down == ends[1].totals.bytes_down


def test_without_momentum_it_is_the_method_itself() -> None:
    for inner in (ud.Scaffold(lr=0.2), ud.FedSpeed(lr=0.2), FedMLB(lr=0.1)):
        ends = [on_net(a, mode="stacked") for a in (Accelerated(inner, lam=0.0), inner)]
        assert distance(ends[0].x, ends[1].x) < 1e-12


def test_drift_corrected_methods_keep_their_optimum() -> None:
    problem = bed()
    run = on_quadratics(Accelerated(ud.Scaffold(lr=0.2), lam=0.5), problem, rounds=300)
    assert distance(run.x, problem.optimum()) < 1e-9
    assert float(run.state.m.abs().max()) < 1e-9


def test_fedmlb_with_acg_starts_and_freezes_at_the_look_ahead() -> None:
    """Two rounds by hand: the second starts from Phi = x + lam (x - x0)."""
    wrapped = testing.start(Accelerated(FedMLB(lr=0.1), lam=0.6), rounds=2)
    plain = testing.start(FedMLB(lr=0.1), rounds=2)
    x0 = wrapped.x.clone()
    next(wrapped), next(plain)
    assert distance(wrapped.x, plain.x) < 1e-15
    x1 = wrapped.x.clone()
    ahead = x1 + 0.6 * (x1 - x0)
    plain.state = plain.state._replace(x=ahead)
    next(wrapped), next(plain)
    assert distance(wrapped.x, plain.x) < 1e-12
    assert distance(wrapped.state.m, plain.x - x1) < 1e-12


def test_newcomers_move_the_model_where_the_inner_method_does() -> None:
    """FedADMM's enrol moves x itself; the wrapper must not keep the old one."""
    wrapped = Accelerated(ud.FedADMM(lr=0.1))
    run = testing.start(wrapped)
    next(run)
    enrolled = wrapped.enrol(run.state, 0.5)
    assert distance(enrolled.x, enrolled.inner.x) == 0.0
    assert distance(enrolled.x, run.state.x) > 0


def test_schedules_reach_the_inner_method() -> None:
    wrapped = Accelerated(ud.FedAvg(lr=ud.exponential(0.1, 0.5)), lam=ud.piecewise(0.5, {1: 0.2}))
    assert resolve(wrapped, 1) == Accelerated(ud.FedAvg(lr=0.05), lam=0.2)


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "algorithm",
    [Accelerated(ud.FedAvg(lr=0.1)), Accelerated(ud.Scaffold(lr=0.1)), Accelerated(FedMLB(lr=0.1))],
    ids=["fedavg", "scaffold", "fedmlb"],
)
def test_contract(algorithm: Any, check: Any) -> None:
    check(algorithm)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="lam in"):
        Accelerated(ud.FedAvg(lr=0.1), lam=1.0)
    with pytest.raises(ValueError, match="method with a server"):
        Accelerated(0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two or more trained blocks"):
        testing.start(Accelerated(FedMLB(lr=0.1)), model=small_net()[0])
