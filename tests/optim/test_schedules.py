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
