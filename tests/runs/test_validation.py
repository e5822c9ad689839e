"""Validation samples in experiments: what is recorded, and what is chosen by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import undrift as ud
from undrift.cli.main import app
from undrift.config.experiment import Experiment
from undrift.data.holdout import hold_out
from undrift.runs import search as searches
from undrift.runs.build import build_clients, build_run

VALUES: dict[str, Any] = {
    "data": {"clients": 4, "partition": "dirichlet:0.3", "test_samples": 50, "validation": 0.1},
    "training": {"rounds": 3, "work": "steps:2"},
    "evaluation": {"every": 2},
    "engine": {"mode": "loop"},
}


def experiment(name: str = "fedavg", **sections: Any) -> Experiment:
    return Experiment.of({**VALUES, "methods": [{"name": name}], **sections})


@pytest.mark.parametrize("name", ["fedavg", "dsgd", "marsit"])
def test_what_is_recorded_is_that_of_the_model(name: str) -> None:
    asked = experiment(name)
    run = build_run(asked, asked.methods[0], seed=0)
    records = list(run)
    assert [record.validation_loss is None for record in records] == [True, False, False]
    held = build_clients(asked.data, 0).validation
    assert held is not None
    inputs, targets = held
    with torch.no_grad():
        outputs = run.model.eval()(inputs)
    accuracy = float((outputs.argmax(1) == targets).double().mean())
    assert records[-1].validation_accuracy == pytest.approx(accuracy)
    loss = float(nn.functional.cross_entropy(outputs, targets))
    assert records[-1].validation_loss == pytest.approx(loss, rel=1e-5)


def test_training_is_that_without_those_samples() -> None:
    """The same parts, cut by hand, give the same model, bit for bit."""
    asked = experiment(data={**VALUES["data"], "validation": 0.25})
    run = build_run(asked, asked.methods[0], seed=3)
    list(run)
    data = ud.data.digits()
    parts = ud.data.partition.parse("dirichlet:0.3", data.stored_train[1], 4, seed=3)
    left, _ = hold_out(parts, 0.25, len(data.stored_train[1]), seed=3)
    cut = ud.Clients.split(*data.stored_train, left, prepare=data.prepare)
    by_hand = build_run(asked, asked.methods[0], seed=3, clients=cut)
    records = list(by_hand)
    assert by_hand.model_sha256 == run.model_sha256
    assert records[-1].validation_accuracy is None


def test_a_search_learns_from_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(searches._Chooser, "tell", lambda self, score: told.append(score))
    sweep = {"grid": {"method.lr": [0.01, 0.3]}}
    result = ud.run(experiment(sweep=sweep), out=tmp_path / "x", search=2)
    assert told == [trial.recent("validation_accuracy") for trial in result.trials]
    assert told != [trial.last for trial in result.trials]


def test_the_command_chooses_by_validation(tmp_path: Path) -> None:
    arguments = ["compare", "fedavg", "--lr", "0.001,0.1,0.3", "--clients", "4", "--rounds", "2"]
    arguments += ["--test-samples", "50", "--validation", "0.1", "--out", str(tmp_path / "x")]
    outcome = CliRunner().invoke(app, [*arguments, "--quiet", "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert "Validation accuracy %, * the best" in outcome.stderr
    assert "cells are chosen by validation accuracy" in outcome.stderr
    shown = json.loads(outcome.stdout.splitlines()[-1])["FedAvg"]
    found = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (tmp_path / "x").glob("fedavg-*.jsonl")
    ]
    scores = [sum(r["validation_accuracy"] for r in rows) / len(rows) for rows in found]
    assert shown["validation_accuracy"] == pytest.approx(max(scores))


@pytest.mark.parametrize("share", [0.0, 1.0, 2])
def test_no_share(share: float) -> None:
    with pytest.raises(ValueError, match=r"data\.validation needs a number"):
        experiment(data={"validation": share})
