"""The digest of an experiment tells apart what computes otherwise, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud
from tests.support.system import ROOT
from undrift.errors import UndriftError
from undrift.federation import Centre, FederatedExperiment, InProcess, Site
from undrift.optim.schedules import Schedule


class Scaled(nn.Module):
    """Is a layer with hyper-parameters that its text does not show."""

    factor = 1.0

    def __init__(self, power: int = 1, *, frozen: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self._power, self.table = power, np.full(2000, shift)
        self.weight = nn.Parameter(torch.full((3,), frozen), requires_grad=False)
        self.register_buffer("bias", torch.full((3,), shift))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**self._power


class Halved(Scaled):
    """Has a forward pass of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**self._power / 2


class Focal:
    """Is a loss with a private hyper-parameter."""

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs, targets) ** self._gamma


def power(gamma: float) -> Any:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs, targets) ** gamma

    return loss


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *layers, nn.Linear(8, 10))


def with_hook(scale: float) -> nn.Module:
    model = net(nn.ReLU())
    model[2].register_forward_hook(lambda module, inputs, output: output * scale)
    return model


def partly_frozen(frozen: bool) -> nn.Module:
    model = net(nn.Dropout(0.5))
    model[2].train(not frozen)
    return model


def heads(count: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, count, 8, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (8, 8)), layer, nn.Flatten(), nn.Linear(64, 10))


def described(model: Any = None, **options: Any) -> FederatedExperiment:
    defaults: dict[str, Any] = {
        "algorithm": ud.FedAvg(lr=0.1),
        "model": net(nn.ReLU()) if model is None else model,
        "loss": F.cross_entropy,
        "work": ud.Steps(2),
        "rounds": 1,
    }
    return FederatedExperiment(**{**defaults, **options})


build = partial(ud.models.build, shape=(1, 8, 8), classes=10)
MODELS = {
    "activation": (net(nn.ReLU()), net(nn.Tanh())),
    "dropout": (net(nn.Dropout(0.1)), net(nn.Dropout(0.5))),
    "an option of a named model": [
        ud.models.build("cnn2", shape=(1, 28, 28), classes=10, dropout=p) for p in (0.0, 0.5)
    ],
    "heads": (heads(2), heads(4)),
    "a private attribute": (net(Scaled(1)), net(Scaled(2))),
    "an array": (net(Scaled()), net(Scaled(shift=1.0))),
    "a frozen parameter": (net(Scaled()), net(Scaled(frozen=2.0))),
    "a class": (net(Scaled()), net(Halved())),
    "a hook": (with_hook(1.0), with_hook(2.0)),
    "a part that is not trained": (partly_frozen(False), partly_frozen(True)),
}
LOSSES = {
    "lambdas": (lambda o, t: F.cross_entropy(o, t), lambda o, t: 2 * F.cross_entropy(o, t)),
    "closures": (power(1.0), power(2.0)),
    "objects": (Focal(1.0), Focal(2.0)),
    "options of torch": [nn.CrossEntropyLoss(label_smoothing=s) for s in (0.1, 0.2)],
    "partial functions": [partial(F.cross_entropy, label_smoothing=s) for s in (0.1, 0.2)],
}
SCHEDULES = [ud.FedAvg(lr=Schedule(at)) for at in (lambda t: 0.1, lambda t: 0.1 + t)]


@pytest.mark.parametrize("pair", MODELS.values(), ids=MODELS)
def test_models_that_compute_otherwise_have_different_digests(pair: Any) -> None:
    one, other = map(described, pair)
    assert one.digest != other.digest


@pytest.mark.parametrize("pair", LOSSES.values(), ids=LOSSES)
def test_losses_that_compute_otherwise_have_different_digests(pair: Any) -> None:
    one, other = (described(loss=loss) for loss in pair)
    assert one.digest != other.digest


def test_schedules_of_ones_own_have_different_digests() -> None:
    one, other = (described(algorithm=each) for each in SCHEDULES)
    assert repr(one.algorithm) == repr(other.algorithm), "only the function tells them apart"
    assert one.digest != other.digest


def test_an_attribute_of_a_class_counts() -> None:
    assert described(net(Scaled())).digest == described(net(Scaled())).digest
    before, Scaled.factor = described(net(Scaled())).digest, 2.0
    try:
        assert described(net(Scaled())).digest != before
    finally:
        Scaled.factor = 1.0


def test_what_is_trained_and_how_a_loss_is_spelt_do_not_count() -> None:
    one, other = build("mlp", hidden=4), build("mlp", hidden=4)
    assert not torch.equal(one[1].weight, other[1].weight)
    digest = described(one).digest
    assert described(other).digest == digest
    assert described(other.eval()).digest == digest, "a site switches it to training"
    assert described(one, loss=nn.CrossEntropyLoss()).digest == digest
    assert described(one, rounds=9, participation=0.5, weighting="uniform").digest == digest


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, undrift as ud
from mine import Net, loss
from undrift.federation import FederatedExperiment
print(FederatedExperiment(
    algorithm=ud.FedAvg(lr=0.1), model=Net(), loss=loss, work=ud.Steps(1), rounds=1
).digest)
"""
MINE = """
import re
import torch
from dataclasses import dataclass, field
@dataclass
class Settings:
    words: set = field(default_factory=lambda: {"one", "two", "three", "four"})
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.settings, self.pattern, self.function = Settings(), re.compile("a"), lambda x: x
    def forward(self, x):
        return super().forward(x) if "five" in self.settings.words else x
def loss(outputs, targets):
    return (outputs - targets).square().mean()
"""


def test_the_digest_is_the_same_in_every_process_and_folder(tmp_path: Path) -> None:
    found = set()
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "mine.py").write_text(MINE)
        variables = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-c", PROGRAM, str(folder)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1


def test_a_site_with_another_model_of_the_same_shapes_is_not_admitted(tmp_path: Path) -> None:
    ours, theirs = (described(net(nn.Dropout(p))) for p in (0.1, 0.5))
    data = ud.Clients([(torch.zeros(9, 8, 8), torch.zeros(9, dtype=torch.long))])
    site = Site(theirs, data, tmp_path, name="north")
    with pytest.raises(UndriftError, match="which its operator has accepted"):
        Centre(ours, InProcess([site]))
