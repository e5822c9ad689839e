"""How often the runs of an experiment are tested: in the same rounds, and as it is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from undrift.config.experiment import Experiment
from undrift.engine.tuning import frequency
from undrift.runs.build import check_run, resolve_experiment, with_tests

ROUNDS = 12
EXPERIMENT: dict[str, Any] = {
    "data": {"name": "digits", "clients": 4, "test_samples": 200},
    "model": {"name": "logistic"},
    "training": {"rounds": ROUNDS, "batch_size": 10, "topology": "ring"},
    "methods": [{"name": "dsgd"}, {"name": "netfleet", "work": "steps:16"}],
    "engine": {"mode": "stacked", "kernels": False},
}


def rounds_with_tests(trial: Any) -> list[int]:
    return [record.round for record in trial.records if record.accuracy is not None]


def test_methods_are_tested_in_the_same_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DSGD does a step and NET-FLEET sixteen: 17 steps of 4 nodes and 10 samples a round."""
    monkeypatch.setattr(frequency, "FREE_ELEMENTS", 0)
    result = ud.run(EXPERIMENT, out=tmp_path / "runs")
    # 3 / 4 of 8,160 samples are 6,120 forward passes for both; a test of both takes 800.
    assert [rounds_with_tests(trial) for trial in result.trials] == 2 * [[1, 2, 4, 6, 8, 10, 12]]
    written = Experiment.read(tmp_path / "runs" / "experiment.toml").evaluation
    assert (written.every, written.first, written.samples) == (2, True, None)
    assert written.node_samples == 50
    said = result.trials[0].facts["tests"]
    assert said.startswith("every 2 rounds on 200 of 200 samples, each node on 50, ")
    again = ud.run(tmp_path / "runs" / "experiment.toml", out=tmp_path / "again")
    first, second = (
        [(r.loss, getattr(r, "node_accuracy", None)) for t in each.trials for r in t.records]
        for each in (result, again)
    )
    assert first == second
    asked = ud.run({**EXPERIMENT, "evaluation": {"every": 5}}, out=tmp_path / "asked")
    assert [rounds_with_tests(trial) for trial in asked.trials] == 2 * [[5, 10, 12]]


def test_small_test_sets_are_tested_in_every_round() -> None:
    experiment = resolve_experiment(Experiment.of(EXPERIMENT))
    counts = [check_run(experiment, method, 0) for method in experiment.methods]
    assert [run.trained for run in counts] == [ROUNDS * 40, ROUNDS * 640]
    settled = with_tests(experiment, counts).evaluation
    assert (settled.every, settled.samples, settled.node_samples) == (1, None, None)
