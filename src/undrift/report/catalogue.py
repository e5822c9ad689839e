"""The catalogue says what each method is and costs, measured by a dry run of two rounds."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undrift import testing, tree
from undrift.config.hyperparameters import summary_of
from undrift.core import Peer
from undrift.data import Steps

SIZES = (11, 7, 16, 9)  # of the dry run's clients


@dataclass(frozen=True)
class Entry:
    """Describes one method in a list of methods."""

    name: str
    family: str
    paper: str
    summary: str
    traffic: float  # up and down, relative to FedAvg
    gradients: float  # per local step
    client_state: str
    server_state: str


def entries(classes: tuple[Any, ...]) -> list[Entry]:
    """Return an entry for each class, from a dry run of each."""
    from undrift.algorithms import FedAvg

    reference = _traffic(_dry_run(FedAvg)[0])
    return [entry(cls, reference) for cls in classes]


def entry(cls: Any, reference: float) -> Entry:
    """Return the entry of one class; `reference` is FedAvg's traffic in a dry run of its own."""
    run, steps = _dry_run(cls)
    peer = isinstance(run.algorithm, Peer)
    state = tree.row(run.state, 0) if peer else run.state
    beside_x = {name: leaf for name, leaf in tree.named_leaves(state).items() if name != "x"}
    client = beside_x if peer else tree.named_leaves(run.client_states[0])
    return Entry(
        name=cls.__name__.lower(),
        family=cls.family,
        paper=citation(cls),
        summary=summary_of(cls),
        traffic=_traffic(run) / reference,
        gradients=run.record.gradients / (_count(cls) * steps),
        client_state=_vectors(client, len(state.x)),
        server_state="-" if peer else _vectors(beside_x, len(state.x)),
    )


def _count(cls: type) -> int:
    """Return the number of clients in a dry run.

    Peers form a ring of four; with a server one client shows what is asked of each.
    """
    return len(SIZES) if issubclass(cls, Peer) else 1


def _traffic(run: Any) -> float:
    """Return the bytes of the last round, up and down, for each client."""
    return float(run.record.bytes_up + run.record.bytes_down) / _count(type(run.algorithm))


def _dry_run(cls: Any) -> tuple[Any, int]:
    """Return a finished run of two rounds with an exchange each, and its local steps.

    What is measured is the second round, because the first has the costs of the start.
    """
    algorithm = cls(lr=0.01)
    steps = 1 if getattr(algorithm, "every_step", False) else 10
    clients = testing.small_clients(SIZES[: _count(cls)], dtype=torch.float32)
    run = testing.start(
        algorithm,
        clients=clients,
        model=testing.small_net(dropout=0.0, dtype=torch.float32),
        participation=1.0,
        work=Steps(steps),
        batch_size=None,
        rounds=2,
    )
    testing.finish(run)
    return run, steps


def _vectors(leaves: dict[str, Tensor], size: int) -> str:
    """Return the names of the leaves that are as long as the model; a bare vector has no name."""
    names = [name or "1 vector" for name, leaf in leaves.items() if leaf.numel() == size]
    return ", ".join(names) or "-"


_VENUE = re.compile(r"(.*?\b(?:19|20)\d\d\b)(?!\.\d)")  # up to a year that is no arXiv number


def citation(cls: type) -> str:
    """Return authors, venue and year from the first paragraph of the method's module."""
    first = " ".join((sys.modules[cls.__module__].__doc__ or "").split("\n\n")[0].split())
    authors = re.match(r'\w+\. (.*?), "', first)
    title_end = first.find('",')
    venue = _VENUE.match(first[title_end + 2 :].strip()) if title_end > 0 else None
    return ", ".join(m.group(1) for m in (authors, venue) if m)
