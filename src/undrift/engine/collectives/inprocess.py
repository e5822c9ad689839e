"""What peers ask of each other, carried out on the rows of all of them, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift import keyed, tree
from undrift.comm.routes import Piece, Route
from undrift.core import Merge, Vector
from undrift.engine.world import World
from undrift.errors import DivergenceError, UndriftError
from undrift.topology import Topology

T = TypeVar("T")
Rows = Sequence[Tensor]  # consecutive nodes' rows; together (m, ...)
BLOCK = 2**22  # numbers that are worked on at once where all would be too many


class Traffic:
    """Bytes of the buffers that were handed over in a round, link by link."""

    def __init__(self, workers: int) -> None:
        self.links: NDArray[np.int64] = np.zeros((workers + 1, workers + 1), dtype=np.int64)
        self.hops = 0  # one after the other
        self.coordinates = 0  # numbers that those bytes stood for, message by message
        self.matching: list[float] = []

    def add_up(self, world: World) -> Traffic:
        """The traffic of all processes, each of which has counted what its own workers send."""
        if world.size == 1:
            return self
        total = Traffic(len(self.links) - 1)
        total.links = world.sum(torch.from_numpy(self.links)).numpy()
        total.coordinates = int(world.gather([self.coordinates]).sum())
        total.hops = self.hops
        return total

    def carry(self, sender: int, receiver: int, nbytes: int, coordinates: int) -> None:
        self.links[sender, receiver] += nbytes
        self.coordinates += coordinates

    @property
    def up(self) -> int:
        """Sent by the workers."""
        return int(self.links[:-1].sum())

    @property
    def down(self) -> int:
        """Sent by the server, where there is one."""
        return int(self.links[-1].sum())

    @property
    def per_worker(self) -> int:
        """Sent by the busiest worker."""
        return int(self.links[:-1].sum(1).max())

    @property
    def per_link(self) -> int:
        """Carried by the busiest link, one way."""
        return int(self.links.max())

    @property
    def bits(self) -> float | None:
        """Per coordinate and hop."""
        return 8 * (self.up + self.down) / self.coordinates if self.coordinates else None


@dataclass
class Exchange:
    """The collectives of one round, on everybody's rows at once."""

    size: int
    topology: Topology | None
    route: Route | None
    t: int
    seed: int
    traffic: Traffic
    reduced: int = field(default=0, init=False)  # all-reduces so far in this round
    bad: frozenset[int] = frozenset()  # here whoever is not finite is refused at once

    def mix(self, leaves: Sequence[Rows]) -> list[Rows]:
        topology = require_floats(self.topology, leaves)
        for rows in leaves:
            self._refuse_non_finite(rows)
        nbytes = sum(_row_bytes(rows) for rows in leaves)
        numbers = sum(rows[0][0].numel() for rows in leaves)
        senders, receivers = np.nonzero(topology.W - np.diag(np.diag(topology.W)))
        self.traffic.links[senders, receivers] += nbytes
        self.traffic.coordinates += numbers * len(senders)
        self.traffic.hops += bool(len(senders))
        return [mixed(topology, rows) for rows in leaves]

    def reduce(self, rows: Rows, how: Merge) -> Vector:
        """What every worker ends with, the same for all."""
        route = require_route(self.route)
        self._refuse_non_finite(rows)
        call, self.reduced = self.reduced, self.reduced + 1
        rng = drawing(self.seed, self.t, call)
        vectors = [row for some in rows for row in some.unbind()]
        result = all_reduce(vectors, how, route, rng, self.traffic)
        if how.lossy:
            self.traffic.matching.append(_matching(result, vectors))
        return result

    def _refuse_non_finite(self, rows: Rows) -> None:
        finite = torch.cat([tree.finite_rows(some) for some in rows])
        if not finite.all():
            raise DivergenceError.of((~finite).nonzero()[:, 0].tolist(), self.t + 1, "messages")


