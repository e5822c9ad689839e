"""What each method is and costs, measured by a dry run of two rounds."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undrift import testing, tree
from undrift.core import AllReduce, Federated, Gossip, Peer
from undrift.data import Steps

FAMILIES: dict[type, str] = {
    Federated: "federated",
    Gossip: "gossip",
    AllReduce: "all-reduce",
    Peer: "peer",
}
CLIENTS = 4  # of the dry run; peers form a ring


@dataclass(frozen=True)
class Entry:
    name: str
    family: str
    paper: str
    summary: str
    traffic: float  # up and down, relative to FedAvg
    gradients: float  # per local step
    client_state: str
    server_state: str


def entry(cls: Any, reference: int) -> Entry:
    """`reference` is FedAvg's traffic in the same dry run."""
    run, steps = _dry_run(cls)
    peer = isinstance(run.algorithm, Peer)
    held = tree.row(run.state, 0) if peer else run.state
    beside_x = {name: leaf for name, leaf in tree.named_leaves(held).items() if name != "x"}
    client = beside_x if peer else tree.named_leaves(run.client_states[0])
    return Entry(
        cls.__name__.lower(),
        next(name for base, name in FAMILIES.items() if issubclass(cls, base)),
        paper(cls),
        (inspect.getdoc(cls) or "").splitlines()[0],
        (run.record.bytes_up + run.record.bytes_down) / reference,
        run.record.gradients / (CLIENTS * steps),
        _vectors(client, len(held.x)),
        "-" if peer else _vectors(beside_x, len(held.x)),
    )


def entries(classes: tuple[Any, ...]) -> list[Entry]:
    from undrift.algorithms import FedAvg

    record = _dry_run(FedAvg)[0].record
    return [entry(cls, record.bytes_up + record.bytes_down) for cls in classes]


def _dry_run(cls: Any) -> tuple[Any, int]:
    """Two rounds with an exchange each, the second without what only a start costs."""
    algorithm = cls(lr=0.01)
    steps = 1 if getattr(algorithm, "every_step", False) else 10
    run = testing.start(
        algorithm,
        clients=testing.small_clients(dtype=torch.float32),
        dtype=torch.float32,
        participation=1.0,
        work=Steps(steps),
        batch_size=None,
        rounds=2,
    )
    testing.finish(run)
    return run, steps


def _vectors(leaves: dict[str, Tensor], size: int) -> str:
    """Names of the model-sized leaves; a bare vector has no name."""
    names = [name or "1 vector" for name, leaf in leaves.items() if leaf.numel() == size]
    return ", ".join(names) or "-"


_VENUE = re.compile(r"(.*?\b(?:19|20)\d\d\b)(?!\.\d)")  # up to a year that is no arXiv number


def paper(cls: type) -> str:
    """Authors, venue and year from the first paragraph of the method's module."""
    first = " ".join((sys.modules[cls.__module__].__doc__ or "").split("\n\n")[0].split())
    authors = re.match(r'\w+\. (.*?), "', first)
    title_end = first.find('",')
    venue = _VENUE.match(first[title_end + 2 :].strip()) if title_end > 0 else None
    return ", ".join(m.group(1) for m in (authors, venue) if m)
