"""Runs methods on the CPU and on the stand-in device, and prints as JSON what came of both."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import torch
from torch import nn

import undrift as ud
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


def run(name: str, device: str, mode: str, **more: Any) -> ud.Run:
    """Return a run that has not begun."""
    method, options = METHODS[name]
    options = dict(options)
    torch.manual_seed(1)
    drop = nn.Dropout(options.pop("dropout", 0.0))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), drop, nn.Linear(8, 3)).double()
    return ud.simulate(
        method,
        model,
        clients(),
        work="steps:3",
        rounds=ROUNDS,
        batch_size=5,
        mode=mode,  # type: ignore[arg-type]
        device=device,
        metrics="f1_macro",
        evaluation=ud.EvaluationOptions(every=ROUNDS),
        **options,
        **more,
    )


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
        "metrics": [last.metrics == wanted.metrics, last.validation_metrics is not None],
        "device": [there.mean.device.type, next(there.model.parameters()).device.type],
        "gradients": there.gradients,
        "largest": max([eval(each) for each in copies if each != "item"], default=(0,)),
    }


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


def main() -> None:
    """Print what was found."""
    torch.set_num_threads(1)
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
