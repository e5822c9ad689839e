"""What each method is and costs, measured by a dry run of one round."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from undrift import testing, tree
from undrift.core import Peer
from undrift.data import Steps


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
    run = _dry_run(cls)
    server = {name: leaf for name, leaf in tree.named_leaves(run.state).items() if name != "x"}
    client = tree.named_leaves(next(iter(run.client_states.values())))
    return Entry(
        cls.__name__.lower(),
        "peer" if issubclass(cls, Peer) else "federated",
        paper(cls),
        (inspect.getdoc(cls) or "").splitlines()[0],
        (run.totals.bytes_up + run.totals.bytes_down) / reference,
        run.totals.gradients / _STEPS,
        _vectors(client, len(run.x)),
        _vectors(server, len(run.x)),
    )


def entries(classes: tuple[Any, ...]) -> list[Entry]:
    from undrift.algorithms import FedAvg

    totals = _dry_run(FedAvg).totals
    return [entry(cls, totals.bytes_up + totals.bytes_down) for cls in classes]


_CLIENTS, _STEPS = 4, 4 * 10


def _dry_run(cls: Any) -> Any:
    run = testing.start(
        cls(lr=0.01), participation=1.0, work=Steps(_STEPS // _CLIENTS), batch_size=None, rounds=1
    )
    testing.finish(run)
    return run


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
