"""Messages between processes: point to point, each behind a header that says what it is.

A header is three 64-bit numbers: a hash of the message's label, which both ends must agree on, so
that processes that have lost step never take one message for another; the length of what follows;
and a flag that travels with it. Where the receiver knows the length, header and message are under
way at the same time; where it does not, it waits for the header first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from undrift.errors import UndriftError, WorkerError, first_line

HEADER = 24  # bytes in front of every message
LARGEST = 1 << 36  # bytes of a message; memory of this length is reserved and not yet taken


class Outgoing(NamedTuple):
    """Holds a message for another rank."""

    rank: int  # the receiver
    label: str
    data: Tensor  # uint8


class Incoming(NamedTuple):
    """Describes a message that another rank will send."""

    rank: int  # the sender
    label: str
    nbytes: int | None  # None if only the header says it


class Received(NamedTuple):
    """Holds a message that has come."""

    data: Tensor  # uint8
    flag: int


class LostError(WorkerError):
    """Is raised when a wait for one rank has failed."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"Rank {rank} did not answer: {reason}", ranks=[rank])


class _Operation(NamedTuple):
    """Describes a call of the backend that sends or receives one tensor."""

    operation: Any  # isend or irecv
    tensor: Tensor
    rank: int
    tag: int  # tells messages between the same two ranks apart, in whatever order they are awaited


