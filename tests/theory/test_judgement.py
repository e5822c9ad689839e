"""Conditions, bounds and orders say what is known, and a measured L certifies nothing."""

from __future__ import annotations

import math

import pytest

import undrift as ud
from undrift.theory import Constants, Order, Verdict, fedacg, marsit, netfleet


def test_a_condition_holds_or_is_violated_with_a_sentence() -> None:
    low, high = (
        marsit.conditions(Constants(1.0), lr=lr, period=4, rounds=100)[0] for lr in (0.01, 1)
    )
    assert low.verdict is Verdict.HOLDS
    assert high.verdict is Verdict.VIOLATED
    assert "violated: 91 against 1" in high.sentence
    assert high.sentence.endswith("(Appendix B).")


def test_a_measured_l_refutes_and_never_certifies() -> None:
    constants = Constants(1.0, measured=True)
    low, high = (marsit.conditions(constants, lr=lr, period=4, rounds=100)[0] for lr in (0.01, 1))
    assert low.verdict is Verdict.UNKNOWN
    assert "the true L may be larger" in low.sentence
    assert high.verdict is Verdict.VIOLATED


def test_what_does_not_depend_on_l_is_judged_with_a_measured_one() -> None:
    constants = Constants(1.0, measured=True)
    held = fedacg.conditions(constants, lr=1e-6, lam=0.85, steps=5)
    assert [each.verdict for each in held] == [Verdict.UNKNOWN, Verdict.HOLDS]


def test_a_bound_is_void_with_the_reason_where_a_condition_is_violated() -> None:
    void = marsit.bound(
        Constants(1.0, gap=1.0), lr=1.0, server_lr=0.1, period=4, rounds=9, clients=2, parameters=3
    )
    assert void.value == math.inf
    assert void.sentence.startswith("Appendix B of the thesis bounds nothing here: L lr + ")


def test_a_bound_without_full_precision_rounds_is_void() -> None:
    options = {"lr": 0.01, "server_lr": 0.01, "rounds": 9, "clients": 2, "parameters": 3}
    void = marsit.bound(Constants(1.0, gap=1.0), period=None, **options)
    assert "without full-precision rounds" in void.void


def test_an_order_has_no_value() -> None:
    order = marsit.theorem_3_1(clients=4, rounds=100, period=2)
    assert isinstance(order, Order)
    assert not hasattr(order, "value")
    assert order.leading == "P (P + 1) / T"
    assert "by constants that Theorem 3.1 does not give" in order.sentence


def test_an_estimated_bound_says_so() -> None:
    constants = Constants(1.0, gap=1.0, measured=True)
    bound = netfleet.bound(constants, lr=1e-5, steps=2, rounds=9, nodes=4, eigenvalue=0.5)
    assert bound.estimated
    assert "is estimated to be at most" in bound.sentence


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Constants(0.0), "Constants needs L > 0"),
        (lambda: Constants(1.0, gap=-1.0), "gap >= 0"),
        (
            lambda: netfleet.bound(
                Constants(1.0), lr=1e-5, steps=2, rounds=9, nodes=4, eigenvalue=0.5
            ),
            "netfleet.bound needs the gap F.x0. - F., got none; give Constants.gap=....",
        ),
        (
            lambda: netfleet.conditions(Constants(1.0), lr=0.1, steps=1, nodes=1, eigenvalue=0.0),
            "two nodes or more, got 1",
        ),
        (
            lambda: netfleet.conditions(Constants(1.0), lr=0.1, steps=1, nodes=4, eigenvalue=1.0),
            "it is 1 on a graph that is not connected",
        ),
        (lambda: fedacg.participation_factor(4, 5), "participants in 1 ... 4, got 5"),
        (
            lambda: ud.theory.fedagrac.theorem_4_1([-1.0, 2.0], steps=[1, 2]),
            "Theorem 4.1 is for non-negative objectives",
        ),
        (lambda: ud.theory.fedavg.noise(steps=[0, 2]), "K_i >= 1, got 0"),
    ],
)
def test_bad_constants_get_one_sentence(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()
