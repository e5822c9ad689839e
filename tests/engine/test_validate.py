"""Bad input gets one sentence with expected, got and remedy, before any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import undrift as ud
from undrift import testing


def pair(n: int = 4, value: float = 0.0, label: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((n, 6), value, dtype=torch.float64), torch.full((n,), label)


def small_run(**options: Any) -> ud.Run:
    return testing.start(options.pop("algorithm", ud.FedAvg(lr=0.1)), **options)


def bn_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()


class Forgetful(nn.Module):
    """Changes a buffer in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3).double()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.head(inputs)


EVERYBODY: dict[str, Any] = {"participation": 1.0}

CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "no clients": (lambda: ud.Clients([]), "at least one client"),
    "empty client": (lambda: ud.Clients([pair(), pair(0)]), "at least one sample.*client 1"),
    "lengths": (lambda: ud.Clients([(pair(3)[0], pair(4)[1])]), "as many targets as inputs"),
    "shapes": (
        lambda: ud.Clients([pair(), (torch.zeros(4, 5).double(), pair()[1])]),
        "one shape and dtype.*client 1",
    ),
    "nan": (lambda: ud.Clients([pair(), pair(value=torch.nan)]), "NaN or Inf.*client 1"),
    "inf": (lambda: ud.Clients([pair(value=torch.inf)]), "NaN or Inf.*client 0"),
    "nan test": (lambda: ud.Clients([pair()], test=pair(value=torch.nan)), "test set.*NaN"),
    "part": (lambda: ud.Clients.split(*pair(), [[0, 1], []]), "none for client 1"),
    "index": (lambda: ud.Clients.split(*pair(), [[0, 9]]), "indices below 4"),
    "label": (
        lambda: small_run(
            clients=ud.Clients([pair(), pair(label=3)]), work=ud.Steps(1), **EVERYBODY
        ),
        r"Labels need to lie in 0\.\.\.2.*got 3",
    ),
    "negative label": (
        lambda: small_run(clients=ud.Clients([pair(label=-1)]), work=ud.Steps(1), **EVERYBODY),
        "got -1",
    ),
    "lr 0": (lambda: ud.FedAvg(lr=0), "FedAvg needs lr > 0, a finite number, got 0"),
    "lr negative": (lambda: ud.Scaffold(lr=-0.1), "Scaffold needs lr > 0"),
    "lr nan": (lambda: ud.FedACG(lr=float("nan")), "FedACG needs lr > 0"),
    "lr schedule": (
        lambda: small_run(algorithm=ud.FedAvg(lr=ud.piecewise(0.1, {2: 0.0}))),
        "FedAvg needs lr > 0",
    ),
    "lam < lr": (lambda: ud.FedSpeed(lr=0.5, lam=0.1), "lam >= lr"),
    "alpha": (lambda: ud.FedSpeed(lr=0.1, alpha=1.5), r"alpha in \[0, 1\]"),
    "average": (lambda: ud.FedSpeed(lr=0.1, average="al"), "the nearest is 'all'"),
    "scheme": (lambda: ud.FedaGrac(lr=0.1, scheme="frist"), "the nearest is 'first'"),
    "acg lam": (lambda: ud.FedACG(lr=0.1, lam=1.0), r"lam in \[0, 1\)"),
    "momentum": (lambda: ud.Momentum(1.0), r"beta in \[0, 1\)"),
    "participation 0": (lambda: small_run(participation=0.0), r"fraction in \(0, 1\]"),
    "participation > 1": (lambda: small_run(participation=1.5), r"fraction in \(0, 1\]"),
    "participation count": (lambda: small_run(participation=5), "between 1 and 4 clients, got 5"),
    "participation count 0": (lambda: small_run(participation=0), "between 1 and 4 clients"),
    "participation bool": (lambda: small_run(participation=True), "got a bool"),
    "cohort": (lambda: small_run(participation=[[0, 7]] * 4), r"distinct clients in 0\.\.\.3"),
    "cohort twice": (lambda: small_run(participation=[[0, 0]] * 4), "distinct clients"),
    "cohorts short": (lambda: small_run(participation=[[0]]), "a cohort for each of 4 rounds"),
    "bernoulli": (lambda: ud.Bernoulli(0.0), "probability"),
    "steps 0": (lambda: ud.Steps(0), "at least one step"),
    "steps of client": (lambda: ud.Steps([3, 0]), "at least one step for client 1, got 0"),
    "steps length": (lambda: small_run(work=ud.Steps([1, 2])), "one number per client, 4, got 2"),
    "epochs": (lambda: ud.Epochs(0), "epochs > 0"),
    "gaussian": (lambda: ud.GaussianSteps(5, -1), "variance >= 0"),
    "uniform": (lambda: ud.UniformSteps(5, 2), "high >= low"),
    "batch size": (lambda: small_run(batch_size=0), "batch_size >= 1"),
    "weighting": (lambda: small_run(weighting="sizes"), "the nearest is 'size'"),
    "weights": (lambda: small_run(weighting=[1.0, -1.0, 1.0, 1.0]), "one finite weight >= 0"),
    "weights sum": (lambda: small_run(weighting=[0.0] * 4), "a positive sum"),
    "mode": (lambda: small_run(mode="stack"), "the nearest is 'stacked'"),
    "rounds": (lambda: small_run(rounds=-1), "rounds >= 0"),
    "clip": (lambda: small_run(clip=0.0), "clip > 0"),
    "batch norm": (lambda: small_run(model=bn_net()), "BatchNorm1d at '1'.*undrift.group_norm"),
    "buffer": (lambda: small_run(model=Forgetful()), "change of its buffer 'seen'"),
    "frozen model": (
        lambda: small_run(model=testing.small_net().requires_grad_(False)),
        "at least one trainable parameter",
    ),
    "mixed dtype": (
        lambda: small_run(model=nn.Sequential(nn.Linear(6, 8).double(), nn.Linear(8, 3))),
        "one floating-point dtype",
    ),
    "model input": (lambda: small_run(model=nn.Linear(5, 3).double()), "accept inputs of shape"),
    "model output": (
        lambda: small_run(model=nn.Linear(6, 3).double(), loss=nn.functional.l1_loss),
        "output needs to fit the loss",
    ),
    "model tuple": (
        lambda: small_run(model=nn.GRU(6, 3).double()),
        "return one tensor, got tuple",
    ),
    "loss not scalar": (
        lambda: small_run(loss=lambda o, y: nn.functional.cross_entropy(o, y, reduction="none")),
        r"scalar tensor, got \(11,\)",
    ),
    "class, not object": (lambda: small_run(algorithm=ud.FedAvg), "such as FedAvg"),
    "quadratics": (lambda: ud.data.quadratics(2, 5, samples=3), "at least dim = 5"),
    "dirichlet alpha": (lambda: ud.data.dirichlet(torch.arange(9) % 3, 3, 0.0), "alpha > 0"),
    "too many clients": (lambda: ud.data.iid(torch.arange(3), 4), "use fewer clients"),
    "dirichlet floats": (lambda: ud.data.dirichlet(torch.rand(9), 3, 1.0), "integer label"),
    "mask": (lambda: ud.Clients.split(*pair(), [[True, False, True, False]]), "integer indices"),
    "text as targets": (
        lambda: ud.Clients([([[1.0], [2.0]], ["yes", "no"])]),
        r"Clients, client 0, needs numbers, got text; number classes with numpy\.unique",
    ),
    "rows of several lengths": (
        lambda: ud.Clients([([[1.0, 2.0], [3.0]], [0, 1])]),
        "numbers of one shape, got rows of different lengths; bring all samples to one shape",
    ),
    "objects": (
        lambda: ud.Clients([([{}, {}], [0, 1])]),
        "needs numbers, got NumPy's type object; give an array of one type",
    ),
    "three parts": (lambda: ud.Clients([(1, 2, 3)]), "a pair of inputs and targets, arrays or"),
    "no list": (lambda: ud.Clients(None), "a list with the data of each client"),
    "work number": (lambda: small_run(work=5), "work such as Steps"),
    "steps float": (lambda: ud.Steps(2.5), "a whole number of steps, got 2.5"),
    "steps floats": (lambda: ud.Steps([1.7, 2]), "a whole number of steps, got 1.7"),
    "lr text": (
        lambda: ud.FedAvg(lr="0.1"),
        "lr > 0, a finite number, got '0.1'; write a number without quotes",
    ),
    "lr schedule in words": (
        lambda: ud.FedAvg(lr="cosine(0.1, 50)"),
        r"got 'cosine\(0\.1, 50\)'; write undrift\.cosine\(0\.1, 50\)\.",
    ),
    "data set as clients": (
        lambda: small_run(clients=ud.data.digits()),
        r"undrift\.Clients, got 'Dataset'; deal the data set: data\.split\(",
    ),
    "name as clients": (
        lambda: small_run(clients="mnist"),
        r"got 'str'; load and deal the data set: undrift\.data\.load\('mnist'\)\.split\('iid', 20",
    ),
    "loader as clients": (
        lambda: small_run(clients=DataLoader(TensorDataset(*pair()))),
        "got 'DataLoader'; pass one for each client",
    ),
    "model without values": (
        lambda: small_run(model=testing.small_net().to("meta")),
        "The model needs values in all of its tensors, got '.*'; load its weights",
    ),
    "numbers for classes": (
        lambda: small_run(
            clients=ud.Clients([(pair()[0], torch.zeros(4).double())] * 4),
            loss=nn.functional.cross_entropy,
        ),
        r"use loss='mse' for numbers, or give classes as whole numbers: targets\.long\(\)",
    ),
    "lr infinite": (lambda: ud.FedAvg(lr=float("inf")), "a finite number"),
    "participation none": (lambda: small_run(participation=None), "a fraction, a count"),
    "participation text": (lambda: small_run(participation="0.5"), "a fraction, a count"),
    "cohort floats": (lambda: small_run(participation=[[0.9, 1.2]] * 4), "distinct clients"),
    "batch size float": (lambda: small_run(batch_size=2.5), "batch_size >= 1, a whole number"),
    "seed": (lambda: small_run(seed=None), "a whole number as seed"),
    "loss": (lambda: small_run(loss=3), "a function of outputs and targets"),
    "model": (lambda: small_run(model="mlp"), "an nn.Module"),
    "model class": (lambda: small_run(model=nn.Linear), r"make an object of it: Linear\(\.\.\.\)"),
    "no topology": (
        lambda: small_run(algorithm=ud.DSGD(lr=0.1), topology=None),
        'DSGD needs a topology such as "ring" or undrift.*, got none; make one of a matrix',
    ),
    "broadcast": (
        lambda: small_run(
            model=nn.Linear(6, 1).double(),
            clients=ud.Clients([(pair()[0], torch.zeros(4).double())] * 4),
            loss=lambda outputs, targets: nn.functional.mse_loss(outputs, targets),
        ),
        "output needs to fit the loss",
    ),
    "nobody with weight": (
        lambda: small_run(participation=ud.FixedSize(1), weighting=[0.0, 0.0, 0.0, 1.0]),
        "positive total weight",
    ),
    "rule text": (lambda: ud.FedAvg(lr=0.1, rule="momentun"), "the nearest is 'momentum'"),
    "rule class": (lambda: ud.MOON(lr=0.1, rule=ud.Momentum), "a rule such as Momentum"),
    "groups": (lambda: ud.group_norm(bn_net(), groups=0), "groups >= 1"),
    "schedule text": (lambda: ud.optim.schedules.parse("exponentail(1, 2)"), "got 'exponentail"),
    "model name": (lambda: ud.models.build("mpl", shape=(4,), classes=2), "the nearest is 'mlp'"),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_input(case: str) -> None:
    act, message = CASES[case]
    with pytest.raises(ValueError, match=f"(?s){message}") as caught:
        act()
    text = str(caught.value)
    assert "\n" not in text, "one sentence, one line"
    assert text.endswith("."), text


def test_a_nan_in_data_nobody_holds_is_no_error() -> None:
    inputs, targets = pair(5)
    inputs[4] = torch.nan
    assert len(ud.Clients.split(inputs, targets, [[0, 1], [2, 3]])) == 2
