"""A route's schedule, cut down to what one rank has to do.

Workers 0, ..., M - 1 are spread over the ranks in blocks. Which share stands for how many workers
follows from the schedule alone, so every rank knows beforehand which messages it will receive, and
a route that would lose or repeat a share is refused; between processes before anything is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from undrift.comm.routes import Piece, Route, Step
from undrift.engine.world import RankBlocks
from undrift.errors import UndriftError

MOST_CACHED = 256  # workers of one rank; a ring of M workers has 2 M (M - 1) messages
LONG = 2**17  # coordinates of a vector that does not stay in the processor's cache


class MessagePart(NamedTuple):
    """A part of a message is the share or the result of one piece of one vector."""

    vector: int  # which of the vectors that travel together
    piece: Piece
    stands_for: int  # workers that the share sent stands for
    before: int  # workers that the receiver's own share stands for when this one is merged


class Message(NamedTuple):
    """A message brings parts from one worker to another in one hop."""

    sender: int
    receiver: int
    sender_rank: int
    receiver_rank: int
    parts: tuple[MessagePart, ...]


class Hop(NamedTuple):
    """A hop holds the messages of one step of a route that concern one rank."""

    merging: bool
    sends: list[Message]  # by workers of this rank
    comes: list[Message]  # to workers of this rank, in the order in which they are merged
    number: int  # of the step on the route


def rank_schedule(
    route: Route, blocks: RankBlocks, sizes: tuple[int, ...], rank: int
) -> Iterable[Hop]:
    """Return the hops of one rank in an all-reduce of vectors of these sizes."""
    if blocks.ranks == 1 and blocks.workers > MOST_CACHED:
        return _hops(route, blocks, sizes, rank)  # which would take more memory than the vectors
    return _cached_hops(route, blocks, sizes, rank)


def local_schedule(route: Route, workers: int, sizes: tuple[int, ...]) -> Iterable[Iterable[Hop]]:
    """Return the hops of a single rank, of long vectors apart for each piece.

    Pieces do not depend on each other. One that is reduced from its first hop to its last stays in
    the cache, and its memory serves the next.
    """
    if workers > MOST_CACHED or max(sizes) <= LONG:
        return [rank_schedule(route, RankBlocks(workers, 1), sizes, 0)]
    return _cached_by_piece(route, workers, sizes)


@lru_cache(maxsize=64)
def _cached_by_piece(route: Route, workers: int, sizes: tuple[int, ...]) -> list[list[Hop]]:
    hops: dict[tuple[int, Piece], list[Hop]] = {}
    for hop in _hops(route, RankBlocks(workers, 1), sizes, 0):
        messages: dict[tuple[int, Piece], list[Message]] = {}
        for message in hop.sends:
            for part in message.parts:
                alone = message._replace(parts=(part,))
                messages.setdefault((part.vector, part.piece), []).append(alone)
        for place, own in messages.items():
            hops.setdefault(place, []).append(hop._replace(sends=own, comes=own))
    return list(hops.values())


@lru_cache(maxsize=64)
def _cached_hops(route: Route, blocks: RankBlocks, sizes: tuple[int, ...], rank: int) -> list[Hop]:
    return list(_hops(route, blocks, sizes, rank))


def _hops(route: Route, blocks: RankBlocks, sizes: tuple[int, ...], rank: int) -> Iterator[Hop]:
    workers = blocks.workers
    progress = _Progress(route, workers)
    hops = 0
    for together in zip_longest(*(route.steps(workers, size) for size in sizes)):
        steps = [step for step in together if step is not None]
        if len(steps) < len(together) or len({step.merging for step in steps}) > 1:
            raise UndriftError(
                f"Vectors of several sizes need a route with as many steps for each, got {route}; "
                "use a ring, a torus or a tree."
            )
        yield _hop(steps, blocks, rank, progress, hops)
        hops += 1
    if hops or workers > 1:  # a single worker may have no hops, since it has the result already
        progress.require_complete(blocks.of(rank), sizes)


@dataclass
class _Progress:
    """Follows the shares of (worker, vector, piece) along a route and refuses a bad route."""

    route: Route
    workers: int
    counts: dict[tuple[int, int, Piece], int] = field(default_factory=dict)  # where not one
    sent: set[tuple[int, int, Piece]] = field(default_factory=set)
    complete: set[tuple[int, int, Piece]] = field(default_factory=set)

    def count(self, worker: int, vector: int, piece: Piece) -> int:
        """Return how many workers the share stands for; a server begins without a share."""
        return self.counts.get((worker, vector, piece), 0 if worker == self.workers else 1)

    def merge(self, sender: int, receiver: int, vector: int, piece: Piece, stands_for: int) -> None:
        """Move a share into the receiver's."""
        if (sender, vector, piece) in self.sent:
            raise UndriftError(
                f"A route needs to send a share once, got {piece} of worker {sender} twice in "
                f"{self.route}."
            )
        self.sent.add((sender, vector, piece))
        self.counts[receiver, vector, piece] = stands_for + self.count(receiver, vector, piece)

    def copy(self, sender: int, receiver: int, vector: int, piece: Piece, stands_for: int) -> None:
        """Copy a result to the receiver."""
        if stands_for != self.workers:
            raise UndriftError(
                f"A route needs to merge all {self.workers} workers before it copies, got "
                f"{stands_for} in {piece} of {self.route}."
            )
        self.complete |= {(sender, vector, piece), (receiver, vector, piece)}
        self.counts[receiver, vector, piece] = self.workers

    def require_complete(self, own: range, sizes: tuple[int, ...]) -> None:
        """Refuse a route that does not bring the whole result to each of the workers in `own`."""
        covered: Counter[tuple[int, int]] = Counter()
        for worker, vector, piece in self.complete:
            covered[worker, vector] += piece.stop - piece.start
        for worker in own:
            for vector, size in enumerate(sizes):
                if covered[worker, vector] != size:
                    raise UndriftError(
                        f"A route needs to bring all {size} coordinates to every worker, got "
                        f"{covered[worker, vector]} for worker {worker} of {self.route}."
                    )


def _hop(steps: list[Step], blocks: RankBlocks, rank: int, progress: _Progress, number: int) -> Hop:
    """Return one step of each vector, cut down to the messages of one rank."""
    merging = steps[0].merging
    parts: dict[tuple[int, int], list[MessagePart]] = {}
    sends = [
        (vector, send, progress.count(send.sender, vector, send.piece))
        for vector, step in enumerate(steps)
        for send in step.sends
        if send.piece.stop > send.piece.start
    ]
    move = progress.merge if merging else progress.copy
    for vector, (sender, receiver, piece), stands_for in sends:
        before = progress.count(receiver, vector, piece)
        move(sender, receiver, vector, piece, stands_for)
        if rank in (blocks.owner(sender), blocks.owner(receiver)):
            part = MessagePart(vector, piece, stands_for, before)
            parts.setdefault((sender, receiver), []).append(part)
    messages = [
        Message(sender, receiver, blocks.owner(sender), blocks.owner(receiver), tuple(own))
        for (sender, receiver), own in parts.items()
    ]
    return Hop(
        merging,
        [message for message in messages if message.sender_rank == rank],
        [message for message in messages if message.receiver_rank == rank],
        number,
    )
