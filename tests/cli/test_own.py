"""Models, data and tables of one's own on the command line, and code that files name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import undrift as ud

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
    "no such option": (["--model", "mine.py:Net:width=5"], "has no 'width'"),
    "no model": (["--model", "mine.py:broken"], "needs to return an nn.Module, got 3"),
    "no data": (["--data", "mine.py:broken"], "to return undrift.Clients or an undrift.Dataset"),
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


def test_predict_says_what_it_needs(call, tmp_path: Path) -> None:
    assert call("run", "fedavg", *FAST, "--out", str(tmp_path / "digits"))[0] == 0
    code, _, err = call("predict", str(tmp_path / "digits"), "x.csv")
    assert code == 1
    assert "a model that was trained on a table" in " ".join(err.split())
    code, _, err = call("predict", str(tmp_path / "nowhere"), "x.csv")
    assert code == 2
    assert "a file with a model" in " ".join(err.split())
