"""`undrift.compare`: with names it gives what the command gives, and it takes one's own objects."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import undrift as ud
from undrift.cli.main import app
from undrift.data.work import parse_work, work_text
from undrift.runs.folder import read

TUNE = {"lr": [0.03, 0.3]}
FEW: dict[str, Any] = {"rounds": 2, "work": ud.Steps(2), "batch_size": 10, "extend": 1}


def hashes(result: ud.ExperimentResult) -> list[Any]:
    return [(t.facts["title"], t.facts["cell"], t.seed, t.model_sha256) for t in result.trials]


def own_clients(seed: int = 0, *, permuted: bool = False) -> ud.Clients:
    """Return clients of two classes that a linear model can tell apart."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(200, 5, generator=generator)
    targets = (inputs.sum(1) > 0).long()
    tests = torch.randn(50, 5, generator=generator)
    labels = (tests.sum(1) > 0).long()
    if permuted:
        labels = labels[torch.randperm(50, generator=generator)]
    pairs = [(inputs[i::4], targets[i::4]) for i in range(4)]
    return ud.Clients(pairs, test=(tests, labels))


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


def test_names_give_what_the_command_gives(tmp_path: Path) -> None:
    by_python = ud.compare(
        [ud.FedAvg(lr=0.1), "fedavgm"],
        "mlp",
        "digits",
        tune={**TUNE, "fedavgm.beta": [0.4, 0.9]},
        seeds=2,
        changes={"data.clients": 3, "data.test_samples": 60},
        out=tmp_path / "python",
        **FEW,
    )
    arguments = ["compare", "fedavg", "fedavgm", "--tune", "lr=0.03,0.3", "--seeds", "2"]
    arguments += ["--tune", "fedavgm.beta=0.4,0.9", "--clients", "3", "--test-samples", "60"]
    arguments += ["--rounds", "2", "--work", "steps:2", "--batch-size", "10", "--extend", "1"]
    arguments += ["--out", str(tmp_path / "command"), "--quiet", "--json"]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    by_command = read(tmp_path / "command")
    assert hashes(by_command) == hashes(by_python)
    assert by_command.tuning == by_python.tuning
    assert by_python.paired is not None
    printed = json.loads(outcome.stdout.splitlines()[-1])
    summary = json.loads(json.dumps(by_python.paired.summary()))
    for title, own in summary.items():
        assert {name: printed[title][name] for name in own} == own
    assert {len(own["tried"]) for own in summary.values()} in ({2}, {3})
    for sentence in by_python.paired.findings:
        assert sentence[:40] in outcome.stderr.replace("\n", " ")


def test_own_objects(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"tune": TUNE, "seeds": 3, **FEW}
    result = ud.compare(
        [ud.FedAvg(lr=0.1), ud.Scaffold(lr=0.1)], net(), own_clients(), out=tmp_path / "x",
        **arguments,
    )  # fmt: skip
    assert len(result.trials) == 6
    tuning = read(result.folder / "tuning")
    assert all(trial.recent("validation_accuracy") is not None for trial in tuning.trials)
    assert len(result.frame()) == 12
    assert result.plot() is not None
    assert result.report().is_file()
    assert hashes(read(result.folder)) == hashes(result)
    # Going on with the same objects runs nothing; other objects and another program are refused.
    again = [ud.FedAvg(lr=0.1), ud.Scaffold(lr=0.1)], net(), own_clients()
    heard: list[Any] = []
    resumed = ud.compare(
        *again, out=tmp_path / "x", resume=True, on_record=lambda *a: heard.append(a), **arguments
    )
    assert hashes(resumed) == hashes(result)
    assert heard == []
    with pytest.raises(ValueError, match=r"resume needs the comparison that .* got 'other data'"):
        ud.compare(*again[:2], own_clients(1), out=tmp_path / "x", resume=True, **arguments)
    with pytest.raises(ValueError, match=r"needs the data or model of the program that began"):
        ud.run(resume=tmp_path / "x")


def test_the_choice_never_looks_at_the_test_set(tmp_path: Path) -> None:
    """Permuted test labels change the accuracies that are shown, and nothing of the choice."""
    seen = [
        ud.compare(
            ["fedavg", "fedavgm"],
            net(),
            own_clients(permuted=permuted),
            tune={"lr": [0.01, 0.1, 1.0]},
            out=tmp_path / str(permuted),
            **FEW,
        )
        for permuted in (False, True)
    ]
    assert seen[0].tuning == seen[1].tuning
    assert hashes(seen[0]) == hashes(seen[1])
    assert [t.last for t in seen[0].trials] != [t.last for t in seen[1].trials]


