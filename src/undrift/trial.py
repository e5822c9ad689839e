"""What the command line runs: settings by name, one trial per (method, seed), its files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
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
    NAMES,
    Clients,
    Dataset,
    Deadline,
    Steps,
    load,
    partition,
)
from undrift.devices import Fleet, Trace
from undrift.devices import parse as parse_devices
from undrift.engine.meeting import restarted
from undrift.engine.run import Run
from undrift.engine.simulate import simulate
from undrift.forms import parse_model, parse_participation, parse_slowdown, parse_work
from undrift.record import PeerRecord, Record, Totals


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Data and how it is dealt."""

    data: str
    data_dir: Path | None = None
    clients: int | None = None  # None: 20, or all that the data set has by nature
    partition: str = "dirichlet"
    dirichlet: float | None = None  # alpha of a Dirichlet partition without a number
    augment: bool = True
    test_samples: int | None = None  # None: all

    def __post_init__(self) -> None:
        require_choice("data", "its name", self.data, NAMES)
        partition.check_form(self.partition)
        bare = self.partition.startswith("dirichlet") and ":" not in self.partition
        remedy = "say it once, as --partition dirichlet:0.3"
        fits = self.dirichlet is None or bare
        require(
            fits, "--dirichlet", "a Dirichlet partition without a number", self.partition, remedy
        )
        some = self.clients is None or self.clients >= 1
        require(some, "--clients", "clients >= 1", self.clients)

    @property
    def dataset(self) -> Dataset:
        return _loaded(self.data, self.data_dir)

    def split(self, seed: int) -> Clients:
        """The data dealt to clients."""
        form = self.partition if self.dirichlet is None else f"{self.partition}:{self.dirichlet}"
        clients = self.clients
        if clients is None and form != "natural":
            clients = DEFAULT_CLIENTS
        options: dict[str, Any] = {"augment": self.augment, "test_samples": self.test_samples}
        return self.dataset.split(form, clients, seed=seed, **options)


DEFAULT_CLIENTS = 20


@cache
def _loaded(name: str, data_dir: Path | None) -> Dataset:
    return load(name, data_dir)


@dataclass(frozen=True, kw_only=True)
class Setting(Ground):
    """A comparison's common ground."""

    model: str
    devices: str | None = None
    slowdown: str | None = None
    failures: float = 0.0
    trace: Path | None = None
    trace_period: float | None = None
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
    evaluate_every: int = 1
    target: float

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_model(self.model)
        self._check_devices()
        require(0 < self.target <= 1, "--target", "an accuracy in (0, 1]", self.target)
        if self.work is not None:
            parse_work(self.work)
        if self.participation is not None:
            parse_participation(self.participation)

    def _check_devices(self) -> None:
        """Refuse what devices do where there are none."""
        for option in ("slowdown", "failures", "trace"):
            given = getattr(self, option)
            alone = bool(given) and self.devices is None
            require(
                not alone, f"--{option}", "--devices beside it", str(given), "say --devices phone"
            )
        alone = self.trace_period is not None and self.trace is None
        require(not alone, "--trace-period", "--trace beside it", self.trace_period)
        if self.slowdown is not None:
            parse_slowdown(self.slowdown)

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

    @cache  # noqa: B019 -- a handful of seeds, each used by every method of a comparison
    def prepare(self, seed: int) -> tuple[nn.Module, Clients]:
        """Model and clients; every method of a comparison gets the same for the same seed."""
        clients = self.split(seed)
        name, options = parse_model(self.model)
        shape, classes = self.dataset.shape, self.dataset.classes
        pretrained = name in ("distilbert", "huggingface")
        if pretrained and self.dataset.vocabulary:
            raise ValueError(
                f"--model {name} needs tokens of its own tokenizer, got the words of {self.data}; "
                "in Python, read them with undrift.data.read_imdb(folder, encode=...)."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = models.build(name, shape=shape, classes=classes, **options)
        return model, clients

    def fleet(self, clients: int, seed: int) -> Fleet | None:
        if self.devices is None:
            return None
        there = None if self.trace is None else Trace.read(self.trace, period=self.trace_period)
        slow = None if self.slowdown is None else parse_slowdown(self.slowdown)
        devices = parse_devices(self.devices, clients, seed=seed)
        return Fleet(devices, slow, self.failures, there, seed)

    def start(self, algorithm: Any, seed: int, **options: Any) -> Run:
        model, clients = self.prepare(seed)
        work = parse_work(default_work(algorithm) if self.work is None else self.work)
        if isinstance(algorithm, Gossip):
            text = DEFAULT_TOPOLOGY if self.topology is None else self.topology
            options["topology"] = topology.parse(text, len(clients), seed)
            one_step = algorithm.every_step and not isinstance(work, Deadline)  # which it refuses
            work = Steps(1) if one_step else work
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
            evaluate_every=options.pop("evaluate_every", self.evaluate_every),
            devices=self.fleet(len(clients), seed),
            **options,
        )


DEFAULT_TOPOLOGY = "erdos-renyi"


def default_work(algorithm: Any) -> str:
    """Steps between two communications, as the documents have them."""
    if isinstance(algorithm, AllReduce):
        return "steps:1"
    return "steps:10" if isinstance(algorithm, Gossip) else "gaussian:20:100"


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
        return float(sum(getattr(r, name) or 0 for r in self.records))

    def recent(self, name: str) -> float | None:
        """Mean over the last ten rounds that have it; None for what this family has not."""
        seen = [getattr(r, name, None) for r in self.records]
        values = [value for value in seen if value is not None][-10:]
        return float(np.mean(values)) if values else None

    @property
    def megabytes(self) -> float:
        return (self.total("bytes_up") + self.total("bytes_down")) / 1e6


CURVES, PARTITION = "curves.png", "partition.png"


def _written_here(path: Path) -> bool:
    return path.is_file() and (
        path.suffix in (".jsonl", ".part") or path.name in (CURVES, PARTITION)
    )


def claim(
    out: Path | None, name: str, *, force: bool, going_on: bool = False, write: bool = True
) -> Path:
    """The folder to write to; never one that holds something else, unless told so.

    Of several processes one writes; for the others there is nothing to claim.
    """
    if out is None:
        numbered = (Path("runs") / f"{name}-{i}" for i in range(1, 10**6))
        free = next(path for path in numbered if not path.exists())
        last = Path("runs") / f"{name}-{int(free.name.rpartition('-')[2]) - 1}"
        out = last if restarted() and last.exists() else free  # ours, before it was started again
    if not write:
        return out
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

    def __init__(self, path: Path | None, *, after: Record | None = None) -> None:
        """Without a path they are kept in memory only."""
        self.records: list[Record] = []
        self._path = path
        if path is None:
            return
        if after is not None:
            # The record of the checkpoint itself may not have been written before a kill.
            self.records = [r for r in read_records(path) if r.round < after.round] + [after]
        lines = "".join(json.dumps(record.to_dict()) + "\n" for record in self.records)
        part = path.with_suffix(".part")
        part.write_text(lines)
        part.replace(path)

    def add(self, record: Record) -> None:
        self.records.append(record)
        if self._path is not None:
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