def require_floats(topology: Topology | None, leaves: Sequence[Rows]) -> Topology:
    """The links to mix over, unless there are none or what is to be mixed has no mean."""
    if topology is None:
        raise UndriftError("comm.mix needs links between the peers; pass topology=ring(m).")
    for rows in leaves:
        if not rows[0].is_floating_point():
            raise UndriftError(f"comm.mix needs floats, got a leaf of {rows[0].dtype}.")
    return topology


def require_route(route: Route | None) -> Route:
    if route is None:
        raise UndriftError("comm.reduce needs a route; pass allreduce='ring'.")
    return route


def drawing(seed: int, t: int, call: int) -> Callable[..., np.random.Generator]:
    """Generators of the all-reduce with this number in round t, the same in any process."""

    def rng(purpose: str, *place: int) -> np.random.Generator:
        return keyed.generator(seed, f"allreduce/{purpose}", t, call, *place)

    return rng


def _matching(result: Vector, vectors: Sequence[Vector]) -> float:
    """Share of the coordinates in which the result has the sign of the vectors' sum."""
    same = 0
    for start in range(0, len(result), BLOCK):  # no second copy of a large vector
        some = slice(start, start + BLOCK)
        total = vectors[0][some].clone()
        for vector in vectors[1:]:
            total += vector[some]
        same += int(((result[some] >= 0) == (total >= 0)).sum())
    return same / len(result)


_UNUSED = keyed.generator(0, "unused")


def all_reduce(
    vectors: Sequence[Vector],
    how: Merge,
    route: Route,
    generator: Callable[..., np.random.Generator],
    traffic: Traffic,
) -> Vector:
    """Every hop of the route with the bytes it would carry; the result of any worker.

    `generator(purpose, worker, start, ...)` makes the generator of one operation: the worker that
    does it, the piece's first coordinate, and how many workers the shares stand for.
    """

    def rng(purpose: str, *place: int) -> np.random.Generator:
        return generator(purpose, *place) if purpose in how.draws else _UNUSED

    workers, whole = len(vectors), vectors[0]
    shares: dict[tuple[int, Piece], tuple[Any, int]] = {}  # made when first needed
    done: list[dict[Piece, Tensor]] = [{} for _ in range(workers + 1)]

    def share(worker: int, piece: Piece) -> tuple[Any, int]:
        if (worker, piece) not in shares:
            own = vectors[worker][slice(*piece)]
            shares[worker, piece] = how.start(own, rng("start", worker, piece.start)), 1
        return shares[worker, piece]

    def message(sender: int, piece: Piece) -> tuple[Tensor, int]:
        held, count = share(sender, piece)
        return how.send(held, count, rng("send", sender, piece.start, count)), count

    def merge(receiver: int, piece: Piece, data: Tensor, count: int) -> None:
        came = how.receive(data, count, whole[slice(*piece)])
        if receiver == workers and (receiver, piece) not in shares:  # a server has no own vector
            shares[receiver, piece] = came, count
            return
        held, before = share(receiver, piece)
        draws = rng("merge", receiver, piece.start, count, before)
        ready = how.ahead(count, held, before, draws)
        shares[receiver, piece] = how.merge(came, count, held, before, ready), count + before

    def close(worker: int, piece: Piece) -> tuple[Tensor, int]:
        if piece not in done[worker]:
            held, count = share(worker, piece)
            if count != workers:
                raise UndriftError(
                    f"A route needs to merge all {workers} workers before it copies, got {count} "
                    f"in {piece} of {route}."
                )
            done[worker][piece] = how.close(held, count, rng("close", worker, piece.start))
        return done[worker][piece], workers

    for step in route.steps(workers, len(whole)):
        sends = [send for send in step.sends if send.piece.stop > send.piece.start]
        out = message if step.merging else close
        coming = [out(send.sender, send.piece) for send in sends]
        for send, (data, count) in zip(sends, coming, strict=True):
            size = send.piece.stop - send.piece.start
            traffic.carry(send.sender, send.receiver, len(data), size)
            if step.merging:
                merge(send.receiver, send.piece, data, count)
                if shares.pop((send.sender, send.piece), None) is None:
                    raise UndriftError(f"A route needs to send a share once, got {send} twice.")
            else:
                done[send.receiver][send.piece] = data
        traffic.hops += 1
    if not done[0]:  # a worker alone has no hops
        close(0, Piece(0, len(whole)))
    for worker, held in enumerate(done[:workers]):
        covered = sum(piece.stop - piece.start for piece in held)
        if covered != len(whole):
            raise UndriftError(
                f"A route needs to bring all {len(whole)} coordinates to every worker, got "
                f"{covered} for worker {worker} of {route}."
            )
    result = torch.empty_like(whole)
    for piece, data in done[0].items():
        how.finish_into(result[slice(*piece)], data, workers)
    return result


