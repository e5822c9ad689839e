"""Schedules: floats with a rule, which methods resolve in every round."""

from __future__ import annotations

import pickle

import pytest
import torch

import undrift as ud
from undrift import testing
from undrift.optim.schedules import parse, resolve


def test_schedules_are_floats_with_a_rule() -> None:
    decay = ud.exponential(0.1, 0.5)
    assert decay + 0.0 == 0.1
    assert [decay.at(t) for t in range(3)] == [0.1, 0.05, 0.025]
    steps = ud.piecewise(0.1, {50: 0.5, 150: 1.0})
    assert [steps.at(t) for t in (0, 49, 50, 149, 150)] == [0.1, 0.1, 0.5, 0.5, 1.0]
    assert pickle.loads(pickle.dumps(decay)) == decay
    assert decay != ud.exponential(0.1, 0.6)
    assert decay != 0.1
    assert ud.Schedule(lambda t: 0.1) != ud.Schedule(lambda t: 0.7)
    assert parse(repr(decay)) == decay
    assert parse(repr(steps)) == steps
    assert parse("0.25") == 0.25


def test_a_staircase_changes_once_in_so_many_rounds() -> None:
    stairs = ud.staircase(0.03, 0.1, 100)
    rounds = (0, 99, 100, 199, 200, 399)
    expected = [0.03, 0.03, 0.03 * 0.1, 0.03 * 0.1, 0.03 * 0.1**2, 0.03 * 0.1**3]
    assert [stairs.at(t) for t in rounds] == expected
    assert repr(stairs) == "staircase(0.03, 0.1, 100)"
    assert parse(repr(stairs)) == stairs
    assert pickle.loads(pickle.dumps(stairs)) == stairs
    assert [ud.staircase(2.0, 0.7, 1).at(t) for t in range(9)] == [
        ud.exponential(2.0, 0.7).at(t) for t in range(9)
    ]
    for every in (0, -1, 1.5):
        with pytest.raises(ValueError, match="staircase needs every >= 1, a whole number"):
            ud.staircase(0.1, 0.5, every)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"such as exponential\(0.1, 0.998\), .*staircase\("):
        parse("staircase(0.1, 0.5, 0)")


def final(algorithm: ud.PSGD | ud.Marsit) -> torch.Tensor:
    """Return the workers' models after seven rounds of two steps."""
    options = {"rounds": 7, "work": ud.Steps(2), "seed": 1}
    run = testing.start(algorithm, **options)
    for _ in run:
        pass
    return run.state.x


def test_a_staircase_is_marsits_decay_bit_for_bit() -> None:
    """It has the same period, in rounds with one bit and in full precision."""
    lr, server_lr = 0.3, 0.007
    decayed = ud.Marsit(lr=lr, server_lr=server_lr, period=3, decay=0.3)
    stairs = ud.Marsit(
        lr=ud.staircase(lr, 0.3, 3), server_lr=ud.staircase(server_lr, 0.3, 3), period=3
    )
    assert torch.equal(final(decayed), final(stairs))
    assert not torch.equal(final(decayed), final(ud.Marsit(lr, server_lr, period=3)))


def test_psgd_on_a_staircase_is_marsit_in_full_precision_with_decay() -> None:
    marsit = ud.Marsit(lr=0.3, period=1, decay=0.7)
    assert torch.equal(final(ud.PSGD(lr=ud.staircase(0.3, 0.7, 1))), final(marsit))


def test_resolve_reaches_nested_values_and_checks_them_again() -> None:
    method = ud.FedAvg(lr=ud.exponential(0.1, 0.5), rule=ud.Momentum(ud.piecewise(0.5, {2: 0.9})))
    assert resolve(method, 2) == ud.FedAvg(lr=0.025, rule=ud.Momentum(0.9))
    assert resolve(ud.FedAvg(lr=0.1), 3) == ud.FedAvg(lr=0.1)
    with pytest.raises(ValueError, match="lam >= lr"):
        resolve(ud.FedSpeed(lr=0.1, lam=ud.exponential(1.0, 0.01)), 1)


def test_a_schedule_drives_the_run() -> None:
    decayed = testing.start(ud.FedAvg(lr=ud.exponential(0.1, 0.5)), rounds=2)
    by_hand = testing.start(ud.FedAvg(lr=0.1), rounds=2)
    next(decayed), next(by_hand)
    by_hand.algorithm = ud.FedAvg(lr=0.05)
    next(decayed), next(by_hand)
    assert torch.equal(decayed.x, by_hand.x)