class TwoInputs(nn.Module):
    """A model that takes its inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([left, right], 1))


def test_tuning_keeps_inputs_by_name(tmp_path: Path) -> None:
    """Where validation samples are split off, the others still reach the model by their names."""
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    samples: Any = [{"left": row[:2], "right": row[2:], "labels": int(row.sum() > 0)} for row in x]
    loaders = [DataLoader(samples[i::3], batch_size=7) for i in range(3)]
    clients = ud.Clients(loaders, test=DataLoader(samples[:9]))
    result = ud.compare(["fedavg"], TwoInputs(), clients, tune=TUNE, out=tmp_path, **FEW)
    assert result.tuning is not None
    assert all(trial.model_sha256 for trial in result.trials)


def test_a_loss_of_ones_own_without_classes(tmp_path: Path) -> None:
    """What is no accuracy is compared by its loss, of which less is better."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 3, generator=generator)
    targets = inputs.sum(1, keepdim=True)
    clients = ud.Clients([(inputs[i::4], targets[i::4]) for i in range(4)], test=(inputs, targets))
    result = ud.compare(
        [{"name": "fedavg"}, {"name": "fedavg", "label": "Slow", "server_lr": 0.01}],
        nn.Linear(3, 1),
        clients,
        loss=nn.functional.mse_loss,
        tune={"lr": [0.01, 0.1]},
        seeds=3,
        out=tmp_path / "x",
        participation=0.5,
        **FEW,
    )
    assert result.paired is not None
    assert result.paired.metric == "loss"
    assert result.paired.findings[0].startswith("Slow is behind FedAvg by ")
    assert result.report().is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": [ud.Accelerated(ud.FedAvg(lr=0.1))]}, "compare needs algorithms, names or"),
        ({"methods": [3]}, "compare needs algorithms, names or tables, got 3"),
        (
            {"clients": "digits", "loss": nn.functional.mse_loss},
            "name of a loss for a data set by name",
        ),
        ({"clients": 3}, "compare needs clients, or the name of a data set, got 'int'; make them"),
        ({"model": 3}, "compare needs an nn.Module, or a model's name, got 3"),
        ({"work": ud.Steps([1, 2, 3, 4])}, "work needs a form that can be written down"),
        ({"jobs": 2}, "jobs needs 1 with objects of your own"),
        ({"resume": True}, "resume needs the folder to go on with"),
        ({"tune": {"mu": [0.1, 1]}}, "FedAvg has no 'mu'"),
        ({"validation": 0.001}, "validation needs a share that takes a sample"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_what_cannot_be_compared(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    defaults = {"methods": ["fedavg"], "model": net(), "clients": own_clients(), "tune": TUNE}
    with pytest.raises(ValueError, match=message):
        ud.compare(**{**defaults, **arguments})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "work",
    [
        ud.Steps(3),
        ud.Epochs(0.5),
        ud.GaussianSteps(20, 100),
        ud.GaussianSteps(20, 100, "random"),
        ud.UniformSteps(2, 9, "random"),
    ],
)
def test_work_as_text(work: Any) -> None:
    assert parse_work(work_text(work)) == work


def test_a_method_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of the script itself is found, and runs here."""

    class Mine(ud.FedAvg):  # type: ignore[name-defined, misc]
        """Is FedAvg under another name."""

    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Mine, raising=False)
    own = [Mine(lr=0.1), ud.FedAvg(lr=0.1)]
    result = ud.compare(own, tune=TUNE, out=tmp_path / "x", changes={"data.clients": 3}, **FEW)
    mine, avg = result.trials
    assert mine.model_sha256 == avg.model_sha256


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tune", "lr=0.1,0.3", "--lr", "0.1"], "--tune needs no --lr beside it, got '0.1'"),
        (["--tune", "lr"], "--tune needs a field and its values such as lr=0.01"),
        (["--tune", "lr=0.1"], "Tuning FedAvg needs at least two cells, got 1"),
        (["--tune", "lr=1,2", "--tune", "lr=3,4"], "--tune needs every field once"),
        (["--tune", "mu=0.1,1"], "FedAvg has no 'mu'"),
        (["--tune", "fedprox.mu=0.1,1"], "needs a section or a method of the experiment"),
        (["--halving"], "--halving and --extend needs --tune beside them"),
        (["--tune", "lr=0.1,0.3", "--seeds", "0"], "compare needs seeds >= 1, got 0"),
        (["--tune", "lr=0.1,0.3", "--only", "fedprox"], "only needs a method of the experiment"),
        (["--tune", "lr=0.1,0.3", "--validation", "0.0001"], "a share that takes a sample"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_the_command_refuses_in_one_sentence(
    call: Any, arguments: list[str], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "x"
    code, _, err = call("compare", "fedavg", *arguments, "--clients", "4", "--out", str(out))
    assert code == 2
    assert message in " ".join(err.split())
    assert not out.exists()
