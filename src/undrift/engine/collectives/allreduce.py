"""All-reduce between processes: the schedules and merges of the simulator, over real links.

In every hop the messages are on their way while this rank packs its own share of what is coming,
draws the random words the merge will need, and unpacks what came before; so that only the merge
itself, a few bit operations, waits for the link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift import keyed, tree
from undrift.comm.routes import Piece, Route
from undrift.core import Merge, Vector
from undrift.engine.collectives.inprocess import Traffic
from undrift.engine.collectives.schedule import Hop, Message, Part, RankBlocks, rank_schedule
from undrift.engine.processes.transport import Incoming, Outgoing, Received, Transport

Draws = Callable[
    ..., np.random.Generator
]  # (purpose, worker, start, ...) -> a generator of its own


def all_reduce(
    post: Transport,
    mine: Mapping[int, Sequence[Vector]],
    how: Merge,
    route: Route,
    draws: Sequence[Draws],
    *,
    workers: int | None = None,
    label: str = "all-reduce",
    traffic: Traffic | None = None,
) -> tuple[list[Vector], int | None]:
    """Reduce over all workers; every rank calls, with the vectors of its own workers.

    `mine` maps each worker of this rank (`RankBlocks`; one a rank unless `workers` says more) to
    its vectors, of the same shapes everywhere. They travel together and are reduced one by one, so
    that the result does not depend on which go together; `draws[v](purpose, worker, start, ...)`
    makes the generator of one operation on vector v. Returns the results and a worker whose vectors are
    not finite, if there is one: all ranks learn the same of it.
    """
    workers = post.size if workers is None else workers
    like = next(iter(mine.values()))
    sizes = tuple(len(vector) for vector in like)
    hops = rank_schedule(route, workers, sizes, post.size, post.rank)
    bad = [worker for worker, own in mine.items() if not _finite(own)]
    # They need not be sendable, and the result of all is void.
    sendable = {
        worker: [torch.zeros_like(v) for v in own] if worker in bad else own
        for worker, own in mine.items()
    }
    state = _Reduction(workers, sendable, how, draws, flag=min(bad, default=-1) + 1)
    if not hops:  # a worker alone
        for v, size in enumerate(sizes):
            state.close(0, v, Piece(0, size))
    for number, hop in enumerate(hops):
        out = [[state.outgoing(hop, m.sender, part) for part in m.parts] for m in hop.sends]
        here: dict[tuple[int, int], list[Tensor]] = {}
        letters, expected = [], []
        for message, datas in zip(hop.sends, out, strict=True):
            if traffic is not None:
                for part, data in zip(message.parts, datas, strict=True):
                    width = part.piece.stop - part.piece.start
                    traffic.carry(message.sender, message.receiver, len(data), width)
            rank = RankBlocks(workers, post.size).owner(message.receiver)
            if rank == post.rank:
                here[message.sender, message.receiver] = datas
            else:
                letters += _letters(rank, f"{label}, hop {number}", message, datas, hop, state)
        for message in hop.comes:
            rank = RankBlocks(workers, post.size).owner(message.sender)
            if rank != post.rank:
                expected += _expectations(rank, f"{label}, hop {number}", message, hop, state)
        transit = post.exchange(letters, expected, state.flag)
        state.prepare(hop)
        came = iter(transit.wait())
        for message in hop.comes:
            datas = here.get((message.sender, message.receiver)) or _open(came, message, hop, state)
            for part, data in zip(message.parts, datas, strict=True):
                state.incoming(hop, message.receiver, part, data)
        if traffic is not None:
            traffic.hops += 1
    return state.results(), (state.flag - 1 if state.flag else None)


class _Reduction:
    """The shares and finished pieces of this rank's workers on their way through an all-reduce."""

    def __init__(
        self,
        workers: int,
        mine: Mapping[int, Sequence[Vector]],
        how: Merge,
        draws: Sequence[Draws],
        flag: int,
    ) -> None:
        self.workers, self.mine, self.how, self.flag = workers, mine, how, flag
        self._draws = draws
        self._first = min(mine)  # whose result this rank keeps; all workers' are the same
        self.like = mine[self._first]
        self._shares: dict[tuple[int, int, Piece], Any] = {}
        self._ready: dict[tuple[int, int, Piece], Any] = {}
        self._done: dict[tuple[int, int, Piece], Tensor] = {}
        self._unread: list[tuple[int, Piece]] = []  # finished pieces not yet unpacked
        self._results = [_room(vector) for vector in self.like]

    def _rng(self, vector: int, purpose: str, *place: int) -> np.random.Generator:
        if purpose not in self.how.draws:
            return _UNUSED
        return self._draws[vector](purpose, *place)

    def _share(self, worker: int, v: int, piece: Piece) -> Any:
        if (worker, v, piece) not in self._shares:
            own = self.mine[worker][v][slice(*piece)]
            rng = self._rng(v, "start", worker, piece.start)
            self._shares[worker, v, piece] = self.how.start(own, rng)
        return self._shares[worker, v, piece]

    def outgoing(self, hop: Hop, worker: int, part: Part) -> Tensor:
        v, piece = part.vector, part.piece
        if not hop.merging:
            return self.close(worker, v, piece)
        share = self._share(worker, v, piece)
        del self._shares[worker, v, piece]  # it is sent once
        rng = self._rng(v, "send", worker, piece.start, part.stands_for)
        return self.how.send(share, part.stands_for, rng)

    def close(self, worker: int, v: int, piece: Piece) -> Tensor:
        if (worker, v, piece) not in self._done:
            share = self._share(worker, v, piece)
            rng = self._rng(v, "close", worker, piece.start)
            self._finish(worker, v, piece, self.how.close(share, self.workers, rng))
        return self._done[worker, v, piece]

    def prepare(self, hop: Hop) -> None:
        """What can be done while the messages of a hop are on their way."""
        self._unpack()
        if not hop.merging:
            return
        seen: set[tuple[int, int, Piece]] = set()
        for message in hop.comes:
            for part in message.parts:
                place = message.receiver, part.vector, part.piece
                # Of several shares for one place only the first meets the share that is there now.
                if part.before and place not in seen:
                    self._ready[place] = self._ahead(message.receiver, part)
                seen.add(place)

    def _ahead(self, worker: int, part: Part) -> Any:
        v, piece = part.vector, part.piece
        rng = self._rng(v, "merge", worker, piece.start, part.stands_for, part.before)
        return self.how.ahead(part.stands_for, self._share(worker, v, piece), part.before, rng)

    def incoming(self, hop: Hop, worker: int, part: Part, data: Tensor) -> None:
        v, piece = part.vector, part.piece
        place = worker, v, piece
        if not hop.merging:
            self._finish(worker, v, piece, data)
            return
        came = self.how.receive(data, part.stands_for, self.like[v][slice(*piece)])
        if not part.before:  # a server has no vector of its own
            self._shares[place] = came
            return
        ready = self._ready.pop(place) if place in self._ready else self._ahead(worker, part)
        own = self._share(worker, v, piece)
        self._shares[place] = self.how.merge(came, part.stands_for, own, part.before, ready)

    def _finish(self, worker: int, v: int, piece: Piece, data: Tensor) -> None:
        self._done[worker, v, piece] = data
        if worker == self._first:
            self._unread.append((v, piece))

    def _unpack(self) -> None:
        for v, piece in self._unread:
            data = self._done[self._first, v, piece]
            self.how.finish_into(self._results[v][slice(*piece)], data, self.workers)
        self._unread.clear()

    def results(self) -> list[Vector]:
        self._unpack()
        return self._results


