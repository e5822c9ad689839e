"""A small paper on digits, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from undrift.papers import catalogue
from undrift.papers.file import Paper, parse

TEXT = """
item = "Table 9"
what = "Two methods on digits"
printed = "Section 1, Table 9"
readings = "The document does not print the seed."

[experiment]
seeds = [0]
[experiment.data]
clients = 6
test_samples = 60
[experiment.training]
rounds = 4
work = "steps:2"
participation = 0.5
[experiment.evaluation]
target = [0.5, 0.9]
smoothing = "ema"
[[experiment.methods]]
name = "fedavg"
lr = 0.1
[[experiment.methods]]
name = "fedacg"
lr = 0.1
lam = 0.5
[[experiment.methods]]
name = "fedprox"
lr = 0.1

[[panels]]
name = "iid"
set = { "data.partition" = "iid" }
methods = ["FedAvg", "FedACG"]
[[panels]]
name = "Dir 0.3"
set = { "data.partition" = "dirichlet:0.3", "FedACG.lam" = 0.6 }

[[published]]
metric = "accuracy"
panel = "iid"
where = "Table 9, left"
values = { FedAvg = 80.5, FedACG = 82.0 }
deviation = { FedAvg = 0.3 }
[[published]]
metric = "accuracy"
at = 2
method = "FedACG"
where = "Table 9, right"
values = { iid = 70.0, "Dir 0.3" = 60.0 }
[[published]]
metric = "rounds"
target = 0.5
panel = "Dir 0.3"
where = "Table 9, rounds"
values = { FedAvg = ">4", FedACG = 2, FedProx = 3 }

[[claims]]
text = "FedACG is ahead of all others."
where = "Section 1"
metric = "rounds"
target = 0.5
panels = ["Dir 0.3"]
ahead = "FedACG"
[[claims]]
text = "FedACG reaches 81 %."
where = "Section 1"
metric = "accuracy"
panels = ["iid"]
method = "FedACG"
at_least = 81.0

[small]
why = "The network becomes logistic regression, four rounds become two."
model = { name = "logistic" }
rounds = 2
evaluation = { target = [0.2, 0.4] }
[small.panel."Dir 0.3"]
rounds = 0.75
[[small.left_out]]
panel = "Dir 0.3"
methods = ["FedProx"]
hours = 2.0
"""


def example() -> Paper:
    """Return the paper."""
    return parse(TEXT, "table9.toml")


def changed(old: str, new: str) -> Paper:
    """Return the paper with one part of its text replaced."""
    assert old in TEXT
    return parse(TEXT.replace(old, new), "table9.toml")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the paper the only one that the package has, and work in an empty folder."""
    folder = tmp_path / "package"
    (folder / "fedacg").mkdir(parents=True)
    path = folder / "fedacg" / "table9.toml"
    path.write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(catalogue, "FOLDER", folder)
    monkeypatch.chdir(tmp_path)
    catalogue._read.cache_clear()
    return path
