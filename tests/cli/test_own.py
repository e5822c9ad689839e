"""Models, data and tables of one's own on the command line, and code that files name."""

from __future__ import annotations

import inspect
import io
import json
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import undrift as ud
from undrift.config.own_methods import own_class

FAST = ["--rounds", "2", "--work", "steps:2", "--clients", "4", "--quiet", "--json"]
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes, hidden=8):
        super().__init__()
        self.first = nn.Linear(shape[0], hidden)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, inputs):
        return self.classifier(self.first(inputs).tanh())

def load():
    import undrift as ud
    return ud.data.digits()

def tuned():
    return Net((64,), 10)

def broken():
    return 3

def far(outputs, targets):
    return nn.functional.l1_loss(outputs, targets)

def scaled():
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder, RobustScaler
    return make_column_transformer((RobustScaler(), ["age"]), (OneHotEncoder(), ["ward"]))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(NET)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = 200
    age, ward = rng.normal(50, 15, rows), rng.choice(["a", "b"], rows)
    frame = pd.DataFrame(
        {
            "site": rng.choice(["east", "north", "south"], rows),
            "age": age.round(1),
            "ward": ward,
            "died": np.where(age + 10 * (ward == "a") > 55, "yes", "no"),
        }
    )
    path = tmp_path / "patients.csv"
    frame.to_csv(path)  # with its index column
    return path


def test_ones_own_model_and_data_are_named_as_the_library_s_are(call, own: Path) -> None:
    code, out, err = call("run", "fedavg", "--model", "mine.py:Net:hidden=5", *FAST, "--out", "x")
    assert code == 0, err
    code, again, err = call("run", "x/experiment.toml", "--trust", "--quiet", "--json")
    assert code == 0, err
    hashes = [json.loads(text.splitlines()[-1])["model_sha256"] for text in (out, again)]
    assert hashes[0] == hashes[1]
    code, _, err = call(
        "run", "fedavg", "--data", "mine.py:load", "--model", "mine.py:tuned", *FAST
    )
    assert code == 0, err
    code, _, err = call("export", "x", "--out", "y.safetensors", "--trust")
    assert code == 0, err
    assert (own.parent / "y.safetensors").is_file()


BAD = {
    "no such file": (["--model", "nothing.py:Net"], "a file that is there"),
    "no such name": (["--model", "mine.py:Nett"], "has no 'Nett'; the nearest is 'Net'"),
    "no such option": (
        ["--model", "mine.py:Net:width=5"],
        "it has hidden, and shape and classes are the data's",
    ),
    "no model": (["--model", "mine.py:broken"], "needs to return an nn.Module, got 3"),
    "no data": (
        ["--data", "mine.py:broken"],
        "to return undrift.Clients or an undrift.Dataset, got 'int'; make them: undrift.Clients(",
    ),
    "a column of clients": (["--client", "site"], "--data patients.csv:target=died,client=site"),
    "a spreadsheet": (["--data", "t.xlsx:target=died"], "no such file"),
    "hardware as fleet": (["--fleet", "cuda"], "the device that computes is device='cuda'"),
    "fleet as hardware": (["--device", "phone"], "is fleet='phone' (--fleet phone)"),
    "unknown model": (["--model", "mine.py"], "one of logistic"),
    "no target": (["--data", "t.csv"], "the column to predict"),
    "target elsewhere": (
        ["--data", "t.csv", "--target", "died"],
        "--data patients.csv:target=died",
    ),
    "no table": (["--data", "t.csv:target=died"], "no such file"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("own")
def test_bad_names_are_one_sentence(call, case: str) -> None:
    arguments, clue = BAD[case]
    code, _, err = call("run", "fedavg", *arguments, "--rounds", "1")
    assert code in (1, 2)
    assert clue in " ".join(err.split())
    assert "Traceback" not in err


EVIL = """
from pathlib import Path
Path({mark!r}).write_text("run")
from dataclasses import dataclass
from undrift import FedAvg
from torch import nn

@dataclass(frozen=True)
class Heavy(FedAvg):
    pass

class Net(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
"""
NAMED = """
seeds = [0]
[[methods]]
name = "{folder}/evil.py:Heavy"
[model]
name = "{folder}/evil.py:Net"
[training]
rounds = 1
work = "steps:1"
[data]
clients = 4
[engine]
checkpoint_every = 1
"""


@pytest.fixture
def evil(tmp_path: Path) -> tuple[Path, Path]:
    """A file that names code, and the mark that shows that the code has run."""
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(mark)))
    file = tmp_path / "evil.toml"
    file.write_text(NAMED.format(folder=tmp_path))
    return file, mark


