"""Gossip between processes: `comm.mix` over point-to-point messages along the graph's edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.engine.collectives.inprocess import BLOCK, Rows, Traffic
from undrift.engine.processes.transport import Incoming, Outgoing, Transport
from undrift.engine.world import RankBlocks
from undrift.topology import Topology


class _Neighbours(NamedTuple):
    """Who needs whose rows, seen from one rank."""

    needed: list[int]  # nodes whose rows this rank's nodes mix, its own included
    sends: dict[int, list[int]]  # to each other rank: own nodes
    comes: dict[int, list[int]]  # from each other rank: its nodes
    weights: Tensor  # (own nodes, needed)
    edges: tuple[Any, Any]  # senders and receivers of this rank's outgoing links
    linked: bool  # whether anybody is


@lru_cache(maxsize=8)
def _neighbours(topology: Topology, ranks: int, rank: int) -> _Neighbours:
    blocks = RankBlocks(topology.size, ranks)
    W = topology.W
    uses = [np.flatnonzero((W[list(blocks.of(r))] != 0).any(0)) for r in range(ranks)]
    own = blocks.of(rank)
    needed = sorted({*uses[rank].tolist(), *own})
    others = [r for r in range(ranks) if r != rank]
    sends = {r: [j for j in uses[r].tolist() if j in own] for r in others}
    comes = {r: [j for j in needed if j in blocks.of(r)] for r in others}
    # W_ij weighs what j sends to i; the row of a link is its receiver.
    receivers, senders = np.nonzero(W[:, list(own)])
    senders = senders + own.start
    apart = senders != receivers
    return _Neighbours(
        needed,
        {r: nodes for r, nodes in sends.items() if nodes},
        {r: nodes for r, nodes in comes.items() if nodes},
        torch.tensor(W[list(own)][:, needed]),
        (senders[apart], receivers[apart]),
        bool(np.count_nonzero(W - np.diag(np.diag(W)))),
    )


def mix(
    post: Transport, topology: Topology, leaves: Sequence[Rows], *, label: str, traffic: Traffic
) -> list[Rows]:
    """sum_j W_ij v_j for the nodes of this rank; a row goes once to each rank that needs it."""
    links = _neighbours(topology, post.size, post.rank)
    own = RankBlocks(topology.size, post.size).of(post.rank)
    rows = [
        dict(zip(own, (row.reshape(-1) for some in parts for row in some), strict=True))
        for parts in leaves
    ]
    letters = [
        Outgoing(rank, f"{label}, mix", torch.cat([_raw(held[j]) for held in rows for j in nodes]))
        for rank, nodes in links.sends.items()
    ]
    width = sum(_raw(held[own[0]]).numel() for held in rows)
    expected = [
        Incoming(rank, f"{label}, mix", width * len(nodes)) for rank, nodes in links.comes.items()
    ]
    transit = post.exchange(letters, expected)
    senders, receivers = links.edges
    traffic.links[senders, receivers] += width
    traffic.coordinates += sum(held[own[0]].numel() for held in rows) * len(senders)
    traffic.hops += links.linked
    for nodes, arrived in zip(links.comes.values(), transit.wait(), strict=True):
        sizes = [held[own[0]].numel() for held in rows for _ in nodes]
        dtypes = [held[own[0]].dtype for held in rows for _ in nodes]
        parts = torch.split(
            arrived.data, [n * dtype.itemsize for n, dtype in zip(sizes, dtypes, strict=True)]
        )
        places = [(held, j) for held in rows for j in nodes]
        for (held, j), part, dtype in zip(places, parts, dtypes, strict=True):
            held[j] = part.clone().view(dtype)
    return [_weighed(links, held, parts) for held, parts in zip(rows, leaves, strict=True)]


def _weighed(links: _Neighbours, held: dict[int, Tensor], parts: Rows) -> Rows:
    """The weighted sums in the shapes of `parts`, block by block of columns."""
    flats = [torch.empty(len(some), some[0].numel(), dtype=some.dtype) for some in parts]
    W = links.weights.to(flats[0].dtype)
    width = max(1, BLOCK // len(links.needed))
    for start in range(0, flats[0].shape[1], width):
        columns = slice(start, start + width)
        block = W @ torch.stack([held[j][columns] for j in links.needed])
        for some, new in zip(flats, torch.split(block, [len(f) for f in flats]), strict=True):
            some[:, columns] = new
    return [flat.view(some.shape) for flat, some in zip(flats, parts, strict=True)]


def _raw(row: Tensor) -> Tensor:
    return row.detach().cpu().contiguous().view(torch.uint8)
