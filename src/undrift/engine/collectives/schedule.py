"""A route's schedule, cut down to what one rank has to do.

Workers 0, ..., M - 1 are spread over the ranks in blocks. Which share stands for how many workers
follows from the schedule alone, so every rank knows beforehand what will come to it, and a route
that would lose or repeat a share is refused before anything is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from undrift.comm.routes import Piece, Route, Step
from undrift.engine.world import RankBlocks
from undrift.errors import UndriftError


class Part(NamedTuple):
    vector: int  # which of the vectors that travel together
    piece: Piece
    stands_for: int  # workers that the share sent stands for
    before: int  # workers that the receiver's own share stands for when this one is merged


class Message(NamedTuple):
    sender: int
    receiver: int
    parts: tuple[Part, ...]


class Hop(NamedTuple):
    merging: bool
    sends: list[Message]  # by workers of this rank
    comes: list[Message]  # to workers of this rank, in the order in which they are merged


@lru_cache(maxsize=64)
def rank_schedule(
    route: Route, workers: int, sizes: tuple[int, ...], ranks: int, rank: int
) -> list[Hop]:
    """A route's schedule for vectors of these sizes, cut down to what one rank has to do."""
    blocks = RankBlocks(workers, ranks)
    progress = _Progress()
    hops = []
    for together in zip_longest(*(route.steps(workers, size) for size in sizes)):
        steps = [step for step in together if step is not None]
        if len(steps) < len(together) or len({step.merging for step in steps}) > 1:
            raise UndriftError(
                f"Vectors of several sizes need a route with as many steps for each, got {route}; "
                "use a ring, a torus or a tree."
            )
        hops.append(_cut_down(steps, workers, blocks, rank, progress))
    for worker in blocks.of(rank) if hops else ():
        for v, size in enumerate(sizes):
            held = {p for w, u, p in progress.complete if (w, u) == (worker, v)}
            covered = sum(piece.stop - piece.start for piece in held)
            if covered != size:
                raise UndriftError(
                    f"A route needs to bring all {size} coordinates to every worker, got {covered} "
                    f"for worker {worker} of {route}."
                )
    return hops


@dataclass
class _Progress:
    """How far a route has come, for (worker, vector, piece)."""

    counts: dict[tuple[int, int, Piece], int] = field(default_factory=dict)  # where not one
    sent: set[tuple[int, int, Piece]] = field(default_factory=set)
    complete: set[tuple[int, int, Piece]] = field(default_factory=set)


def _cut_down(
    steps: list[Step],
    workers: int,
    blocks: RankBlocks,
    rank: int,
    progress: _Progress,
) -> Hop:
    merging = steps[0].merging
    messages: dict[tuple[int, int], list[Part]] = {}

    def count(worker: int, v: int, piece: Piece) -> int:
        return progress.counts.get((worker, v, piece), 0 if worker == workers else 1)

    alive = [
        (v, send)
        for v, step in enumerate(steps)
        for send in step.sends
        if send.piece.stop > send.piece.start
    ]
    leaving = [count(send.sender, v, send.piece) for v, send in alive]
    for (v, send), stands_for in zip(alive, leaving, strict=True):
        sender, receiver, piece = send
        before = count(receiver, v, piece)
        if merging:
            if (sender, v, piece) in progress.sent:
                raise UndriftError(f"A route needs to send a share once, got {send} twice.")
            progress.sent.add((sender, v, piece))
            progress.counts[receiver, v, piece] = stands_for + before
        else:
            if stands_for != workers:
                raise UndriftError(
                    f"A route needs to merge all {workers} workers before it copies, got "
                    f"{stands_for} in {piece}."
                )
            progress.complete |= {(sender, v, piece), (receiver, v, piece)}
            progress.counts[receiver, v, piece] = workers
        if rank in (blocks.owner(sender), blocks.owner(receiver)):
            parts = messages.setdefault((sender, receiver), [])
            parts.append(Part(v, piece, stands_for, before))
    whole = [Message(*ends, tuple(parts)) for ends, parts in messages.items()]
    return Hop(
        merging,
        [message for message in whole if blocks.owner(message.sender) == rank],
        [message for message in whole if blocks.owner(message.receiver) == rank],
    )
