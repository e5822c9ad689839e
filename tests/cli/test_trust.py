"""Code that a file or a folder names is imported only if somebody has vouched for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tomli_w
import torch
from safetensors.torch import save_file

import undrift as ud
from undrift.config.experiment import Experiment
from undrift.data.tables.read import read_table
from undrift.untrusted import parse_toml
from undrift.usercode.load import import_object, only_code_of
from undrift.usercode.names import code_in, is_code, places_in

CODE = """
from pathlib import Path
Path({mark!r}).touch()

from dataclasses import dataclass
import torch
import undrift as ud

@dataclass(frozen=True)
class Heavy(ud.FedAvg):
    pass

def f(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)
"""
FIELDS = {  # what a file says, with the name of code at %s
    "method": '[[methods]]\nname = "%s"\n',
    "model": '[model]\nname = "%s"\n',
    "data": '[data]\nname = "%s"\n',
    "transformer": '[data]\npath = "t.csv"\ntarget = "y"\ntransformer = "%s"\n',
    "loss": '[training]\nloss = "%s"\n',
    "metrics, a text": '[evaluation]\nmetrics = "%s"\n',
    "metrics, a list": '[evaluation]\nmetrics = ["%s"]\n',
    "metrics, a table": '[evaluation]\nmetrics = {a = "%s"}\n',
    "metrics, swept": '[sweep.grid]\n"evaluation.metrics" = ["%s"]\n',
    "loss, swept": '[sweep.grid]\n"training.loss" = ["cross_entropy", "%s"]\n',
    "model, swept": '[sweep.grid]\n"model.name" = ["%s"]\n',
    "method, swept": '[sweep.grid]\n"method.name" = ["%s"]\n',
    "collate": '[data]\ncollate = "%s"\n',
    "codec": '[[methods]]\nname = "fedavg"\ncodec = "%s"\n',
    "rule": '[[methods]]\nname = "fedavg"\nrule = "%s"\n',
    "work": '[training]\nwork = "%s"\n',
    "aggregation": '[training]\naggregation = "%s"\n',
}
FORMS = [
    "pwn.py:f",
    "pwn.py:Heavy",
    "./pwn.py:f",
    "x=/../pwn.py:f",
    "x=/../pwn.py:Heavy",
    "./a=b/../pwn.py:f",
    "a b/../pwn.py:f",
    "a,b/../pwn.py:f",
    "pwn.py:f ",
    " pwn.py:f",
    "pwn.py:Heavy ",
    "pwn.py:f,accuracy",
    "accuracy,pwn.py:f",
    "pwn.py:f:hidden=5",
    "pwn.py:f=1",
    "own:pwn.py:f",
    "pwn:f",
    "pwn:f ",
    "x/../pwn:f",
    "pwn.py:f\\n",
    "pwn.py:f.__call__",
]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that is there when `pwn.py` was imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for folder in ("x=", "a=b", "a b", "a,b", "x"):
        (tmp_path / folder).mkdir()
    path = tmp_path / "imported"
    (tmp_path / "pwn.py").write_text(CODE.format(mark=str(path)))
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i % 7},{i % 2}\n" for i in range(40)))
    return path


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_a_file_imports_code_without_trust(mark: Path, field: str) -> None:
    """In any spelling: refused, and never imported on the way to another error."""
    others = "" if "methods" in FIELDS[field] else '[[methods]]\nname = "fedavg"\n'
    rounds = "" if "[training]" in FIELDS[field] else "[training]\nrounds = 1\n"
    file = Path("e.toml")
    for form in FORMS:
        file.write_text(FIELDS[field] % form + others + rounds)
        with pytest.raises((ValueError, ud.UndriftError)):
            ud.run(file, out="out")
        assert not mark.exists(), form


def test_a_folder_of_results_imports_no_code_without_trust(mark: Path, call) -> None:
    """To report, to export and to go on."""
    fast = ["--rounds", "1", "--work", "steps:1", "--clients", "4", "--quiet"]
    assert call("run", "fedavg", *fast, "--out", "out")[0] == 0
    file = Path("out/experiment.toml")
    text = file.read_text()
    for section, field in (("model", "name"), ("training", "loss"), ("evaluation", "metrics")):
        for form in ("pwn.py:f", "x=/../pwn.py:Heavy", "pwn.py:Heavy ", "pwn.py:f,accuracy"):
            values = parse_toml(text)
            values.setdefault(section, {})[field] = form
            values["methods"] = [{"name": form if section == "model" else "fedavg"}]
            file.write_text(tomli_w.dumps(values))
            for words in (["report", "out"], ["export", "out"], ["run", "--resume", "out"]):
                call(*words)
                assert not mark.exists(), (section, form, words)


def test_a_saved_model_names_no_code_without_trust(mark: Path) -> None:
    fitted = ud.Dataset.of(read_table("t.csv", target="y", task="classification")).preprocessing
    built = {"shape": [1], "classes": 2, "code": {}}
    for form in FORMS:
        metadata = {
            "architecture": json.dumps({**built, "model": form}),
            "preprocessing": fitted.to_json(),
        }
        save_file({"w": torch.zeros(1)}, "m.safetensors", metadata)
        with pytest.raises((ValueError, ud.UndriftError)):
            ud.SavedModel.read("m.safetensors")
        assert not mark.exists(), form


def test_what_was_asked_about_is_what_is_imported(mark: Path) -> None:
    """The import itself refuses other places, whoever has forgotten to ask."""
    file = Path("e.toml")
    with only_code_of(["other.py:f"], file):
        for form in FORMS:
            with pytest.raises(ValueError, match=r"its name, or|needs your trust"):
                import_object(form, "A metric")
    with (
        only_code_of([], file),
        pytest.raises(ValueError, match=r"e.toml needs your trust .*pwn.py:f"),
    ):
        ud.tasks.named_metric("pwn.py:f")
    assert not mark.exists()
    with only_code_of(["x/../pwn.py:f"], file):
        assert callable(import_object("pwn.py:f", "A metric"))
    assert mark.exists()


def test_lists_of_metrics_are_split_before_trust_and_digests(mark: Path, call) -> None:
    file = Path("e.toml")
    text = (
        '[[methods]]\nname = "fedavg"\n[data]\nclients = 4\n[training]\nrounds = 1\n'
        'work = "steps:1"\n[evaluation]\nmetrics = "pwn.py:f, accuracy"\n'
    )
    file.write_text(text)
    name = f"{mark.parent}/pwn.py:f"
    assert Experiment.read(file, trust=True).code == [name]
    assert code_in({"evaluation": {"metrics": "accuracy,pwn.py:f"}}) == ["pwn.py:f"]
    result = ud.run(file, out="out", trust=True)
    assert list(result.environment["code"]) == [str(mark.parent / "pwn.py")]
    code, _, err = call(
        "run", "e.toml", "--set", "evaluation.metrics=pwn.py:f,accuracy", "--out", "o2"
    )
    assert code == 0, err


def test_code_in_a_folder_whose_name_has_spaces_is_found(mark: Path) -> None:
    folder = Path("a b").resolve()
    os.replace("pwn.py", folder / "pwn.py")
    name = f"{folder}/pwn.py:f"
    assert is_code(name)
    assert places_in([f"--loss={name}"]) >= {f"{folder}/pwn.py"}
    assert places_in(["--loss", "a b/pwn.py:f"]) >= {f"{folder}/pwn.py"}
    assert callable(ud.tasks.named_loss(name))
    assert mark.exists()
