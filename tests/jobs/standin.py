"""Runs methods on the CPU and on the stand-in device, and prints as JSON what came of both.

`python -m tests.jobs.standin` runs some in every mode; `... wide` all, and the other features.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import undrift as ud
import undrift.algorithms as library
from tests.support import standin

INPUTS = torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(3, (80,), generator=torch.Generator().manual_seed(0))
ROUNDS = 3


def clients() -> ud.Clients:
    pairs = [(INPUTS[i : i + 16], LABELS[i : i + 16]) for i in range(0, 64, 16)]
    tests = INPUTS[64:72], LABELS[64:72]
    return ud.Clients(pairs, test=tests, validation=(INPUTS[72:], LABELS[72:]))


METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "FedAvg, dropout": (ud.FedAvg(lr=0.1), {"dropout": 0.3}),
    "FedAvg, AdamW": (ud.FedAvg(lr=0.01, rule=ud.AdamW()), {}),
    "FedSpeed": (ud.FedSpeed(lr=0.1, lam=10), {}),
    "Scaffold": (ud.Scaffold(lr=0.1), {"participation": 0.5}),
    "FedaGrac": (ud.FedaGrac(lr=0.1), {}),
    "FedAdam": (ud.FedAdam(lr=0.1), {}),
    "QSGD": (ud.Compressed(ud.FedAvg(lr=0.1), ud.QSGD(bits=4)), {}),
    "TopK": (ud.Compressed(ud.FedAvg(lr=0.1), ud.TopK(fraction=0.2)), {}),
    "NetFleet": (ud.NetFleet(lr=0.1), {"topology": "ring"}),
    "Marsit": (ud.Marsit(lr=0.1, server_lr=0.01, period=2), {}),
    "CascadingSSDM": (ud.CascadingSSDM(lr=0.1), {}),
    "SSDM": (ud.SSDM(lr=0.1), {}),
    "attacked": (ud.FedAvg(lr=0.1), {"aggregation": "median", "attack": "sign-flip:0.25"}),
}


class Rows(Dataset[Any]):
    """Returns samples one by one, as pairs or as dictionaries of two inputs."""

    def __init__(self, first: int, count: int, *, named: bool = False) -> None:
        self.first, self.count, self.named = first, count, named

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        x, y = INPUTS[self.first + i].double(), LABELS[self.first + i]
        return {"left": x[:3], "right": x[3:], "labels": y} if self.named else (x, y)


class ByName(nn.Module):
    """Reads two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3).double()

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([left, right], -1))  # type: ignore[no-any-return]


def sources(**options: Any) -> ud.Clients:
    """Return clients and a test set that are read from torch's data sets."""
    named, lazy = options.get("named", False), options.get("lazy")
    rows = [Rows(i, 16, named=named) for i in range(0, 64, 16)]
    return ud.Clients(rows, test=Rows(64, 16, named=named), lazy=lazy)


def other_targets(targets: torch.Tensor) -> ud.Clients:
    pairs = [(INPUTS[i : i + 16], targets[i : i + 16]) for i in range(0, 64, 16)]
    held = INPUTS[64:], targets[64:]
    return ud.Clients(pairs, test=held, validation=held)


def images() -> ud.Clients:
    drawn = torch.randint(256, (80, 1, 6, 6), generator=torch.Generator().manual_seed(0)).byte()
    pairs = [(drawn[i : i + 16], LABELS[i : i + 16]) for i in range(0, 64, 16)]
    prepare = ud.data.Images((0.5,), (0.25,), crop=1, flip=True)
    return ud.Clients(pairs, test=(drawn[64:], LABELS[64:]), prepare=prepare)


def own_tests() -> ud.Clients:
    pairs = [(INPUTS[i : i + 16], LABELS[i : i + 16]) for i in range(0, 64, 16)]
    return ud.Clients(pairs, test=[(x[:3], y[:3]) for x, y in pairs])


AVERAGED = ud.FedAvg(lr=0.1)
SUMS = INPUTS.double().sum(1)
MARKS = (INPUTS[:, :3] > 0).long()
FLAT = lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()  # noqa: E731
FEATURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "client metrics": (
        AVERAGED,
        {
            "data": own_tests,
            "evaluation": ud.EvaluationOptions(every=ROUNDS, client_metrics=True),
        },
    ),
    "sharpness": (AVERAGED, {"evaluation": ud.EvaluationOptions(every=ROUNDS, sharpness=True)}),
    "regression": (
        AVERAGED,
        {"data": lambda: other_targets(SUMS), "task": "regression", "metrics": "mae", "outputs": 1},
    ),
    "multi-label": (
        AVERAGED,
        {"data": lambda: other_targets(MARKS), "task": "multi-label", "metrics": "auroc"},
    ),
    "augmentation": (AVERAGED, {"data": images, "model": FLAT}),
    "lazy samples": (AVERAGED, {"data": lambda: sources(lazy=True)}),
    "dictionaries": (AVERAGED, {"data": lambda: sources(named=True), "model": ByName}),
    "early stopping": (AVERAGED, {"early_stopping": 2}),
    "trimmed mean": (AVERAGED, {"aggregation": "trimmed-mean:1"}),
    "geometric median": (AVERAGED, {"aggregation": "geometric-median"}),
    "multi-Krum": (AVERAGED, {"aggregation": "multi-krum:0"}),
    "centered clipping": (AVERAGED, {"aggregation": "centered-clipping"}),
    "Krum": (AVERAGED, {"aggregation": "krum:0"}),
    "ALIE": (AVERAGED, {"attack": "alie:0.25", "aggregation": "median"}),
    "label flips": (AVERAGED, {"attack": "label-flip:0.25"}),
}