def _row_bytes(rows: Rows) -> int:
    return rows[0][0].numel() * rows[0].element_size()


def mixed(topology: Topology, rows: Rows) -> Rows:
    """W times the rows, block by block of columns where the rows are not one tensor already."""
    W = _matrix(topology, rows[0].dtype, rows[0].device)
    if len(rows) == 1:
        flat = rows[0].reshape(len(rows[0]), -1)
        return [(W @ flat).view(rows[0].shape)]
    flats = [some.reshape(len(some), -1) for some in rows]
    made = [torch.empty_like(some) for some in flats]
    width = max(1, BLOCK // topology.size)
    for start in range(0, flats[0].shape[1], width):
        columns = slice(start, start + width)
        block = W @ torch.cat([some[:, columns] for some in flats])
        for some, new in zip(made, torch.split(block, [len(some) for some in made]), strict=True):
            some[:, columns] = new
    return [some.view(old.shape) for some, old in zip(made, rows, strict=True)]


SPARSE = 0.07  # below this share of non-zero entries a sparse product is quicker


@lru_cache(maxsize=8)
def _matrix(topology: Topology, dtype: torch.dtype, device: torch.device) -> Tensor:
    W = torch.tensor(topology.W, dtype=dtype, device=device)
    if (W != 0).double().mean() >= SPARSE:
        return W
    return W.to_sparse()


class _Collective(torch.autograd.Function):
    """A function of all nodes' rows inside `vmap`: the batching rule hands it the whole stack."""

    @staticmethod
    def forward(call: Callable[[list[Tensor]], list[Tensor]], *leaves: Tensor) -> Any:
        return tuple(new[0] for new in call([leaf[None] for leaf in leaves]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Any, *leaves: Tensor) -> Any:
        rows = [
            leaf.expand(info.batch_size, *leaf.shape) if dim is None else leaf.movedim(dim, 0)
            for leaf, dim in zip(leaves, in_dims[1:], strict=True)
        ]
        return tuple(call(rows)), (0,) * len(rows)


class Collectives(Protocol):
    """What `Exchange` does in one process, and others may do between several."""

    @property
    def size(self) -> int: ...
    def mix(self, leaves: Sequence[Rows]) -> list[Rows]: ...
    def reduce(self, rows: Rows, how: Merge) -> Vector: ...


Collective = Callable[[Sequence[Rows]], list[Rows]]  # of all nodes' leaves
Ask = Callable[[Collective, list[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class PeerComm:
    """`ask(collective, rows)` brings the rows of some nodes to all others' and returns theirs."""

    exchange: Collectives
    ask: Ask

    @property
    def size(self) -> int:
        return self.exchange.size

    def mix(self, tree_: T) -> T:
        def call(rows: list[Tensor]) -> list[Tensor]:
            return self.ask(self.exchange.mix, rows)

        leaves = tree.leaves(tree_)
        mixed = _Collective.apply(call, *leaves)  # type: ignore[no-untyped-call]
        return tree.with_leaves(tree_, list(mixed))

    def reduce(self, v: Vector, how: Merge) -> Vector:
        def reduce(leaves: Sequence[Rows]) -> list[Rows]:
            result = self.exchange.reduce(leaves[0], how)
            return [[result.expand(len(some), -1) for some in leaves[0]]]

        def call(rows: list[Tensor]) -> list[Tensor]:
            return self.ask(reduce, rows)

        result: Vector
        (result,) = _Collective.apply(call, v)  # type: ignore[no-untyped-call]
        return result
