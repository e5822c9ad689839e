"""An `Exchange` carries out what peers ask of each other in a round, also from inside `vmap`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from undrift import keyed, tree
from undrift.comm.routes import Route
from undrift.core import Merge, Vector
from undrift.engine.collectives.allreduce import MessageTransport, Reduced, all_reduce
from undrift.engine.collectives.reduction import Draws
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.world import RankBlocks
from undrift.errors import UndriftError
from undrift.topology import Topology

T = TypeVar("T")
Rows = Sequence[Tensor]  # consecutive nodes' rows; together (m, ...)
BLOCK = 2**22  # numbers that are worked on at once where all would be too many


@dataclass(kw_only=True)
class Exchange(ABC):
    """Runs the collectives of one round, on the rows of this process's nodes."""

    size: int  # nodes of all processes
    topology: Topology | None
    route: Route | None
    t: int
    seed: int
    traffic: Traffic
    # Own nodes whose messages are not finite and have not been refused yet.
    not_finite: set[int] = field(default_factory=set, init=False)
    reductions: int = field(default=0, init=False)  # all-reduces so far in this round
    mixes: int = field(default=0, init=False)  # exchanges between neighbours so far

    @property
    @abstractmethod
    def nodes(self) -> range:
        """Return the nodes of this process."""

    @property
    @abstractmethod
    def _blocks(self) -> RankBlocks:
        """Return the nodes of each rank."""

    @property
    @abstractmethod
    def _transport(self) -> MessageTransport:
        """Return the way to the other processes."""

    @abstractmethod
    def _mix(self, topology: Topology, leaves: Sequence[Rows]) -> list[Rows]: ...

    @abstractmethod
    def _reduce(self, vectors: list[Vector], merge: Merge, route: Route, call: int) -> Vector: ...

    def mix(self, leaves: Sequence[Rows]) -> list[Rows]:
        """Return sum_j W_ij v_j of every leaf for the nodes i of this process."""
        if self.topology is None:
            raise UndriftError("comm.mix needs links between the peers; pass topology=ring(m).")
        for rows in leaves:
            if not rows[0].is_floating_point():
                raise UndriftError(f"comm.mix needs floats, got a leaf of {rows[0].dtype}.")
        return self._mix(self.topology, leaves)

    def reduce(self, rows: Rows, merge: Merge) -> Vector:
        """Return what every worker ends with, which is the same for all."""
        if self.route is None:
            raise UndriftError("comm.reduce needs a route; pass allreduce='ring'.")
        call, self.reductions = self.reductions, self.reductions + 1
        vectors = [row for group in rows for row in group.unbind()]
        return self._reduce(vectors, merge, self.route, call)

    def _all_reduce(self, vectors: list[Vector], merge: Merge, route: Route, call: int) -> Reduced:
        return all_reduce(
            self._transport,
            {node: [vector] for node, vector in zip(self.nodes, vectors, strict=True)},
            merge,
            route,
            [self._draws(call)],
            blocks=self._blocks,
            label=f"round {self.t + 1}, all-reduce {call} by {merge}",
            traffic=self.traffic,
        )

    def _draws(self, call: int) -> Draws:
        """Return the makers of generators of one all-reduce, the same in any process."""

        def rng(purpose: str, *place: int) -> np.random.Generator:
            return keyed.generator(self.seed, f"allreduce/{purpose}", self.t, call, *place)

        return rng

    def _find_not_finite(self, rows: Rows) -> list[int]:
        finite = torch.cat([tree.finite_rows(group) for group in rows]).tolist()
        return [node for node, fine in zip(self.nodes, finite, strict=True) if not fine]


def weighted_sums(W: Tensor, flats: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """Return W times the rows of all `flats`, as tensors of so many rows each.

    The product is made block by block of columns, so that the rows are never copied all at once.
    """
    columns = flats[0].shape[1]
    products = [flats[0].new_empty(count, columns) for count in counts]
    width = max(1, BLOCK // sum(len(flat) for flat in flats))
    for start in range(0, columns, width):
        block = slice(start, start + width)
        product = W @ torch.cat([flat[:, block] for flat in flats])
        for out, part in zip(products, torch.split(product, list(counts)), strict=True):
            out[:, block] = part
    return products


class _Collective(torch.autograd.Function):
    """Calls a function of all nodes' rows inside `vmap`; its batching rule sees the whole stack."""

    @staticmethod
    def forward(call: Callable[[list[Tensor]], list[Tensor]], *leaves: Tensor) -> Any:
        """Return the answer for one node outside of `vmap`."""
        return tuple(new[0] for new in call([leaf[None] for leaf in leaves]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing, since no gradient passes through a collective."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Any, *leaves: Tensor) -> Any:
        """Return the answers for a whole stack of nodes."""
        rows = [
            leaf.expand(info.batch_size, *leaf.shape) if dim is None else leaf.movedim(dim, 0)
            for leaf, dim in zip(leaves, in_dims[1:], strict=True)
        ]
        return tuple(call(rows)), (0,) * len(rows)


Collective = Callable[[Sequence[Rows]], list[Rows]]  # of all nodes' leaves
Ask = Callable[[Collective, list[Tensor]], list[Tensor]]


def carry_out_at_once(collective: Collective, rows: list[Tensor]) -> list[Tensor]:
    """Return the collective of a group that has no other group to wait for."""
    return [some for (some,) in collective([[leaf] for leaf in rows])]


@dataclass(frozen=True)
class PeerComm:
    """Is the `Comm` of some nodes and takes their rows to `exchange`.

    `ask(collective, rows)` joins the rows of these nodes with all others', calls the collective
    and returns the rows of these nodes.
    """

    exchange: Exchange
    ask: Ask

    @property
    def size(self) -> int:
        """Return the number of peers."""
        return self.exchange.size

    def mix(self, tree_: T) -> T:
        """Return sum_j W_ij v_j over the neighbours j and i itself, leaf by leaf."""

        def call(rows: list[Tensor]) -> list[Tensor]:
            return self.ask(self.exchange.mix, rows)

        leaves = tree.leaves(tree_)
        _require_tensors("mix", leaves)
        mixed = _Collective.apply(call, *leaves)  # type: ignore[no-untyped-call]
        return tree.with_leaves(tree_, list(mixed))

    def reduce(self, v: Vector, how: Merge) -> Vector:
        """Return the result of an all-reduce over all peers."""

        def reduce(leaves: Sequence[Rows]) -> list[Rows]:
            result = self.exchange.reduce(leaves[0], how)
            return [[result.expand(len(group), -1) for group in leaves[0]]]

        def call(rows: list[Tensor]) -> list[Tensor]:
            return self.ask(reduce, rows)

        _require_tensors("reduce", [v])
        result: Vector
        (result,) = _Collective.apply(call, v)  # type: ignore[no-untyped-call]
        return result


def _require_tensors(verb: str, leaves: Sequence[object]) -> None:
    """Raise a TypeError for what is no tensor, before anybody waits for it."""
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise TypeError(f"comm.{verb} inside a step needs tensors, got {type(leaf).__name__}")