def named_method(cls: Any) -> tuple[Any, dict[str, Any]]:
    """Return a method of the library, and what it needs beside the others."""
    return cls(lr=0.05), {"topology": "ring"} if issubclass(cls, ud.Gossip) else {}


# The stand-in has copies where torch has views that are not contiguous, and no views that change in
# place below vmap, so that it cannot run what torch's rules for vmap do with these.
BEYOND = [("augmentation", "stacked"), ("MOON", "stacked"), ("FedMLB", "stacked")]
WIDE = {cls.__name__: named_method(cls) for cls in library.ALGORITHMS} | FEATURES


def run(name: str, device: str, mode: str, **more: Any) -> ud.Run:
    """Return a run that has not begun."""
    method, own = METHODS.get(name) or WIDE[name]
    own = {"metrics": "f1_macro", "evaluation": ud.EvaluationOptions(every=ROUNDS), **own, **more}
    torch.manual_seed(1)
    drop, last = nn.Dropout(own.pop("dropout", 0.0)), nn.Linear(8, own.pop("outputs", 3))
    net = own.pop("model", lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), drop, last).double())
    data = own.pop("data", clients)()
    options = {"work": "steps:3", "rounds": ROUNDS, "batch_size": 5, "mode": mode, **own}
    return ud.simulate(method, net(), data, device=device, **options)


def outcome(name: str, mode: str) -> dict[str, Any]:
    """Return how far both devices are apart, and what a round without a test copies to the CPU."""
    there, here = run(name, standin.NAME, mode), run(name, "cpu", mode, kernels=False)
    next(there)
    standin.COPIES.clear()
    next(there)
    copies = list(standin.COPIES)
    last, wanted = list(there)[-1], list(here)[-1]
    return {
        "apart": float((there.mean.cpu() - here.mean).abs().max()),
        "loss": abs((last.loss or 0) - (wanted.loss or 9)),
        "metrics": furthest(last.metrics, wanted.metrics),
        "validated": last.validation_metrics is not None or there._clients.validation is None,
        "clients": furthest(last.client_metrics or {}, wanted.client_metrics or {}),
        "sharpness": abs((last.sharpness or 0) - (wanted.sharpness or 0)),
        "predictions": predicted(there, here),
        "device": [there.mean.device.type, next(there.model.parameters()).device.type],
        "gradients": there.gradients,
        "largest": max([eval(each) for each in copies if each != "item"], default=(0,)),
    }


def furthest(one: Any, other: Any) -> float:
    """Return how far the numbers of two tables are apart, infinity where their names differ."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return float("inf")
        return max((furthest(one[name], other[name]) for name in one), default=0.0)
    return abs((one or 0) - (other or 0)) if (one is None) == (other is None) else float("inf")


def predicted(there: ud.Run, here: ud.Run) -> float:
    """Return how far predictions of a run on the device are from those of one on the CPU."""
    if there._clients.fields or there._clients.prepare is not None:
        return 0.0
    rows = INPUTS[64:].double()
    return float((there.predict(rows).cpu() - here.predict(rows)).abs().max())


def resumed() -> bool:
    """Return whether a run that is saved and goes on ends as one that was not stopped."""
    whole = run("Scaffold", standin.NAME, "loop")
    list(whole)
    with tempfile.TemporaryDirectory() as folder:
        part = run("Scaffold", standin.NAME, "loop", checkpoint=folder)
        next(part)
        part.close()
        rest = run("Scaffold", standin.NAME, "loop", resume=folder)
        list(rest)
    return bool(torch.equal(rest.mean.cpu(), whole.mean.cpu()))


def widely() -> dict[str, Any]:
    """Return what came of every method and of the other features."""
    found: dict[str, Any] = {}
    for name in WIDE:
        for mode in ("loop", "stacked"):
            if (name, mode) not in BEYOND:
                found[f"{name}, {mode}"] = outcome(name, mode)
    return found


def main() -> None:
    """Print what was found."""
    torch.set_num_threads(1)
    if "wide" in sys.argv:
        json.dump(widely(), sys.stdout)
        return
    found: dict[str, Any] = {
        f"{name}, {mode}": outcome(name, mode)
        for name in METHODS
        for mode in ("loop", "threads", "stacked")
    }
    found["resumed"] = resumed()
    wrong = ""
    try:
        torch.ones(3, device=standin.NAME) + torch.ones(3)
    except RuntimeError as error:
        wrong = str(error)
    found["mixed"] = wrong
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
