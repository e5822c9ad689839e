"""CKA and the loss surface of experiments, by `ud.run` and by `undrift run`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.commands import built_run, undrift
from undrift.analysis.drift import cka
from undrift.config.experiment import Experiment
from undrift.results.trial import read_records
from undrift.runs import local_models
from undrift.runs.build import build_clients

DATA: dict[str, Any] = {"clients": 6}
TRAINING: dict[str, Any] = {"rounds": 3, "work": "steps:2", "participation": 4}
METHOD: dict[str, Any] = {"name": "fedavg"}


def experiment(method: dict[str, Any] = METHOD, **sections: dict[str, Any]) -> dict[str, Any]:
    return {"data": DATA, "training": TRAINING, "methods": [method], **sections}


def last_models(method: dict[str, Any] = METHOD) -> tuple[ud.Run, dict[int, torch.Tensor]]:
    """Return the same run, and the local models of its last round."""
    run, seen = built_run(method, data=DATA, training=TRAINING), {}

    def keep(upload: ud.Upload) -> None:
        if upload.round == TRAINING["rounds"]:
            seen[upload.client] = upload.y

    run._tap = keep  # type: ignore[attr-defined]
    for _ in run:
        pass
    return run, seen  # type: ignore[return-value]


def test_cka_is_recorded_where_a_round_is_evaluated(tmp_path: Path) -> None:
    result = ud.run(experiment(evaluation={"cka": True, "every": 2}), out=tmp_path / "x")
    records = result.trials[0].records
    assert [record.cka is not None for record in records] == [False, True, True]
    lines = [
        json.loads(line)
        for line in (tmp_path / "x" / "records.drift.jsonl").read_text().splitlines()
    ]
    assert [line["cka"] is not None for line in lines] == [False, True, True]
    layers = lines[-1]["cka"]
    # The model is Flatten, Linear, ReLU, Linear; layers without parameters do not count.
    assert list(layers) == ["0", "1", "2", "3"]
    assert records[-1].cka == pytest.approx((layers["1"] + layers["3"]) / 2, rel=1e-12)
    # By hand: the mean over pairs of clients of two models' CKA on samples of the test set.
    run, models = last_models()
    assert result.trials[0].model_sha256 == run.model_sha256, "looking changes nothing"
    clients = build_clients(Experiment.of(experiment()).data, 0)
    inputs = local_models._inputs(clients, 0, torch.float32)
    assert len(inputs) == local_models.CKA_SAMPLES
    assert clients.test is not None
    tested = run._task.prepared(clients.test[0])
    assert {tuple(row) for row in inputs.tolist()} <= {tuple(row) for row in tested.tolist()}
    pairs = [
        cka(run.model, one, other, inputs)
        for one, other in itertools.combinations(models.values(), 2)
    ]
    assert len(pairs) == 6
    for layer, value in layers.items():
        assert value == pytest.approx(np.mean([pair[layer] for pair in pairs]), rel=1e-6)
        assert 0.1 < value < 1 or layer == "0"


def test_the_surface_is_that_of_the_training_loss_at_three_local_models(tmp_path: Path) -> None:
    result = ud.run(experiment(evaluation={"surface": True}), out=tmp_path / "x")
    found = json.loads((tmp_path / "x" / "records.surface.json").read_text())
    run, models = last_models()
    assert found["round"] == 3
    assert found["clients"] == sorted(models)[:3]
    a, b, c = (models[client].double() for client in found["clients"])
    sides = np.linalg.norm(np.diff([*found["points"], found["points"][0]], axis=0), axis=1)
    assert sides == pytest.approx([float((p - q).norm()) for p, q in ((b, a), (c, b), (a, c))])
    losses = np.array(found["losses"])
    assert losses.shape == (local_models.GRID,) * 2
    # A corner by hand, on the fixed sample of the training data.
    e1 = (b - a) / (b - a).norm()
    e2 = (c - a) - ((c - a) @ e1) * e1
    corner = a + found["u"][-1] * e1 + found["v"][0] * e2 / e2.norm()
    evaluator = run.sample_evaluator()
    inputs, targets = evaluator.clients[0]
    assert len(targets) == 512
    with torch.no_grad():
        outputs = run._task.forward(corner.float(), run._task.prepared(inputs))
        expected = float(torch.nn.functional.cross_entropy(outputs, targets))
    assert losses[0, -1] == pytest.approx(expected, rel=1e-4)
    assert losses[0, -1] != pytest.approx(run.score(corner.float()).loss, rel=1e-3), "not the test"
    assert (tmp_path / "x" / "records.surface.png").stat().st_size > 3000
    assert result.trials[0].model_sha256 == run.model_sha256
    assert len(ud.run(experiment(), out=tmp_path / "x", force=True).trials) == 1
    assert not (tmp_path / "x" / "records.surface.json").exists(), "force removes what it wrote"


def test_two_clients_have_no_plane_and_the_run_still_ends(tmp_path: Path) -> None:
    training = {**TRAINING, "participation": 2}
    with pytest.warns(UserWarning, match="surface could not be computed in round 3"):
        result = ud.run(
            experiment(training=training, evaluation={"surface": True}), out=tmp_path / "x"
        )
    assert result.trials[0].status == "finished"
    assert not (tmp_path / "x" / "records.surface.json").exists()


def test_peers_have_neither_and_run(tmp_path: Path) -> None:
    evaluation = {"surface": True, "cka": True, "sharpness": True}
    training = {"rounds": 2, "work": "steps:2"}
    result = ud.run(
        experiment({"name": "netfleet"}, training=training, evaluation=evaluation),
        out=tmp_path / "x",
    )
    record = result.trials[0].records[-1]
    assert record.cka is None
    assert record.sharpness is not None
    assert record.hessian is not None


@pytest.mark.parametrize("name", ["drift", "cka", "surface"])
def test_local_models_need_one_process(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"evaluation.{name} needs one process, got 2"):
        ud.run(experiment(evaluation={name: True}, engine={"processes": 2}), out=tmp_path / "x")


def test_the_command_line_measures_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "all.toml", tmp_path / "x"
    path.write_text(
        '[[methods]]\nname = "fedacg"\n[data]\nclients = 6\n[training]\nrounds = 2\n'
        'work = "steps:2"\n[evaluation]\nsharpness = true\ncka = true\nsurface = true\n'
        "[engine]\ncheckpoint_every = 1\n"
    )
    code, _, err = undrift(capsys, monkeypatch, "run", str(path), "--quiet", "--out", str(out))
    assert code == 0, err
    records, damaged = read_records(out / "records.jsonl")
    assert damaged == 0
    for record in records:
        assert 0 < record.cka < 1  # type: ignore[operator]
        assert record.sharpness > 0  # type: ignore[operator]
        assert record.hessian > 0  # type: ignore[operator]
    assert (out / "records.surface.json").is_file()


def test_a_resumed_run_keeps_cka(tmp_path: Path) -> None:
    """The record of the checkpoint has it, since the tap fills it in before the round is saved."""
    settings: dict[str, Any] = {"evaluation": {"cka": True}, "engine": {"checkpoint_every": 1}}
    whole = ud.run(experiment(**settings), out=tmp_path / "whole")

    def stop(job: Any, record: ud.Record) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ud.run(experiment(**settings), out=tmp_path / "part", on_record=stop)
    resumed = ud.run(resume=tmp_path / "part")
    assert [r.cka for r in resumed.trials[0].records] == [r.cka for r in whole.trials[0].records]


def test_records_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Which have no such fields."""
    path = tmp_path / "records.jsonl"
    fields = ud.Record(1, 2, 0.5, 0.9, 1, 1, 1, 1, 0.1).to_dict()
    for name in ("sharpness", "hessian", "cka"):
        del fields[name]
    path.write_text(json.dumps(fields) + "\n")
    records, damaged = read_records(path)
    assert damaged == 0
    assert records[0].cka is records[0].sharpness is records[0].hessian is None