def test_code_that_a_file_names_is_run_only_if_it_is_trusted(
    call, evil: tuple[Path, Path], tmp_path: Path
) -> None:
    file, mark = evil
    code, _, err = call("run", str(file), "--out", str(tmp_path / "x"))
    assert code == 2
    assert "needs your trust before its code is run" in " ".join(err.split())
    assert str(tmp_path / "evil.py") in "".join(err.split("\n"))
    with pytest.raises(ValueError, match="needs your trust"):
        ud.run(file)
    assert not mark.exists()
    code, _, err = call("run", str(file), "--trust", "--quiet", "--out", str(tmp_path / "x"))
    assert code == 0, err
    assert mark.exists()
    named = ["--set", f"model.name={tmp_path}/evil.py:Net"]  # the same path, on the command line
    code, _, err = call("run", str(file), *named, "--quiet", "--out", str(tmp_path / "y"))
    assert code == 0, err


def test_reading_a_folder_runs_no_code(call, evil: tuple[Path, Path], tmp_path: Path) -> None:
    file, _ = evil
    folder = tmp_path / "x"
    assert call("run", str(file), "--trust", "--quiet", "--out", str(folder))[0] == 0
    other = EVIL.format(mark=str(tmp_path / "second"))
    (tmp_path / "evil.py").rename(tmp_path / "kept.py")
    (tmp_path / "evil.py").write_text(other + "# changed\n")
    from undrift.usercode import load

    load._import_file.cache_clear()
    code, out, err = call("report", str(folder), "--json", "--figures")
    assert code == 0, err
    assert "Heavy" in out
    assert not (tmp_path / "second").exists()
    for command in (["run", "--resume", str(folder)], ["export", str(folder)]):
        code, _, err = call(*command, "--trust")
        assert code == 2, command
        assert "as it was when the run began" in " ".join(err.split())
    assert not (tmp_path / "second").exists()


