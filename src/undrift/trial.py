"""What the command line runs: settings by name, one trial per (method, seed), its files."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from undrift import models, topology
from undrift.check import require, require_choice
from undrift.core import AllReduce, Federated, Gossip
from undrift.data import (
    Clients,
    Epochs,
    GaussianSteps,
    Steps,
    UniformSteps,
    Work,
    digits,
    dirichlet,
    iid,
    shards,
)
from undrift.engine.run import Run
from undrift.engine.simulate import simulate
from undrift.record import PeerRecord, Record, Totals


@dataclass(frozen=True)
class Setting:
    """A comparison's common ground."""

    data: str
    model: str
    clients: int
    partition: str
    dirichlet: float
    rounds: int
    participation: str | None  # None: what suits the family
    work: str | None
    batch_size: int | None
    weighting: str | None
    topology: str | None
    allreduce: str | None
    weight_decay: float
    clip: float | None
    mode: str
    target: float

    def __post_init__(self) -> None:
        require_choice("--data", "it", self.data, ("digits",))
        require_choice("--model", "it", self.model, models.MODELS)
        require_choice(
            "--partition", "it", self.partition.split(":")[0], ("dirichlet", "iid", "shards")
        )
        self._shards()
        require(0 < self.target <= 1, "--target", "an accuracy in (0, 1]", self.target)
        if self.work is not None:
            parse_work(self.work)
        if self.participation is not None:
            parse_participation(self.participation)

    def check(self, classes: Sequence[type]) -> None:
        """Refuse an option that concerns none of the methods."""
        families = {
            "--topology": (self.topology, Gossip, "a gossip method such as netfleet"),
            "--allreduce": (self.allreduce, AllReduce, "an all-reduce method such as marsit"),
            "--participation": (self.participation, Federated, "a method with a server"),
        }
        for option, (given, family, kind) in families.items():
            if given is not None and not any(issubclass(cls, family) for cls in classes):
                names = ", ".join(cls.__name__ for cls in classes)
                raise ValueError(f"{option} needs {kind}, got {names}; leave it out.")

    def _shards(self) -> int:
        """Shards a client gets, of `--partition shards:2`."""
        name, _, number = self.partition.partition(":")
        fits = not number or (name == "shards" and number.isdigit() and int(number) >= 1)
        require(fits, "--partition", "a form such as shards:2", self.partition)
        return int(number or 2)

    @cache  # noqa: B019 -- a handful of seeds, each used by every method of a comparison
    def prepare(self, seed: int) -> tuple[nn.Module, Clients]:
        """Model and clients; every method of a comparison gets the same for the same seed."""
        data = digits()
        if self.partition == "dirichlet":
            parts = dirichlet(data.train[1], self.clients, self.dirichlet, seed=seed)
        elif self.partition == "iid":
            parts = iid(data.train[1], self.clients, seed=seed)
        else:
            parts = shards(data.train[1], self.clients, per_client=self._shards(), seed=seed)
        clients = Clients.split(*data.train, parts, test=data.test)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = models.build(self.model, shape=data.train[0].shape[1:], classes=data.classes)
        return model, clients

    def start(self, algorithm: Any, seed: int, **options: Any) -> Run:
        model, clients = self.prepare(seed)
        work = parse_work(default_work(algorithm) if self.work is None else self.work)
        if isinstance(algorithm, Gossip):
            text = DEFAULT_TOPOLOGY if self.topology is None else self.topology
            options["topology"] = topology.parse(text, self.clients, seed)
            work = Steps(1) if algorithm.every_step else work
        elif isinstance(algorithm, AllReduce):
            options["allreduce"] = self.allreduce
        else:
            options["participation"] = parse_participation(self.participation or "0.5")
        return simulate(
            algorithm,
            model,
            clients,
            loss=nn.functional.cross_entropy,
            work=work,
            batch_size=self.batch_size,
            weighting=self.weighting,  # type: ignore[arg-type]  # checked by simulate
            rounds=self.rounds,
            seed=seed,
            weight_decay=self.weight_decay,
            clip=self.clip,
            mode=self.mode,  # type: ignore[arg-type]  # checked by simulate
            **options,
        )


DEFAULT_TOPOLOGY = "erdos-renyi"


def default_work(algorithm: Any) -> str:
    """Steps between two communications, as the documents have them."""
    if isinstance(algorithm, AllReduce):
        return "steps:1"
    return "steps:10" if isinstance(algorithm, Gossip) else "gaussian:20:100"


