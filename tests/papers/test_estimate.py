"""Rough times of papers, against counts of what is run."""

from __future__ import annotations

import platform

import pytest

from tests.papers.example import example
from undrift import builder
from undrift.config.experiment import Experiment
from undrift.papers.estimate import hours


def peers(method: str) -> Experiment:
    """Return a gossip of one round with ten steps on four nodes, of 20 samples each."""
    return Experiment.of(
        {
            "data": {"name": "mnist", "clients": 4},
            "model": {"name": "netfleet-cnn"},
            "training": {"rounds": 1, "work": "steps:10", "batch_size": 20, "topology": "ring"},
            "evaluation": {"every": 10**6},
            "methods": [{"name": method, "lr": 0.1}],
        }
    )


def test_a_round_of_methods_that_communicate_at_every_step_has_one_step() -> None:
    assert hours(peers("netfleet")) == pytest.approx(10 * hours(peers("dsgd")), rel=0.05)
    assert hours(peers("gtsgd")) == hours(peers("dsgd"))


def test_crops_take_time_whatever_the_network() -> None:
    """CIFAR-10's training images are cropped; a9a's rows are not."""
    paper = example().experiment
    assert paper is not None

    def rough(data: str, batch: int) -> float:
        changes = {"data.name": data, "model.name": "logistic", "training.batch_size": batch}
        return hours(paper.changed({**changes, "evaluation.every": 10**6}))

    samples = 3 * 3 * 4 * 2  # methods, clients, rounds, steps of one sample more each
    longer = 3.6e6 * (rough("cifar10", 3) - rough("cifar10", 2)) / samples
    assert longer == pytest.approx(0.002 + 0.007, rel=0.01)


def test_the_processor_is_named_where_the_system_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "processor", lambda: "flags\t: sse\nmodel name\t: Fast 9\n")
    assert builder.processor_name() == f"Fast 9 ({platform.machine()})"
    monkeypatch.setattr(builder, "processor", lambda: "model name\t: unknown\n")
    assert builder.processor_name() == platform.machine()
