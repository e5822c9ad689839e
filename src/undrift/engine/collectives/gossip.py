"""Gossip between processes: `comm.mix` over point-to-point messages along the graph's edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.engine.collectives.base import Rows, weighted_sums
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.processes.transport import Incoming, Outgoing, Transport
from undrift.engine.world import RankBlocks
from undrift.topology import Topology


class _Neighbours(NamedTuple):
    """Says who needs whose rows, seen from one rank."""

    needed: list[int]  # nodes whose rows this rank's nodes mix, its own included
    sends: dict[int, list[int]]  # to each other rank: own nodes
    comes: dict[int, list[int]]  # from each other rank: its nodes
    weights: Tensor  # (own nodes, needed)
    senders: NDArray[np.intp]  # of this rank's outgoing links
    receivers: NDArray[np.intp]
    linked: bool  # whether any two nodes of the topology are linked


@lru_cache(maxsize=8)
def _neighbours(topology: Topology, blocks: RankBlocks, rank: int) -> _Neighbours:
    W, ranks = topology.W, blocks.ranks
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
        needed=needed,
        sends={r: nodes for r, nodes in sends.items() if nodes},
        comes={r: nodes for r, nodes in comes.items() if nodes},
        weights=torch.tensor(W[list(own)][:, needed]),
        senders=senders[apart],
        receivers=receivers[apart],
        linked=bool(np.count_nonzero(W - np.diag(np.diag(W)))),
    )


def mix(
    transport: Transport,
    topology: Topology,
    leaves: Sequence[Rows],
    *,
    blocks: RankBlocks,
    label: str,
    traffic: Traffic,
) -> list[Rows]:
    """Return sum_j W_ij v_j for the nodes i of this rank; `blocks` has the nodes of every rank.

    A row is sent once to each rank that needs it.
    """
    links = _neighbours(topology, blocks, transport.rank)
    own = blocks.of(transport.rank)
    rows = [
        dict(zip(own, (row.reshape(-1) for group in groups for row in group), strict=True))
        for groups in leaves
    ]
    examples = [of_node[own[0]] for of_node in rows]  # one row of each leaf
    width = sum(_raw(row).numel() for row in examples)
    label = f"{label}, mix"
    outgoing = [
        Outgoing(rank, label, torch.cat([_raw(of_node[j]) for of_node in rows for j in nodes]))
        for rank, nodes in links.sends.items()
    ]
    incoming = [Incoming(rank, label, width * len(nodes)) for rank, nodes in links.comes.items()]
    pending = transport.exchange(outgoing, incoming)
    traffic.links[links.senders, links.receivers] += width
    traffic.coordinates += sum(row.numel() for row in examples) * len(links.senders)
    traffic.hops += links.linked
    for nodes, received in zip(links.comes.values(), pending.wait(), strict=True):
        _read_rows(received.data, nodes, examples, rows)
    return [_mixed(links, of_node, groups) for of_node, groups in zip(rows, leaves, strict=True)]


def _read_rows(
    data: Tensor, nodes: list[int], examples: list[Tensor], rows: list[dict[int, Tensor]]
) -> None:
    """Write the rows of another rank's nodes into `rows`, leaf by leaf."""
    places = [
        (of_node, example, j)
        for of_node, example in zip(rows, examples, strict=True)
        for j in nodes
    ]
    parts = torch.split(data, [example.nbytes for _, example, _ in places])
    for (of_node, example, j), part in zip(places, parts, strict=True):
        of_node[j] = part.clone().view(example.dtype)  # a part may begin where no float can


def _mixed(links: _Neighbours, of_node: dict[int, Tensor], groups: Rows) -> Rows:
    """Return the weighted sums of one leaf in the shapes of `groups`."""
    flats = [of_node[j][None] for j in links.needed]
    weights = links.weights.to(flats[0].dtype)
    sums = weighted_sums(weights, flats, [len(group) for group in groups])
    return [flat.view(group.shape) for flat, group in zip(sums, groups, strict=True)]


def _raw(row: Tensor) -> Tensor:
    return row.detach().cpu().contiguous().view(torch.uint8)
