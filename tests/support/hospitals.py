"""A federation of the example's three hospitals: folders without certificates, data and sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

import undrift as ud
from undrift.config.experiment import Experiment
from undrift.deployment import example
from undrift.deployment.plan import resolved
from undrift.deployment.site_process import SiteHost, site_clients

NAMES = sorted(example.HOSPITALS)


def write_experiment(folder: Path, **sections: Any) -> Path:
    """Write an experiment of three sites and its columns, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "columns.json").write_text(example.columns().to_json())
    values: dict[str, Any] = {
        "seeds": [0],
        "methods": [{"name": "scaffold", "lr": 0.1}],
        "model": {"name": "mlp", "hidden": 4},
        "training": {"rounds": 3, "work": "steps:3", "batch_size": 20},
        "federation": {"sites": NAMES, "columns": "columns.json"},
    }
    for name, section in sections.items():
        merged = isinstance(section, dict) and isinstance(values.get(name), dict)
        values[name] = {**values[name], **section} if merged else section
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps(values))
    return path


def experiment(folder: Path, **sections: Any) -> Experiment:
    """Return an experiment of three sites."""
    return resolved(Experiment.read(write_experiment(folder, **sections)))


def host(described: Experiment, folder: Path, name: str) -> SiteHost:
    """Return a site with the table of its hospital."""
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / f"{name}.csv"
    if not table.exists():
        example.write_table(table, name)
    return SiteHost(described, name, site_clients(described, str(table)), folder / f"{name}-state")


def pooled(described: Experiment, folder: Path) -> ud.Clients:
    """Return the tables of all hospitals as the clients of a simulation."""
    own = [site_clients(described, str(folder / f"{name}.csv")) for name in NAMES]
    inputs = torch.cat([each.inputs for each in own])
    targets = torch.cat([each.targets for each in own])
    ends = np.cumsum([len(each.targets) for each in own])
    parts = np.split(np.arange(len(targets)), ends[:-1])
    tests = [each.test for each in own if each.test is not None]
    test = torch.cat([pair[0] for pair in tests]), torch.cat([pair[1] for pair in tests])
    pairs = [(inputs[torch.from_numpy(part)], targets[torch.from_numpy(part)]) for part in parts]
    return ud.Clients(pairs, test=test)