def _room(like: Vector) -> Vector:
    """Memory for a result, in NumPy's huge pages: small ones cost as much as filling them."""
    if like.device.type != "cpu":
        return torch.empty_like(like)
    return torch.from_numpy(np.empty(like.nbytes, np.uint8)).view(like.dtype)


_UNUSED = keyed.generator(0, "unused")


def _finite(vectors: Sequence[Vector]) -> bool:
    return all(bool(tree.finite_rows(vector[None]).all()) for vector in vectors)


def _length(part: Part, hop: Hop, state: _Reduction) -> int | None:
    like = state.like[part.vector][slice(*part.piece)]
    count = part.stands_for if hop.merging else state.workers
    return state.how.nbytes(like, count, closed=not hop.merging)


def _label(label: str, message: Message) -> str:
    return f"{label}, worker {message.sender} to {message.receiver}"


def _letters(
    rank: int, label: str, message: Message, datas: list[Tensor], hop: Hop, state: _Reduction
) -> list[Outgoing]:
    """One letter, or one for each part where lengths are not known beforehand."""
    label = _label(label, message)
    if any(_length(part, hop, state) is None for part in message.parts):
        return [Outgoing(rank, label, data) for data in datas]
    return [Outgoing(rank, label, datas[0] if len(datas) == 1 else torch.cat(datas))]


def _expectations(
    rank: int, label: str, message: Message, hop: Hop, state: _Reduction
) -> list[Incoming]:
    lengths = [_length(part, hop, state) for part in message.parts]
    label = _label(label, message)
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        return [Incoming(rank, label, None) for _ in lengths]
    return [Incoming(rank, label, sum(known))]


def _open(came: Any, message: Message, hop: Hop, state: _Reduction) -> list[Tensor]:
    """The parts of the next message that came, one after another."""
    lengths = [_length(part, hop, state) for part in message.parts]
    known = [length for length in lengths if length is not None]
    arrived: list[Received] = [next(came) for _ in (lengths if len(known) < len(lengths) else [0])]
    # Whoever is not finite reaches everybody with the pieces.
    state.flag = max(state.flag, *(each.flag for each in arrived))
    if len(arrived) == len(lengths):
        return [each.data for each in arrived]
    # Clones, because a part may begin where no float can.
    return [part.clone() for part in torch.split(arrived[0].data, known)]
