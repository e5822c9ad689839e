"""What a new user gives in the wrong form is answered in one sentence with what to write."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import undrift as ud
from undrift.config.experiment import Experiment

PAIR = (torch.zeros(8, 3), torch.arange(8) % 2)
LOADERS = [DataLoader(TensorDataset(*PAIR)) for _ in range(2)]
FRAME = pd.DataFrame(
    {"site": ["a", "b"] * 10, "age": range(0, 60, 3), "y": ["no", "no", "yes", "yes"] * 5}
)
FRAME["age"] %= 7
NAMED = {"methods": [{"name": "fedavg"}], "model": {"name": "mine.py:Net:hidden=5,dropout=0.5"}}


class Samples(Dataset[Any]):
    """Returns the same input for every sample."""

    def __init__(self, inputs: Any) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        return self.inputs, i % 2


def trained(clients: ud.Clients, width: int) -> ud.Run:
    options = {"batch_size": 4, "rounds": 1, "participation": 1.0, "work": "steps:1"}
    run = ud.simulate(ud.FedAvg(lr=0.1), nn.Linear(width, 2), clients, **options)
    next(iter(run))
    return run


def predicted(rows: Any, **options: Any) -> Any:
    return trained(ud.Clients([PAIR, PAIR], test=PAIR, **options), 3).predict(rows)


def compared(clients: Any = "digits", **options: Any) -> Any:
    return ud.compare(["fedavg"], nn.Linear(3, 2), clients, **options)


IMAGE = Image.new("RGB", (8, 8))
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "a file as clients": (
        lambda: ud.Clients("p.csv", target="y", client="site", missing="impute"),
        "got 'p.csv'; say undrift.Clients(pandas.read_csv('p.csv'), target=..., client=...)",
    ),
    "a path as clients": (
        lambda: ud.Clients(Path("p.parquet")),
        "pandas.read_parquet('p.parquet')",
    ),
    "files as clients": (lambda: ud.Clients(["p.csv", "q.csv"]), "not a file, got 'p.csv'"),
    "a file as a data set": (
        lambda: ud.data.load("p.csv"),
        "undrift.Dataset.of(undrift.data.read_table('p.csv', target=...))",
    ),
    "code as a data set": (lambda: ud.data.load("mine.py:f"), "call the function yourself"),
    "loaders to compare": (lambda: compared(LOADERS), "got 'list'; make them: undrift.Clients("),
    "a loader to compare": (lambda: compared(LOADERS[0]), "pass one for each client"),
    "a frame to compare": (lambda: compared(FRAME), "undrift.Clients(frame, target='...'"),
    "a rate to compare": (
        lambda: compared(learning_rate=0.1),
        "compare has no 'learning_rate'; the learning rate is lr, of the method: FedAvg(lr=0.1)",
    ),
    "nothing to compare": (ud.compare, "compare needs methods, got none"),
    "a model to run": (
        lambda: ud.run(model=nn.Linear(3, 2)),
        "run has no 'model'; the experiment says it: run({'methods': [{'name': 'fedavg'}]})",
    ),
    "a keyword of run": (lambda: ud.run(resum="x"), "run has no 'resum'; the nearest is 'resume'"),
    "a method without a rate": (ud.FedAvg, "FedAvg needs lr, got none; say lr=0.1"),
    "a rate that is missing": (lambda: ud.FedSpeed(lam=10), "FedSpeed needs lr, got none"),
    "too many values": (
        lambda: ud.FedAvg(0.1, 1.0, ud.SGD(), False, 5),
        "at most 4 values (lr, server_lr, rule, keep_rule), got 5; name them",
    ),
    "samples of another width": (
        lambda: predicted(torch.zeros(2, 7)),
        "predict needs samples as the clients', of shape (3,), got shape (7,) of torch.float32: ",
    ),
    "lists of another width": (lambda: predicted([[1.0, 2.0]]), "shape (3,), got shape (2,)"),
    "samples of another type": (
        lambda: predicted(torch.zeros(2, 3, dtype=torch.int64)),
        "of shape (3,), got shape (3,) of torch.int64: ",
    ),
    "empty cells to predict": (
        lambda: trained(ud.Clients(FRAME, target="y", client="site"), 1).predict(
            pd.DataFrame({"age": [1, None, 3]})
        ),
        'a model whose training says missing = "impute" (missing=impute in the shell) fills it in',
    ),
    "images of Pillow": (
        lambda: ud.Clients([Samples(IMAGE)]),
        "got 'images of Pillow'; add transform=torchvision.transforms.ToTensor() to the Dataset",
    ),
    "text as samples": (lambda: ud.Clients([Samples("hello")]), "a tokenizer's input_ids"),
    "text as inputs": (
        lambda: ud.Clients([(np.array(["a", "b"]), np.array([0, 1]))]),
        "got text; make numbers of the inputs, such as a tokenizer's input_ids",
    ),
    "text as targets": (
        lambda: ud.Clients([(np.zeros((2, 3)), np.array(["a", "b"]))]),
        "got text; number classes with numpy.unique(labels, return_inverse=True)",
    ),
    "callbacks": (
        lambda: ud.simulate(ud.FedAvg(lr=0.1), None, None, callbacks=[print]),
        "simulate has no 'callbacks'; a run is an iterator: say for record in run",
    ),
    "options in a model's name": (
        lambda: Experiment.of(NAMED),
        'options stand beside the name: name = "mine.py:Net", hidden = 5, dropout = 0.5',
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_form_has_a_remedy(case: str) -> None:
    call, sentence = CASES[case]
    with pytest.raises(
        (ValueError, TypeError, ud.UndriftError), match=re.escape(sentence)
    ) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_model_that_fails_is_no_matter_of_lazy_samples_alone() -> None:
    rows = [TensorDataset(*PAIR)] * 2
    clients = ud.Clients(rows, test=rows[0], lazy=True)
    with pytest.raises(ValueError, match=r"of shape \(3,\), got shape \(7,\)"):
        trained(clients, 3).predict(torch.zeros(2, 7))


def test_predictions_without_pandas_name_the_extra(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    code, _, err = call("predict", "runs/x", "y.csv")
    assert code == 1
    assert "pip install 'undrift[tables]'" in " ".join(err.split())
