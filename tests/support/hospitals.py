"""A federation of the example's three hospitals: folders without certificates, data and sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

import undrift as ud
from undrift.config.experiment import Experiment
from undrift.deployment import example
from undrift.deployment.host import SiteHost, site_clients
from undrift.deployment.plan import resolved
from undrift.federation.messages import decode
from undrift.federation.transport import Arrived, answer

NAMES = sorted(example.HOSPITALS)


class Hosts:
    """Asks sites of the same process; `lost` are cut off from questions that `finds` finds."""

    def __init__(self, hosts: Mapping[str, Any], stop_after: int | None = None) -> None:
        self.hosts, self.lost = dict(hosts), set[str]()
        self.finds: Callable[[str], bool] = lambda kind: True
        self._left = stop_after  # requests until the run is stopped
        self.limits: list[tuple[list[str], float]] = []  # of each question: whom, and for how long
        self.asked: list[str] = []  # the kind of each question

    def sites(self) -> list[str]:
        return sorted(self.hosts)

    def ask(self, requests: Mapping[str, bytes], *, seconds: float = inf) -> Iterator[Arrived]:
        kind = decode(next(iter(requests.values()))).header.model_dump()["kind"]
        self.limits.append((sorted(requests), seconds))
        self.asked.append(kind)
        for name, data in requests.items():
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    raise KeyboardInterrupt
            if name not in self.lost or not self.finds(kind):
                yield Arrived(name, answer(self.hosts[name], data))


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