class Transport:
    """Sends messages from this process to the others of a group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        chosen = dist.group.WORLD if group is None else group
        if chosen is None:
            raise UndriftError("Messages need a process group; call init_process_group first.")
        self._group: dist.ProcessGroup | None = chosen
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.sent = 0  # bytes handed to the backend, headers included

    @property
    def group(self) -> dist.ProcessGroup:
        """Return the group; raise if this process has left it."""
        if self._group is None:
            raise UndriftError("This process has left the others; start the run again.")
        return self._group

    def exchange(
        self, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming], flag: int = 0
    ) -> PendingMessages:
        """Start to send and to receive, and return while the messages are on their way."""
        return PendingMessages(self, outgoing, incoming, flag)

    def close(self) -> None:
        """Let go of the group, so that its connections can close."""
        self._group = None

    def peer(self, rank: int) -> int:
        """Return the number that the backend has for a rank of the group."""
        return dist.get_global_rank(self.group, rank)


class PendingMessages:
    """Holds messages that are on their way; `wait` returns when all have come and gone."""

    def __init__(
        self,
        transport: Transport,
        outgoing: Sequence[Outgoing],
        incoming: Sequence[Incoming],
        flag: int,
    ) -> None:
        self._transport, self._incoming = transport, incoming
        self._headers = [torch.empty(3, dtype=torch.int64) for _ in incoming]
        self._payloads: list[Tensor | None] = [
            None if each.nbytes is None else reserve(each.nbytes, each.label) for each in incoming
        ]
        self._in_use: list[Tensor] = []  # the backend reads or writes these until it has finished
        # Receives come before sends, because a sender waits for word that it may send.
        first, receives = self._receives()
        works = self._start([*first, *receives, *self._sends(outgoing, flag)])
        self._first, self._rest = works[: len(first)], works[len(first) :]

    def _receives(self) -> tuple[list[_Operation], list[_Operation]]:
        """Return the receives of headers that must be read first, and all other receives."""
        first: list[_Operation] = []
        rest: list[_Operation] = []
        counts: Counter[int] = Counter()
        self._tags = []  # of the payloads
        for each, header, payload in zip(
            self._incoming, self._headers, self._payloads, strict=True
        ):
            tag = 2 * counts[each.rank]
            receive_header = _Operation(dist.irecv, header, each.rank, tag)
            (first if payload is None else rest).append(receive_header)
            if payload is not None and len(payload):
                rest.append(_Operation(dist.irecv, payload, each.rank, tag + 1))
            self._tags.append(tag + 1)
            counts[each.rank] += 1
        return first, rest

    def _sends(self, outgoing: Sequence[Outgoing], flag: int) -> list[_Operation]:
        operations: list[_Operation] = []
        counts: Counter[int] = Counter()
        for rank, label, data in outgoing:
            tag = 2 * counts[rank]
            header = torch.tensor([_tag(label), len(data), flag])
            operations.append(_Operation(dist.isend, header, rank, tag))
            if len(data):
                operations.append(_Operation(dist.isend, data.contiguous(), rank, tag + 1))
            counts[rank] += 1
            self._transport.sent += HEADER + len(data)
        return operations

    def wait(self) -> list[Received]:
        """Return the messages for this rank once all messages have come and gone."""
        # Only headers that say a length are awaited first: a send may not end before its receiver
        # asks for it, and two ranks that awaited each other's sends would wait for ever.
        _finish(self._first)
        late: list[_Operation] = []
        for i, each in enumerate(self._incoming):
            if self._payloads[i] is None:
                self._payloads[i] = payload = reserve(self._length(i), each.label)
                if len(payload):
                    late.append(_Operation(dist.irecv, payload, each.rank, self._tags[i]))
        _finish([*self._start(late), *self._rest])
        received = []
        for i, data in enumerate(self._payloads):
            if data is None or self._length(i) != len(data):
                raise self._out_of_step(i)
            received.append(Received(data, int(self._headers[i][2])))
        return received

    def _length(self, i: int) -> int:
        """Return the length that a header says; raise if it is another message's header."""
        length = announced_length(self._headers[i].tolist(), self._incoming[i].label)
        if length is None:
            raise self._out_of_step(i)
        return length

    def _out_of_step(self, i: int) -> UndriftError:
        return UndriftError(
            "Processes need to send each other the same things in the same order, got another "
            f"message from rank {self._incoming[i].rank} than {self._incoming[i].label}; run the "
            "same program on all of them, and do not let a node's data decide what it asks."
        )

    def _start(self, operations: list[_Operation]) -> list[tuple[Any, int]]:
        """Start the operations and return the backend's handles, each with the rank it concerns."""
        if not operations:
            return []
        transport = self._transport
        self._in_use += [each.tensor for each in operations]
        ops = [
            dist.P2POp(
                each.operation,
                each.tensor,
                transport.peer(each.rank),
                transport.group,
                each.tag,
            )
            for each in operations
        ]
        ranks = [each.rank for each in operations]
        try:
            works = dist.batch_isend_irecv(ops)
        except RuntimeError as error:  # a connection that is known to be closed
            raise LostError(ranks[0], backend_message(error)) from error
        # A backend may return one handle for all operations.
        return list(zip(works, ranks if len(works) == len(ranks) else ranks[:1], strict=True))


def announced_length(header: Sequence[int], label: str) -> int | None:
    """Return the length that a header announces, or None if it is no header of this message."""
    tag, nbytes, _ = header
    return int(nbytes) if tag == _tag(label) and 0 <= nbytes <= LARGEST else None


def _finish(works: list[tuple[Any, int]]) -> None:
    for work, rank in works:
        try:
            work.wait()
        except RuntimeError as error:
            raise LostError(rank, backend_message(error)) from error


def reserve(nbytes: int, label: str) -> Tensor:
    """Return memory for a message, in NumPy's huge pages; raise if this machine has not so much."""
    try:  # Touching small pages costs as much as filling them.
        return torch.from_numpy(np.empty(nbytes, np.uint8))
    except MemoryError as error:
        raise UndriftError(
            f"A message needs to fit into memory, got {nbytes:,} bytes that were announced for "
            f"{label}; use a smaller model or fewer clients in a process."
        ) from error


def _tag(label: str) -> int:
    digest = hashlib.blake2b(label.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def backend_message(error: Exception) -> str:
    """Return the backend's message without the place in its source and further lines."""
    return first_line(error).split("] ", 1)[-1].split(". This is typically", 1)[0]
