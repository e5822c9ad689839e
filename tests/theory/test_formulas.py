"""Bounds and orders have the numbers that their formulas give by hand."""

from __future__ import annotations

import pytest

from undrift.theory import Constants, fedacg, fedagrac, fedspeed, marsit, netfleet


def test_fedspeed_as_printed() -> None:
    bound = fedspeed.printed(
        Constants(1.0, 1.0, 1.0, gap=1.0),
        lr=0.001,
        lam=0.01,
        steps=10,
        rounds=100,
        corrections=(2.0, 1.0),
    )
    kappa = 0.48464
    expected = [2 / kappa, 0.0128 / kappa, 3.2e-5 / kappa, 5.44e-5 / kappa]
    assert list(bound.terms.values()) == pytest.approx(expected)


def test_fedspeed_with_one_step_has_no_drift() -> None:
    """kappa = 1/2; the noise of a step is (4 lam^2 L^2 + lam L / 2) sigma^2 / m over kappa."""
    bound = fedspeed.bound(
        Constants(2.0, 3.0, 1.0, gap=1.0), lr=0.01, lam=0.01, steps=1, rounds=100, clients=5
    )
    expected = [2.0, 0.0, 2 * (0.0016 + 0.01) * 9 / 5, 0.0]
    assert list(bound.terms.values()) == pytest.approx(expected)


def test_fedacg() -> None:
    constants = Constants(1.0, 1.0, 1.0, gap=1.0)
    bound = fedacg.theorem_2(constants, lam=0.5, steps=2, rounds=100, clients=5)
    assert list(bound.terms.values()) == pytest.approx([20.0, 2.428992, 0.144225], rel=1e-5)
    A = fedacg.participation_factor(5, 2)
    assert pytest.approx(1 + 20 / 8 * 0.6) == A
    # With lam = 0 and K = 1, C_8 is lr^2 (L/2 + 5 L + 10 lr^2 L^3 A).
    c8, c9, c10 = fedacg.coefficients(Constants(2.0), lr=0.1, lam=0.0, steps=1, A=A)
    assert c8 == pytest.approx(0.01 * (1 + 10 + 80 * 0.01 * A))
    assert c9 == pytest.approx(0.01 * 2 * (10 + A + 20 * A * 0.04))
    assert c10 == pytest.approx(c9 + 0.1 * (0.2 - 0.5))


def test_fedacg_momentum_enters_by_the_fourth_power_of_lam() -> None:
    """C_4 C_1 / (1 - lam)^2 at lr K = 0.01, L = 1, lam = 1/2 and K = 1."""
    c8, _, _ = fedacg.coefficients(Constants(1.0), lr=0.01, lam=0.5, steps=1, A=1.0)
    base = 1e-4 / (2 * 0.25) + 5e-4 / 0.5 + 1e-7 / 0.25
    momentum = 0.25 * (1e-4 + 0.005) / 0.5 * (1e-4 + 2e-7) / 0.25
    assert c8 == pytest.approx(base + momentum)


def test_marsit() -> None:
    bound = marsit.bound(
        Constants(2.0, 1.0, gap=1.0),
        lr=0.01,
        server_lr=0.02,
        period=3,
        rounds=100,
        clients=4,
        parameters=10,
    )
    expected = [2 / 0.9608, 0.005 / 0.9608, 0.0048 / 0.9608, 0.768 / 0.9608]
    assert list(bound.terms.values()) == pytest.approx(expected)


def test_netfleet() -> None:
    bound = netfleet.bound(
        Constants(1.0, 2.0, gap=1.0),
        lr=0.001,
        steps=2,
        rounds=10,
        nodes=4,
        eigenvalue=0.5,
        tracker_spread=1.0,
    )
    assert list(bound.terms.values()) == pytest.approx([100.0, 2.25e-4, 0.003, 0.72])
    limits = {
        each.name: each.limit
        for each in netfleet.conditions(
            Constants(2.0), lr=0.001, steps=3, nodes=4, eigenvalue=0.5, reading="printed"
        )
    }
    assert list(limits.values()) == pytest.approx(
        [1 / 6, 1 / 144, 0.024056, 0.019642, 0.029463, 0.0104167, 0.00173611, 0.00462963], rel=1e-4
    )


def test_fedagrac() -> None:
    constants = Constants(1.0, 1.0, gap=1.0)
    order = fedagrac.theorem_4_2(constants, lam=1.0, steps=[1, 3], rounds=100)
    expected = [1 / 20, 0.05, 0.05 * 4 / 3 * 1.0, 0.205, 0.1383333333]
    assert list(order.terms.values()) == pytest.approx(expected, rel=1e-6)


def test_fedacg_bound_has_one_term_for_each_cause() -> None:
    """With lam = 0 and K = 1: C_8 = 0.0011008, C_9 = 0.0022016 and C_10 = -0.0025984."""
    constants = Constants(2.0, 3.0, 2.0, gap=1.0)
    bound = fedacg.bound(constants, lr=0.01, lam=0.0, steps=1, rounds=100, clients=5)
    expected = [1 / 0.25984, 9 * 0.0011008 / 0.0025984, 4 * 0.0022016 / 0.0025984]
    assert list(bound.terms.values()) == pytest.approx(expected)


def test_fedspeed_step_limit_as_printed() -> None:
    """lr <= 1 / (32 sqrt(3 K) L) is 1 / 192 for K = 3 and L = 2."""
    found = fedspeed.conditions(Constants(2.0), lr=0.001, lam=0.01, steps=3, reading="printed")
    (limit,) = (each.limit for each in found if each.name == "lr <= 1 / (32 sqrt(3 K) L)")
    assert limit == pytest.approx(1 / 192)