def test_a_table_from_the_shell_to_scored_rows(call, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    data = f"{table}:target=died,client=site"
    training = ["--rounds", "15", "--lr", "0.3", "--participation", "1.0", "--quiet", "--json"]
    code, said, err = call("run", "fedavg", "--data", data, *training, "--out", str(out))
    assert code == 0, err
    assert json.loads(said.splitlines()[-1])["accuracy"] > 0.8
    one = tmp_path / "one"
    code, _, err = call(
        "run", "fedavg", "--data", data, *training, "--loss", "bce", "--out", str(one)
    )
    assert code == 0, err  # a model of one output, which is the logit of the second class
    code, printed, err = call("predict", str(one), str(table))
    assert code == 0, err
    rows = pd.read_csv(io.StringIO(printed))
    assert (rows["predicted died"] == rows["died"]).mean() > 0.8
    scored = tmp_path / "scored.csv"
    code, _, err = call("predict", str(out), str(table), "--out", str(scored))
    assert code == 0, err
    rows = pd.read_csv(scored)
    assert (rows["predicted died"] == rows["died"]).mean() > 0.8
    shares = rows[["predicted died=no", "predicted died=yes"]]
    assert np.allclose(shares.sum(axis=1), 1)
    code, printed, _ = call("predict", str(out / "model.safetensors"), str(table))
    assert code == 0
    assert printed == scored.read_text()
    code, _, err = call("predict", str(out), str(table), "--out", str(scored))
    assert code == 2
    assert "--force" in err
    code, said, _ = call("data", "show", data, "--out", str(tmp_path / "show"))
    assert code == 0
    assert "ward" in said
    assert all(f"│ {site} " in said for site in pd.read_csv(table)["site"].unique())


def test_each_client_of_a_table_has_a_line_of_metrics(call, table: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "run", f"{table}:target=died,client=site"
    fast = ("--rounds", "2", "--quiet", "--client-metrics")
    for more in ((), ("--force",)):
        code, _, err = call("run", "fedavg", "--data", data, *fast, "--out", str(out), *more)
        assert code == 0, err
    rows = pd.read_csv(out / "client_metrics.csv")
    assert list(rows.columns) == ["client", "name", "samples", "loss", "accuracy"]
    assert list(rows["name"]) == sorted(pd.read_csv(table)["site"].unique())
    assert list(rows["client"]) == list(range(len(rows)))


def test_decimal_commas_are_said_in_the_shell(call, table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table, index_col=0)
    frame.to_csv(table, index=False, sep=";", decimal=",")
    show = ("data", "show", f"{table}:target=died,client=site")
    code, _, err = call(*show)
    assert code == 1
    assert "in the shell --data FILE:decimal=comma, or predict" in " ".join(err.split())
    for i, option in enumerate(
        ("decimal=comma", "separator=semicolon,decimal=comma", "decimal=,,separator=;")
    ):
        data = f"{table}:{option},target=died,client=site"
        code, said, err = call(*show[:2], data, "--out", str(tmp_path / str(i)))
        assert code == 0, err
        assert "age │ number" in " ".join(said.split())


def test_a_column_may_have_a_number_as_its_name(call, table: Path, tmp_path: Path) -> None:
    pd.read_csv(table, index_col=0).rename(columns={"died": "2024"}).to_csv(table, index=False)
    code, _, err = call("data", "show", f"{table}:target=2024", "--out", str(tmp_path / "show"))
    assert code == 0, err


@pytest.mark.usefixtures("own")
def test_a_model_as_a_method_and_warnings_are_sentences(call) -> None:
    code, _, err = call("run", "mine.py:Net", "--rounds", "1")
    assert code == 2
    assert "got the class Net; a model is --model mine.py:Net." in " ".join(err.split())
    place = ("somewhere.py", 1)
    assert warnings.formatwarning("It is so.", UserWarning, *place) == "Warning: It is so.\n"


METHODS = """
from dataclasses import dataclass, field
from typing import ClassVar

import undrift as ud

class Initialised(ud.FedAvg):
    def __init__(self, lr=0.1, damp=0.5):
        self.lr, self.damp = lr, damp

class Undecorated(ud.FedAvg):
    damp: float = 0.5

@dataclass(frozen=True)
class Fine(ud.FedAvg):
    damp: float = field(default=0.5, kw_only=True)
    more: float = 0.1

class Noted(ud.FedAvg):
    note: ClassVar[str] = "no hyper-parameter"

@dataclass(frozen=True)
class Setting(ud.FedAvg):
    def __post_init__(self):
        self.other = 3

@dataclass(frozen=True)
class Broken(ud.FedAvg):
    def __post_init__(self):
        {}["nothing"]

@dataclass(frozen=True)
class Failing(ud.FedAvg):
    def check(self, model):
        raise KeyError("here")
"""


@pytest.mark.parametrize(
    ("name", "clue"),
    [
        ("Initialised", "@dataclass(frozen=True) above it and in it `damp: float = 0.5`, without"),
        ("Undecorated", "got a class without @dataclass(frozen=True); write"),
        ("Setting", "needs to be a value, got code that sets its own attributes (cannot assign to"),
        ("Broken", "a constructor without errors, got KeyError: 'nothing' ("),
        ("Failing", "one round: KeyError: 'here' ("),
    ],
)
def test_a_method_that_is_no_frozen_dataclass_is_one_sentence(
    call, own: Path, name: str, clue: str
) -> None:
    own.write_text(METHODS)
    commands = [("check", f"mine.py:{name}"), ("compare", "fedavg", f"mine.py:{name}")]
    for command in commands[: 1 if name == "Failing" else 2]:
        code, out, err = call(*command)
        assert code in (1, 2)
        assert clue in " ".join(f"{out} {err}".split())
        assert "Traceback" not in err


def test_fields_by_keyword_and_variables_of_the_class_are_allowed(own: Path) -> None:
    own.write_text(METHODS)
    assert [own_class(f"{own}:{name}").__name__ for name in ("Fine", "Noted")] == ["Fine", "Noted"]


def test_a_table_in_a_file_is_a_regression_of_numbers_and_says_so(call, table: Path) -> None:
    frame = pd.read_csv(table).assign(died=lambda f: (f["died"] == "yes").astype(int))
    frame.to_csv(table, index=False)
    file = table.parent / "experiment.toml"
    file.write_text(
        '[[methods]]\nname = "fedavg"\n'
        '[data]\npath = "patients.csv"\ntarget = "died"\nclient = "site"\n'
        "[training]\nrounds = 2\n"
    )
    call_it = ("run", str(file), "--quiet", "--json", "--out")
    code, said, err = call(*call_it, str(table.parent / "numbers"))
    assert code == 0, err
    assert "Task: regression, since the target 'died' holds numbers; say --task" in err
    assert "rmse" in json.loads(said.splitlines()[-1])["metrics"]
    classes = ("--set", "training.task=classification")
    code, said, err = call(*call_it, str(table.parent / "classes"), *classes)
    assert code == 0, err
    assert "Task:" not in err
    assert json.loads(said.splitlines()[-1])["accuracy"] is not None
    both = ("--set", "data.task=regression", *classes)
    code, _, err = call(*call_it, str(table.parent / "both"), *both)
    assert code == 2
    assert "training.task needs the data's task, regression, got 'classification'" in err


def test_a_transformer_and_a_loss_of_ones_own(call, own: Path, table: Path) -> None:
    pytest.importorskip("skops")
    frame = pd.read_csv(table, index_col=0).assign(stay=lambda f: f["age"] * 2.0)
    frame.drop(columns="died").to_csv(table, index=False)
    data = f"{table}:target=stay,client=site,transformer=mine.py:scaled"
    own_loss = ("--loss", "mine.py:far", "--task", "regression")
    code, _, err = call("run", "fedavg", "--data", data, *own_loss, *FAST[:4], "--out", "x")
    assert code == 0, err
    code, _, err = call("run", "x/experiment.toml", "--quiet", "--out", "y")
    assert code == 2
    assert "needs your trust" in err
    code, scored, err = call("predict", "x", str(table))
    assert code == 0, err
    assert scored.splitlines()[0] == "site,age,ward,stay,predicted stay"
    with (own.parent / "mine.py").open("a") as file:
        file.write("# changed\n")
    code, _, err = call("run", "--resume", "x", "--trust")
    assert code == 2
    assert "as it was when the run began" in " ".join(err.split())


def test_an_onnx_file_takes_the_columns_of_a_table(call, table: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    data = f"{table}:target=died,client=site"
    out, path = tmp_path / "run", tmp_path / "model.onnx"
    assert call("run", "fedavg", "--data", data, *FAST[:4], "--out", str(out))[0] == 0
    code, _, err = call("export", str(out), "--out", str(path))
    assert code == 0, err
    assert "takes the table's columns by name" in err
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["age", "ward"]
    frame = pd.read_csv(table)
    columns = {"age": frame[["age"]].to_numpy(), "ward": frame[["ward"]].to_numpy(dtype=object)}
    (predicted, _) = session.run(None, columns)
    exact = ud.SavedModel.read(out).predict(frame)
    assert list(predicted) == list(exact["predicted died"])


def test_predict_says_what_it_needs(call, tmp_path: Path) -> None:
    assert call("run", "fedavg", *FAST, "--out", str(tmp_path / "digits"))[0] == 0
    code, _, err = call("predict", str(tmp_path / "digits"), "x.csv")
    assert code == 1
    assert "a model that was trained on a table" in " ".join(err.split())
    code, _, err = call("predict", str(tmp_path / "nowhere"), "x.csv")
    assert code == 2
    assert "a file with a model" in " ".join(err.split())


def test_the_example_in_the_contract_s_help_passes_the_checks(call, own: Path) -> None:
    text = inspect.getdoc(ud.Federated) or ""
    example = text[text.index("    from dataclasses") : text.index("`undrift check")]
    own.write_text(textwrap.dedent(example))
    code, out, err = call("check", "mine.py:Mine")
    assert code == 0, out + err
    assert "12 of 12 checks hold" in out


@pytest.mark.usefixtures("own")
def test_trust_may_be_said_of_code_that_the_command_names(call) -> None:
    code, _, err = call("run", "fedavg", "--model", "mine.py:Net", "--trust", *FAST)
    assert code == 0, err


def test_a_folder_without_records_names_those_below_it(call, tmp_path: Path) -> None:
    inner = tmp_path / "runs" / "inner"
    assert call("run", "fedavg", *FAST, "--out", str(inner))[0] == 0
    code, _, err = call("report", str(inner.parent))
    assert code == 2
    assert f"name one below it: {inner}." in "".join(err.split("\n"))
    code, _, err = call("report", str(inner.parent / "inner" / "checkpoints"))
    assert code == 2
    assert "needs a folder of results" in " ".join(err.split())


@pytest.mark.usefixtures("own")
def test_help_and_errors_name_methods_of_ones_own(call) -> None:
    for command in ("run", "compare"):
        _, out, _ = call(command, "--help")
        assert "mine.py:Class" in " ".join(out.split())
        code, _, err = call(command, "mine.py")
        assert code == 2
        assert "name a class of the file: mine.py:Class." in " ".join(err.split())
        code, _, err = call(command, "fedav")
        assert code == 2
        assert "file.py:Class for your own, got 'fedav'; the nearest is 'fedavg'" in " ".join(
            err.split()
        )
