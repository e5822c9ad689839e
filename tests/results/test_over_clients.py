"""Metrics over clients: their spread, the worst tenth, and clients without a value."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import undrift as ud
from undrift.config.sections import Evaluation
from undrift.report.comparison import Comparison
from undrift.report.html import page
from undrift.report.page_tables import over_clients as page_table
from undrift.report.terminal_table import methods_table
from undrift.results import metrics
from undrift.results.tracking import CSV
from undrift.results.trial import Trial

INPUTS = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long()


def clients() -> ud.Clients:
    """Return four clients with test samples of their own; those of the last are of one class."""
    pairs = [(INPUTS[i : i + 20], LABELS[i : i + 20]) for i in range(0, 80, 20)]
    tests = [(INPUTS[80 + 10 * i :][:10], LABELS[80 + 10 * i :][:10]) for i in range(4)]
    tests[3] = (tests[3][0], torch.ones(10, dtype=torch.int64))
    return ud.Clients(pairs, test=tests)


def run(data: ud.Clients, **options: Any) -> ud.Run:
    torch.manual_seed(0)
    measured = ud.EvaluationOptions(client_metrics=True, every=options.pop("every", 1))
    chosen = {"work": "steps:4", "rounds": 2, "metrics": "auroc", **options}
    return ud.simulate(ud.FedAvg(lr=0.3), nn.Linear(4, 2), data, evaluation=measured, **chosen)


def test_figures_over_clients() -> None:
    values = [*np.linspace(0, 1, 20).tolist(), math.nan]
    found = metrics.over_clients(values, lower=False)
    assert found["worst"] == pytest.approx(np.mean(np.linspace(0, 1, 20)[:2]))
    assert metrics.over_clients(values, lower=True)["worst"] == pytest.approx(1 - found["worst"])
    assert (found["clients"], found["undefined"]) == (20, 1)
    assert found["std"] == pytest.approx(np.std(np.linspace(0, 1, 20)))
    assert metrics.over_clients([math.nan], lower=True) == {"clients": 0, "undefined": 1}


def test_each_client_is_measured_on_its_own_test_samples() -> None:
    data = clients()
    started = run(data)
    last = list(started)[-1]
    spread = (last.client_metrics or {})["accuracy"]
    assert data.test is not None
    with torch.no_grad():
        hits = started.model(data.test[0]).argmax(1) == data.test[1]
    own = hits.double().view(4, 10).mean(1)
    assert last.client_samples == "test"
    assert spread["mean"] == pytest.approx(float(own.mean()))
    assert spread["worst"] == pytest.approx(float(own.min()))
    assert (last.client_metrics or {})["auroc"]["undefined"] == 1  # one class has no curve
    assert metrics.curve(started.records, "client_accuracy_worst").values[-1] == spread["worst"]
    assert metrics.rises("client_accuracy_worst", started.records)
    assert not metrics.rises("client_loss_worst", started.records)


def test_validation_or_training_samples_are_taken_where_the_test_has_no_owners() -> None:
    data = ud.data.Dataset((INPUTS, LABELS), (INPUTS[:20], LABELS[:20]), 2, "own")
    held = data.split("iid", 4, validation=0.2)
    assert list(run(held))[-1].client_samples == "validation"
    assert held.validation is not None
    assert len(held.owners["validation"]) == len(held.validation[1])
    whole = data.split("iid", 4)
    last = list(run(whole))[-1]
    assert last.client_samples == "training"
    assert (last.client_metrics or {})["accuracy"]["clients"] == 4


def test_each_client_has_its_own_values_of_the_last_test() -> None:
    data = clients()
    started = run(data)
    last = list(started)[-1]
    values = started.client_values
    assert list(values) == ["0", "1", "2", "3"]
    assert sum(each["samples"] for each in values.values()) == len(data.test[1])
    mean = sum(each["accuracy"] for each in values.values()) / 4
    assert (last.client_metrics or {})["accuracy"]["mean"] == pytest.approx(mean)
    assert math.isnan(values["3"]["auroc"]), "one class has no curve"


def test_a_list_of_test_sets_has_one_for_each_client() -> None:
    pair = INPUTS[:20], LABELS[:20]
    with pytest.raises(ValueError, match="one for each of 2 clients, got 3"):
        ud.Clients([pair, pair], test=[pair, pair, pair])


def trial(started: ud.Run) -> Trial:
    records = list(started)
    return Trial("FedAvg", "FedAvg", {}, 0, len(records), records, "finished")


def test_table_page_and_csv_have_them(tmp_path: Path) -> None:
    made = trial(run(clients(), every=2))
    table = methods_table({"FedAvg": [made]}, Evaluation())
    (head,) = [name for name in table.columns if name.startswith("clients' accuracy")]
    cell = table.rows[0][table.columns.index(head)]
    assert "±" in cell
    comparison = Comparison("spread", [made])
    shown = page_table(comparison)
    assert shown is not None
    assert "accuracy, worst tenth,\u00a0%" in shown.heads
    assert "auroc, clients without" in shown.heads
    assert "How it spreads over the clients, on their test samples" in page(comparison)
    tracker = CSV(tmp_path / "a.csv")
    tracker.begin(made)
    for record in made.records:  # The first was not tested and has no such columns.
        tracker.add(record)
    first, second = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert first["client_accuracy_worst"] == ""
    assert float(second["client_accuracy_worst"]) <= float(second["client_accuracy_mean"])
