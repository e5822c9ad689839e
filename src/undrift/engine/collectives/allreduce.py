"""All-reduce over a route, for workers in one process and in several.

A rank runs the state machine of `Reduction` for all of its workers. In every hop the messages to
other ranks are on their way while the rank draws the random words that its merges will need and
decodes the results that came before, so that only the merge itself, a few bit operations, waits for
the link. Messages between workers of one rank stay in memory; a single rank has no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from undrift.comm.routes import Route
from undrift.core import Merge, Vector
from undrift.engine.collectives.reduction import Draws, LocalShare, Reduction
from undrift.engine.collectives.schedule import Hop, Message, local_schedule, rank_schedule
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.processes.transport import Incoming, Outgoing, Received
from undrift.engine.world import RankBlocks


class Pending(Protocol):
    """Waits for messages that are on their way."""

    def wait(self) -> list[Received]:
        """Return the messages for this rank once all of them have come."""
        ...


class MessageTransport(Protocol):
    """Brings messages from rank to rank; `Transport` does it between processes."""

    @property
    def rank(self) -> int:
        """Return the number of this rank."""
        ...

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        ...

    def exchange(
        self, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming], flag: int = 0
    ) -> Pending:
        """Start to send and to receive, and return at once."""
        ...


class Reduced(NamedTuple):
    """Holds the outcome of an all-reduce, which is void if a worker's vectors are not finite."""

    vectors: list[Vector]
    # The workers whose vectors are not finite: a single rank names all of them, several ranks name
    # one each, so that a caller who wants all of them lets the ranks exchange their own.
    not_finite: list[int]


def all_reduce(
    transport: MessageTransport,
    vectors: Mapping[int, Sequence[Vector]],
    merge: Merge,
    route: Route,
    draws: Sequence[Draws],
    *,
    blocks: RankBlocks | None = None,
    label: str = "all-reduce",
    traffic: Traffic | None = None,
) -> Reduced:
    """Reduce over all workers; every rank calls with the vectors of its own workers.

    `vectors` maps each worker of this rank, as `blocks` has them or else one for each rank, to its
    vectors, which have the same shapes everywhere. They travel together and are reduced one by one,
    so that the result does not depend on which vectors travel together. `draws[v]` makes the
    generators of the operations on vector v.
    """
    blocks = RankBlocks(transport.size, transport.size) if blocks is None else blocks
    reduction = Reduction(blocks.workers, vectors, merge, draws)
    sizes = tuple(len(vector) for vector in reduction.like)
    steps = 0
    for hops in _schedule(transport, route, blocks, sizes):
        for hop in hops:
            _run_hop(transport, reduction, hop, f"{label}, hop {hop.number}", traffic)
            steps = max(steps, hop.number + 1)
        reduction.finish()
    if traffic is not None:
        traffic.hops += steps
    results = reduction.results()
    if transport.size == 1:
        return Reduced(results, sorted(reduction.not_finite))
    return Reduced(results, [reduction.flag - 1] if reduction.flag else [])


def _schedule(
    transport: MessageTransport, route: Route, blocks: RankBlocks, sizes: tuple[int, ...]
) -> Iterable[Iterable[Hop]]:
    """Return hops in groups that do not depend on each other; ranks have to keep step in one."""
    if transport.size == 1:
        return local_schedule(route, blocks.workers, sizes)
    return [rank_schedule(route, blocks, sizes, transport.rank)]


def _run_hop(
    transport: MessageTransport,
    reduction: Reduction,
    hop: Hop,
    label: str,
    traffic: Traffic | None,
) -> None:
    local: dict[tuple[int, int], list[Tensor | LocalShare]] = {}
    outgoing: list[Outgoing] = []
    for message in hop.sends:
        if message.receiver_rank == transport.rank:
            kept = local[message.sender, message.receiver] = reduction.hand_over(hop, message)
            _count(traffic, message, [each.nbytes for each in kept])
        else:
            buffers = reduction.encode(hop, message)
            _count(traffic, message, [each.nbytes for each in buffers])
            outgoing += _outgoing(reduction, hop, message, buffers, label)
    incoming: list[Incoming] = []
    for message in hop.comes:
        if message.sender_rank != transport.rank:
            incoming += _incoming(reduction, hop, message, label)
    pending = transport.exchange(outgoing, incoming, reduction.flag)
    reduction.prepare(hop)
    received = iter(pending.wait())
    for message in hop.comes:
        came: Sequence[Tensor | LocalShare]
        if message.sender_rank == transport.rank:
            came = local.pop((message.sender, message.receiver))
        else:
            came = _buffers(reduction, hop, message, received)
        for part, data in zip(message.parts, came, strict=True):
            reduction.accept(hop, message.receiver, part, data)


def _count(traffic: Traffic | None, message: Message, nbytes: Sequence[int]) -> None:
    """Count the bytes of a message's parts."""
    if traffic is None:
        return
    for part, size in zip(message.parts, nbytes, strict=True):
        width = part.piece.stop - part.piece.start
        traffic.add(message.sender, message.receiver, size, width)


def _label(label: str, message: Message) -> str:
    return f"{label}, worker {message.sender} to {message.receiver}"


def _outgoing(
    reduction: Reduction, hop: Hop, message: Message, buffers: list[Tensor], label: str
) -> list[Outgoing]:
    """Return one message to another rank, or one for each part if lengths are not known before."""
    rank, label = message.receiver_rank, _label(label, message)
    if any(reduction.length(hop, part) is None for part in message.parts):
        return [Outgoing(rank, label, data) for data in buffers]
    return [Outgoing(rank, label, buffers[0] if len(buffers) == 1 else torch.cat(buffers))]


def _incoming(reduction: Reduction, hop: Hop, message: Message, label: str) -> list[Incoming]:
    """Return what `_outgoing` sends, as its receiver expects it."""
    rank, label = message.sender_rank, _label(label, message)
    lengths = [reduction.length(hop, part) for part in message.parts]
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        return [Incoming(rank, label, None) for _ in lengths]
    return [Incoming(rank, label, sum(known))]


def _buffers(
    reduction: Reduction, hop: Hop, message: Message, received: Iterator[Received]
) -> list[Tensor]:
    """Return the bytes of the message's parts, read from the next of the received messages."""
    lengths = [reduction.length(hop, part) for part in message.parts]
    known = [length for length in lengths if length is not None]
    count = 1 if len(known) == len(lengths) else len(lengths)
    messages = [next(received) for _ in range(count)]
    # The flag goes on with every later message, so that it reaches all ranks as the pieces do.
    reduction.flag = max(reduction.flag, *(each.flag for each in messages))
    if len(messages) == len(lengths):
        return [each.data for each in messages]
    # The parts are copied, because a part may begin at an address where no float can.
    return [part.clone() for part in torch.split(messages[0].data, known)]