def parse_participation(text: str) -> float | int:
    try:
        return int(text) if text.strip().isdigit() else float(text)
    except ValueError as error:
        raise ValueError(
            f"--participation needs a fraction such as 0.5 or a count such as 10, got {text!r}."
        ) from error


def parse_work(text: str) -> Work:
    makers: dict[str, tuple[Callable[..., Work], Callable[[str], Any]]] = {
        "steps": (Steps, int),
        "epochs": (Epochs, float),
        "gaussian": (GaussianSteps, float),
        "uniform": (UniformSteps, int),
    }
    name, *parts = text.split(":")
    require_choice("--work", "its first word", name, makers)
    maker, number = makers[name]
    modes = [part for part in parts if part in ("fixed", "random")]
    try:
        numbers = [number(part) for part in parts if part not in modes]
        inspect.signature(maker).bind(*numbers, *modes)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"--work needs a form such as steps:10, epochs:5, gaussian:20:100 or uniform:5:30, "
            f"got {text!r}."
        ) from error
    return maker(*numbers, *modes)


@dataclass(frozen=True)
class Outcome:
    """A finished (or interrupted) run in numbers."""

    records: Sequence[Record]
    totals: Totals | None = None  # of the whole run, when it went on from a checkpoint

    @property
    def last(self) -> float:
        """Mean accuracy of the last ten evaluations, steadier than the last one alone."""
        return self.recent("accuracy") or 0.0

    def rounds_to(self, target: float) -> int | None:
        return next((r.round for r in self.records if (r.accuracy or 0.0) >= target), None)

    def total(self, name: str) -> float:
        if self.totals is not None:
            return float(getattr(self.totals, name))
        return float(sum(getattr(r, name) for r in self.records))

    def recent(self, name: str) -> float | None:
        """Mean over the last ten rounds that have it; None for what this family has not."""
        seen = [getattr(r, name, None) for r in self.records]
        values = [value for value in seen if value is not None][-10:]
        return float(np.mean(values)) if values else None

    @property
    def megabytes(self) -> float:
        return (self.total("bytes_up") + self.total("bytes_down")) / 1e6


def _written_here(path: Path) -> bool:
    return path.is_file() and (path.suffix in (".jsonl", ".part") or path.name == "curves.png")


def claim(out: Path | None, name: str, *, force: bool, going_on: bool = False) -> Path:
    """The folder to write to; never one that holds something else, unless told so."""
    if out is None:
        numbered = (Path("runs") / f"{name}-{i}" for i in range(1, 10**6))
        out = next(path for path in numbered if not path.exists())
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out needs a folder, got the file {str(out)!r}.")
    if out.exists() and any(out.iterdir()) and not going_on:
        ours = [path for path in out.iterdir() if _written_here(path)]
        foreign = [path.name for path in out.iterdir() if path not in ours]
        if foreign or not force:
            raise ValueError(
                f"--out needs a new folder, got {str(out)!r} with files in it; choose another name"
                + (f" (--force does not touch {foreign[0]!r})." if foreign else ", or --force.")
            )
        for path in ours:
            path.unlink()
    out.mkdir(parents=True, exist_ok=True)
    return out


class Journal:
    """Records as JSON lines, one flushed line each; going on drops what a resume repeats."""

    def __init__(self, path: Path, *, after: Record | None = None) -> None:
        self.records: list[Record] = []
        if after is not None:
            # The record of the checkpoint itself may not have been written before a kill.
            self.records = [r for r in read_records(path) if r.round < after.round] + [after]
        self._path = path
        lines = "".join(json.dumps(record.to_dict()) + "\n" for record in self.records)
        part = path.with_suffix(".part")
        part.write_text(lines)
        part.replace(path)

    def add(self, record: Record) -> None:
        self.records.append(record)
        with self._path.open("a") as file:
            file.write(json.dumps(record.to_dict()) + "\n")


def read_records(path: Path) -> list[Record]:
    """All sound lines; a torn one, as a kill leaves it, is passed over with a warning."""
    records = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            fields = json.loads(line)
            records.append((PeerRecord if "consensus" in fields else Record)(**fields))
        except (TypeError, ValueError):
            warnings.warn(f"{path.name}: line {number} is damaged and left out.", stacklevel=2)
    return records
