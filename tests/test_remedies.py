"""What a new user gives in the wrong form is answered in one sentence with what to write."""

from __future__ import annotations

import inspect
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
from undrift import check, foreign
from undrift.config.experiment import Experiment
from undrift.config.shorthand import parse_model

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


def simulated(*arguments: Any) -> ud.Run:
    return ud.simulate(*arguments, ud.Clients([PAIR]), work="steps:1", rounds=1)


def learned(model: Any = None, **options: Any) -> ud.Run:
    model, clients = model or nn.Linear(3, 2), ud.Clients([PAIR, PAIR])
    return ud.simulate(ud.FedAvg(lr=0.1), model, clients, work="steps:1", rounds=1, **options)


def framed(**columns: Any) -> ud.Clients:
    return ud.Clients(FRAME.assign(**columns), target="y", client="site")


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
    "two arrays as clients": (
        lambda: ud.Clients((torch.zeros(9, 3), torch.zeros(9))),
        "got a tuple of Tensor, Tensor; for one client pass [(inputs, targets)], for several deal",
    ),
    "a dictionary as clients": (
        lambda: ud.Clients({"north": PAIR}),
        "got an object of dict; for clients by name pass list(data.values())",
    ),
    "a generator as clients": (lambda: ud.Clients(iter([PAIR])), "pass list(data)"),
    "a column as clients": (
        lambda: ud.Clients(FRAME["age"]),
        'got a Series of shape (20,); pass the frame: undrift.Clients(frame, target="column"',
    ),
    "an array as clients": (
        lambda: ud.Clients(np.zeros((4, 3))),
        "got a ndarray of shape (4, 3); pass [(inputs, targets), ...] with a pair for each client",
    ),
    "tensors in the list": (
        lambda: ud.Clients([torch.zeros(9, 3), torch.zeros(9, 3), torch.zeros(9, 3)]),
        "a pair of inputs and targets, arrays or tensors, for client 0, got a Tensor of shape (9, ",
    ),
    "data by another name": (
        lambda: ud.Clients(train=[PAIR]),
        "Clients has no 'train'; the data are clients, such as undrift.data.load(",
    ),
    "no data": (ud.Clients, "Clients needs a list with the data of each client, or a table"),
    "the model first": (
        lambda: simulated(nn.Sequential(nn.Linear(3, 2)), ud.FedAvg(lr=0.1)),
        "got an object of Sequential; the method comes first: simulate(method, model, clients)",
    ),
    "the clients first": (
        lambda: simulated(ud.Clients([PAIR]), ud.FedAvg(lr=0.1)),
        "the method comes first: simulate(method, model, clients)",
    ),
    "a decay of a method": (
        lambda: ud.FedAvg(lr=0.1, weight_decay=0.1),
        "FedAvg has no 'weight_decay'; simulate has it: simulate(..., weight_decay=...)",
    ),
    "rates to compare": (
        lambda: compared(lr=[0.1, 0.3]),
        "a rate is of a method, FedAvg(lr=0.1), and several are tune={'lr': [0.1, 0.3]}",
    ),
    "a device to compare": (
        lambda: compared(device="cpu"),
        'the device that computes is engine.device = "cuda:0", a field of the experiment: changes=',
    ),
    "no batches": (lambda: learned(batch_size=0), "batch_size=None takes all samples of a client"),
    "a parallel model": (
        lambda: learned(nn.DataParallel(nn.Linear(3, 2))),
        "got 'DataParallel'; pass the module inside: model.module",
    ),
    "a scripted model": (
        lambda: learned(torch.jit.script(nn.Linear(3, 2))),
        "pass the model before torch.jit; compile=True of ExecutionOptions compiles it",
    ),
    "a loader of batches": (
        lambda: ud.Clients([DataLoader(TensorDataset(*PAIR), batch_size=None)]),
        "got 'batch_size=None'; let its Dataset return single samples and give it a batch_size",
    ),
    "means for missing cells": (
        lambda: ud.Clients(FRAME, target="y", client="site", missing="mean"),
        "got 'mean'; \"impute\" fills in the mean, or the most frequent category",
    ),
    "one frame without clients": (
        lambda: ud.Clients(FRAME, target="y"),
        "undrift.data.read_table(frame, target='y')).split('iid', 20)",
    ),
    "tests without a column": (
        lambda: ud.Clients(FRAME, target="y", client="site", test=FRAME[["site", "y"]]),
        "test rows with a column 'age', got 'columns site, y'; give the rows to test on the same",
    ),
    "a column of lists": (
        lambda: framed(lists=[[1, 2]] * 20),
        "Row 1 of column 'lists' needs a number or a word, got a list; make a column of each",
    ),
    "a complex column": (
        lambda: framed(wave=np.full(20, 1j)),
        "Row 1 of column 'wave' needs a real number, got ",
    ),
    "several bad columns": (
        lambda: framed(uuid=[f"u{i}" for i in range(20)], day=["2020-01-31"] * 20, z=[1j] * 20),
        "'day' with dates such as 2020-01-31, 'z' with 1j; leave out drop = ['uuid', 'day', 'z'] "
        "(drop=uuid+day+z in the shell).",
    ),
    "decimal commas among bad columns": (
        lambda: framed(day=["2020-01-31"] * 20, cost=["1,5"] * 20, size=["2,5", "3,5"] * 10),
        "say decimal = \"comma\" (decimal=comma in the shell) and leave out drop = ['day'] (drop=",
    ),
    "options of a model": (
        lambda: parse_model("mlp:hidden=5:dropout=0.1"),
        "got 'hidden=5:dropout=0.1'; write commas: hidden=5,dropout=0.1",
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


WORDS = {  # a keyword of another library -> what `simulate` answers
    "data": "clients, such as undrift.data.load",
    "test": "undrift.Clients(data, test=..., validation=...)",
    "val_loader": "undrift.Clients(data, test=..., validation=...)",
    "dataloaders": "undrift.Clients(data_of_each_client)",
    "out": "undrift.compare(..., out='folder'), and checkpoints by checkpoint='folder'",
    "lr_scheduler": "FedAvg(lr=undrift.cosine(0.1, 50))",
    "scheduler": "FedAvg(lr=undrift.cosine(0.1, 50))",
    "num_workers": "side by side in processes=2",
    "n_jobs": "side by side in processes=2",
    "local_bs": "samples of a step are batch_size=20",
    "bs": "samples of a step are batch_size=20",
    "clients_per_round": "participation=0.1, or participation=10",
    "client_fraction": "participation=0.1, or participation=10",
    "C": "participation=0.1, or participation=10",
    "gpu": 'device="cuda:0"',
    "gpus": 'device="cuda:0"',
    "max_epochs": 'work="epochs:5"',
    "learningRate": "the learning rate is lr, of the method",
    "batchsize": "samples of a step are batch_size=20",
    "partcipation": "the nearest is 'participation'",
    "zzz": "simulate has no 'zzz'; help(undrift.simulate) says which it has.",
}


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_another_library_is_answered_with_undrift_s(word: str) -> None:
    with pytest.raises(TypeError, match=re.escape(WORDS[word])) as error:
        ud.simulate(ud.FedAvg(lr=0.1), **{word: 1})  # type: ignore[call-arg]
    assert "nearest" in WORDS[word] or "nearest" not in str(error.value)


def test_the_words_name_keywords_and_fields_that_there_are(call) -> None:
    keywords = inspect.signature(ud.simulate).parameters
    sections = {n: f.annotation for n, f in Experiment.model_fields.items()}
    _, shown, _ = call("run", "fedavg", "--help")
    for meaning in foreign.MEANINGS.values():
        for name in re.findall(r"(?<![\w.(])([a-z_]+)=(?!=)", meaning.python.partition("(")[0]):
            assert name in keywords, meaning
        for section, name in re.findall(r"\b([a-z]+)\.([a-z_]+) =", meaning.file):
            assert name in sections[section].model_fields, meaning  # type: ignore[union-attr]
        for option in re.findall(r"--[a-z-]+", meaning.shell):
            assert option in shown, meaning
    assert set(check.OF_SIMULATE) <= set(keywords)


def test_a_run_answers_the_methods_that_other_libraries_have() -> None:
    run = trained(ud.Clients([PAIR, PAIR]), 3)
    for name in ("fit", "train", "run"):
        with pytest.raises(AttributeError, match="a run is an iterator: say for record in run"):
            getattr(run, name)
    with pytest.raises(AttributeError, match=r"'history'; run\.records has a record for each"):
        _ = run.history
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        _ = run.zzz
    assert not hasattr(run, "fit")


FIELDS = {  # a field of a file -> the answer
    "methods.learning_rate": "FedAvg has no 'learning_rate'; the learning rate is lr, of a method",
    "methods.local_epochs": 'local epochs are training.work = "epochs:5"',
    "methods.weight_decay": "FedAvg has no 'weight_decay'; weight decay is training.weight_decay =",
    "training.learning_rate": "training has no 'learning_rate'; the learning rate is lr, of a meth",
    "training.local_epochs": "training has no 'local_epochs'; local epochs are training.work = \"",
    "training.device": "training has no 'device'; it is engine.device; it has",
    "evaluation.early_stopping": "has no 'early_stopping'; it is training.early_stopping; it has",
    "data.num_clients": "the number of clients is data.clients = 20",
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_another_library_is_answered_in_a_file_and_by_set(field: str) -> None:
    section, _, name = field.partition(".")
    values: dict[str, Any] = {"methods": [{"name": "fedavg"}]}
    plain = Experiment.of(values)
    if section == "methods":
        values["methods"][0][name] = 1
    else:
        values[section] = {name: 1}
    with pytest.raises(ValueError, match=re.escape(FIELDS[field])):
        Experiment.of(values)
    with pytest.raises(ValueError, match=re.escape(FIELDS[field])):
        plain.changed({field.replace("methods", "methods[0]"): 1})


COMMANDS = {
    "run fedavg --learning_rate 0.1": "has no --learning_rate; the learning rate is --lr, such as",
    "run fedavg --batch_size 3": "has no --batch_size; it is spelt --batch-size",
    "run fedavg --batchsize 3": "has no --batchsize; samples of a step are --batch-size",
    "run fedavg --lr_scheduler x": "a schedule of rounds is a value of lr, such as --lr 'cosine(",
    "run fedavg --bs 3": "samples of a step are --batch-size, such as --batch-size 20",
    "run fedavg --data p.csv:target=y,clients=site": 'is client = "site" (client=site in the',
    "run x.toml --learning-rate 3": "is lr, of a method: lr = 0.1 below [[methods]], in the file",
    "run patients.csv": "a table is data: undrift run fedavg --data patients.csv:target=COLUMN",
    "run exp.tom": "a file with an experiment ends in .toml: undrift init experiment.toml writes",
    "trian": "no command 'trian'; training is run: undrift run fedavg --lr 0.1",
    "train": "training is run: undrift run fedavg",
    "reprot": "no command 'reprot'; the nearest is 'report'",
    "data lst": "undrift data has no command 'lst'; the nearest is 'list'",
    "zzz": "undrift has no command 'zzz'; there are compare, sweep",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_word_of_another_tool_is_answered_in_the_shell(call, words: str) -> None:
    code, _, err = call(*words.split())
    assert code == 2
    assert COMMANDS[words] in " ".join(err.split())


def test_one_column_may_be_dropped_by_its_name_alone() -> None:
    clients = ud.Clients(FRAME.assign(g=0.5), target="y", client="site", drop="age")
    assert clients.preprocessing is not None
    assert clients.preprocessing.features == ("g",)


@pytest.mark.parametrize(
    ("model", "loss", "sentence"),
    [
        (nn.Softmax(1), "cross_entropy", "got outputs that sum to 1, as of a softmax; leave the"),
        (nn.Softmax(1), nn.CrossEntropyLoss(label_smoothing=0.1), "leave the softmax out"),
        (nn.Identity(), nn.NLLLoss(), "end the model with nn.LogSoftmax.1."),
        (nn.Identity(), nn.functional.nll_loss, "use nn.CrossEntropyLoss.. for logits"),
    ],
)
def test_a_softmax_too_many_or_too_few_is_told(model: nn.Module, loss: Any, sentence: str) -> None:
    with pytest.warns(UserWarning, match=sentence):
        learned(nn.Sequential(nn.Linear(3, 2), model), loss=loss)
    last = nn.LogSoftmax(1) if "nll" in str(loss).lower() else nn.Identity()
    learned(nn.Sequential(nn.Linear(3, 2), last), loss=loss)  # A warning would fail the test.


def test_code_that_returns_no_data_is_told_how_to_wrap_it(call, tmp_path: Path) -> None:
    returned = {
        "pd.DataFrame({'a': [1]})": "undrift.Clients(frame, target='...', client='...')",
        "(torch.zeros(4, 2), torch.zeros(4))": "undrift.Clients.split(inputs, targets, ",
        "[(torch.zeros(4, 2), torch.zeros(4))]": "make them: undrift.Clients(data_of_each_client",
    }
    lines = ["import pandas as pd, torch"]
    lines += [f"def load{i}():\n    return {value}" for i, value in enumerate(returned)]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    for i, remedy in enumerate(returned.values()):
        code, _, err = call("run", "fedavg", "--data", f"{tmp_path / 'mine.py'}:load{i}")
        assert code == 2
        assert remedy in " ".join(err.split())


def test_a_lazy_sample_that_is_not_a_number_is_named() -> None:
    inputs = torch.zeros(40, 3)
    inputs[33, 1] = torch.nan  # which the look before the first round does not read
    rows = TensorDataset(inputs, torch.arange(40) % 2)
    clients = ud.Clients([rows, rows], lazy=True)
    run = ud.simulate(
        ud.FedAvg(lr=0.1), nn.Linear(3, 2), clients, work="epochs:1", rounds=1, batch_size=8
    )
    with pytest.raises(ValueError, match=r"client \d, needs finite data, .* Inf in sample 33 of"):
        list(run)


def test_a_run_that_has_ended_says_so_when_it_is_resumed(call, tmp_path: Path) -> None:
    training = ["--rounds", "1", "--clients", "2", "--model", "logistic", "--work", "steps:1"]
    code, _, err = call("run", "fedavg", *training, "--out", str(tmp_path / "run"), "--quiet")
    assert code == 0, err
    code, out, err = call("run", "--resume", str(tmp_path / "run"))
    assert code == 0, err
    assert "The run has ended; this is what came of it." in " ".join((out + err).split())


def test_predictions_read_decimal_commas_as_training_did(call, tmp_path: Path) -> None:
    rows = [f"{'ns'[i % 2]};{30 + i},5;{'no' if i < 20 else 'yes'}" for i in range(40)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["site;age;died", *rows]))
    data = f"{table}:target=died,client=site,decimal=comma"
    out = str(tmp_path / "run")
    training = ["--rounds", "1", "--model", "logistic", "--quiet", "--out", out]
    code, _, err = call("run", "fedavg", "--data", data, *training)
    assert code == 0, err
    code, scored, err = call("predict", out, str(table))
    assert code == 0, err
    assert len(scored.splitlines()) == 41
    code, _, err = call("predict", out, str(table), "--decimal", "point")
    assert "needs a number with a decimal point, got '30,5'" in " ".join(err.split())


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
