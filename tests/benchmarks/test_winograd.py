"""The trainings of the benchmark of convolutions: which of them are compared."""

from __future__ import annotations

import pytest

from benchmarks import winograd


def test_only_trainings_of_one_setting_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "find", lambda name: name)
    here = winograd.setting(300)
    assert here["data"] == "CIFAR-10"
    results = [
        {"way": "torch", **here},
        {"way": "F(4x4)", **here},
        {"way": "torch", **here, "code": "older"},  # torch does not use the C++
        {"way": "F(4x4)", **here, "code": "older"},
        {"way": "F(4x4)", **here, "data": "random images"},
        {"way": "F(4x4)", **here, "steps": 60},
        {"way": "F(4x4)", **here, "torch": "2.0"},
        {"way": "F(4x4)", "steps": 300},
    ]
    assert winograd.comparable(results, 300) == results[:3]
    monkeypatch.setattr(winograd, "find", lambda name: None)
    assert winograd.comparable(results, 300) == [results[4]]
