"""Frames of clients, from `ud.Clients` to a model's file that scores new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

import undrift as ud
from undrift.errors import DataError


def patients(rows: int = 90, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, rows)
    return pd.DataFrame(
        {
            "id": np.arange(1000, 1000 + rows),
            "site": rng.choice(["east", "north", "south"], rows),
            "age": np.where(rng.random(rows) < 0.1, np.nan, age),
            "ward": rng.choice(["a", "b"], rows),
            "died": (age > 60).astype(int),
        }
    )


OPTIONS: dict[str, Any] = {"drop": ["id"], "missing": "impute", "task": "classification"}


def trained(clients: ud.Clients) -> ud.Run:
    run = ud.simulate(ud.FedAvg(lr=0.3), nn.Linear(3, 2), clients, work="epochs:2", rounds=3)
    list(run)
    return run


def test_frames_take_the_options_of_tables() -> None:
    clients = ud.Clients(patients(), target="died", client="site", **OPTIONS)
    assert len(clients) == 3
    assert clients.preprocessing is not None
    assert clients.preprocessing.target.classes == ("0", "1")
    each = [frame.drop(columns="site") for _, frame in patients().groupby("site")]
    assert len(ud.Clients(each, target="died", **OPTIONS)) == 3


def test_a_test_frame_of_ones_own_is_tested_on_and_not_fitted_to() -> None:
    held = patients(30, seed=1).assign(age=lambda f: f["age"] + 500)
    clients = ud.Clients(patients(), target="died", client="site", test=held, **OPTIONS)
    assert clients.test is not None
    assert (len(clients.targets), len(clients.test[1])) == (90, 30)
    assert abs(float(clients.inputs[:, 0].mean())) < 1e-5
    assert float(clients.test[0][:, 0].mean()) > 10
    assert len(clients.owners["test"]) == 30
    unowned = held.drop(columns="site")
    clients = ud.Clients(patients(), target="died", client="site", test=unowned, **OPTIONS)
    assert "test" not in clients.owners


def test_what_frames_and_others_do_not_take_is_named() -> None:
    with pytest.raises(TypeError, match="Clients has no 'mising'; the nearest is 'missing'"):
        ud.Clients(patients(), target="died", client="site", mising="impute")
    pair = (np.zeros((2, 1), np.float32), np.zeros(2, np.int64))
    with pytest.raises(TypeError, match="Clients has no 'missing'"):
        ud.Clients([pair], missing="impute")
    with pytest.raises(ValueError, match="frames as the data of all clients"):
        ud.Clients([patients(), pair], target="died")
    without = patients().drop(columns="ward")
    lacking = "frames of the same columns, got client 1 without 'ward'; add the column"
    with pytest.raises(ValueError, match=lacking):
        ud.Clients([patients(), without], target="died", **{**OPTIONS, "missing": "refuse"})
    assert len(ud.Clients([patients(), without], target="died", **OPTIONS)) == 2  # imputed
    with pytest.raises(ValueError, match="client 1 without 'died'"):
        ud.Clients([patients(), patients().drop(columns="died")], target="died", **OPTIONS)
    unknown = patients().assign(site=lambda f: f["site"].where(f.index != 4))
    with pytest.raises(
        DataError, match=r"Row 5 of column 'site' .*; drop the row, or name its cli"
    ):
        ud.Clients(unknown, target="died", client="site", **OPTIONS)
    with pytest.raises(
        ValueError, match="test rows with a column 'ward', got 'columns id, site, age"
    ):
        ud.Clients(
            patients(),
            target="died",
            client="site",
            test=patients().drop(columns="ward"),
            **OPTIONS,
        )


def test_a_model_s_file_scores_rows_as_the_run_does(tmp_path: Path) -> None:
    run = trained(ud.Clients(patients(), target="died", client="site", **OPTIONS))
    path, new = tmp_path / "model.safetensors", patients(20, seed=2)
    run.export(path)
    with pytest.warns(UserWarning, match="filled in: 1 of column 'age'"):
        expected = run.predict(new)
    saved = ud.SavedModel.read(path, model=nn.Linear(3, 2))
    with pytest.warns(UserWarning, match="filled in: 1 of column 'age'"):
        pd.testing.assert_frame_equal(saved.predict(new), expected)
    with pytest.raises(ud.UndriftError, match="the file does not say; name it with --model"):
        ud.SavedModel.read(path)


def test_a_transformer_of_ones_own_goes_into_the_file(tmp_path: Path) -> None:
    frame = patients()[["site", "age", "died"]].dropna()
    own = {"task": "classification", "transformer": StandardScaler()}
    clients = ud.Clients(frame, target="died", client="site", **own)
    model = ud.models.build("logistic", shape=(1,), classes=2)
    run = ud.simulate(ud.FedAvg(lr=0.3), model, clients, work="epochs:1", rounds=1)
    list(run)
    run.export(tmp_path / "model.safetensors")
    saved = ud.SavedModel.read(tmp_path / "model.safetensors", model="logistic")
    pd.testing.assert_frame_equal(saved.predict(frame), run.predict(frame))


def houses(rows: int = 90) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"city": rng.choice(list("abc"), rows), "size": rng.normal(90, 20, rows)})
    return frame.assign(price=3000 * frame["size"] + rng.normal(0, 9000, rows))


@pytest.mark.parametrize("task", [None, "regression"])
def test_a_loss_of_ones_own_on_numbers_has_one_shape_and_keeps_the_metrics(
    task: str | None,
) -> None:
    seen = set()

    def own(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.add((outputs.shape[1:], targets.shape[1:]))
        return F.huber_loss(outputs, targets)

    def squeezed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.huber_loss(outputs.squeeze(1), targets)

    def with_variance(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.gaussian_nll_loss(outputs[:, 0], targets, outputs[:, 1].exp())

    clients = ud.Clients(houses(), target="price", client="city")
    options = {"work": ud.Steps(2), "rounds": 1, "task": task}
    record = next(ud.simulate(ud.FedAvg(lr=0.1), nn.Linear(1, 1), clients, loss=own, **options))
    assert seen == {((1,), (1,))}
    assert list(record.metrics) == ["rmse", "mae", "r2"]
    assert record.metrics["rmse"] > 1000, "in the target's units"
    with pytest.raises(ValueError, match=r"one shape, here \(\d+, 1\) of both.*squeeze both"):
        ud.simulate(ud.FedAvg(lr=0.1), nn.Linear(1, 1), clients, loss=squeezed, **options)
    if task is None:  # Outputs of another shape are for the loss to understand.
        run = ud.simulate(
            ud.FedAvg(lr=0.1), nn.Linear(1, 2), clients, loss=with_variance, **options
        )
        assert next(run).metrics is None


def test_cells_that_are_filled_in_new_rows_are_counted() -> None:
    frame = houses()
    frame.loc[3, "size"] = np.nan
    clients = ud.Clients(frame, target="price", client="city", missing="impute")
    run = ud.simulate(ud.FedAvg(lr=0.1), nn.Linear(1, 1), clients, work=ud.Steps(1), rounds=1)
    next(run)
    run.predict(frame.iloc[4:])  # A warning would fail the test.
    with pytest.warns(UserWarning, match=r"filled in: 1 of column 'size' by \d+"):
        run.predict(frame)
