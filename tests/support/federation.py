"""A small federation in one process: five sites with digits, and a simulation to compare with."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import undrift as ud
from undrift.engine.run import Run
from undrift.federation import Centre, FederatedExperiment, InProcess, Site

SITES = 5
NAMES = [f"site{i}" for i in range(SITES)]
OPTIONS: dict[str, Any] = {
    "loss": F.cross_entropy,
    "work": ud.GaussianSteps(4, 4),
    "batch_size": 20,
    "rounds": 4,
    "seed": 3,
}


@cache
def clients() -> ud.Clients:
    """Return the clients of the simulation."""
    return ud.data.load("digits").split("dirichlet:0.3", SITES)


@cache
def model() -> torch.nn.Module:
    """Return the first model."""
    torch.manual_seed(0)
    return ud.models.build("mlp", shape=ud.data.load("digits").shape, classes=10, hidden=8)


def own(i: int) -> ud.Clients:
    """Return the data of one client as its site has them."""
    pool = clients()
    return ud.Clients([pool[i]], prepare=pool.prepare)


def experiment(algorithm: Any, **options: Any) -> FederatedExperiment:
    """Return a federated experiment."""
    return FederatedExperiment(algorithm=algorithm, model=model(), **{**OPTIONS, **options})


def simulated(algorithm: Any, **options: Any) -> Run:
    """Return the simulation of the same experiment, at its end."""
    settings = {**OPTIONS, **options}
    run = ud.simulate(algorithm, model(), clients(), mode="loop", kernels=False, **settings)
    list(run)
    return run


def sites(experiment: FederatedExperiment, folder: Path, number: int = SITES) -> list[Site]:
    """Return sites whose states are in folders of their own."""
    return [Site(experiment, own(i), folder / NAMES[i], name=NAMES[i]) for i in range(number)]


def federation(experiment: FederatedExperiment, folder: Path, **options: Any) -> Centre:
    """Return a centre with all sites in this process."""
    return Centre(experiment, InProcess(sites(experiment, folder)), **options)
