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


class Outgoing(NamedTuple):
    rank: int  # to whom
    label: str
    data: Tensor  # uint8


class Incoming(NamedTuple):
    rank: int  # from whom
    label: str
    nbytes: int | None  # None: the header tells


class Received(NamedTuple):
    data: Tensor  # uint8
    flag: int


class LostError(WorkerError):
    """What a wait for one rank ended with."""

    def __init__(self, rank: int, reason: str) -> None:
        self.timed_out = "timed out" in reason.lower() or "timeout" in reason.lower()
        super().__init__(f"Rank {rank} did not answer: {reason}", ranks=[rank])


class _Operation(NamedTuple):
    operation: Any  # isend or irecv
    tensor: Tensor
    rank: int
    tag: int  # tells messages between the same two apart, whatever the order they are waited for


class Transport:
    """One process's way to the others of a group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        whole = dist.group.WORLD if group is None else group
        if whole is None:
            raise UndriftError("Messages need a process group; call init_process_group first.")
        self._held: dist.ProcessGroup | None = whole
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.sent = 0  # bytes handed to the backend, headers included

    @property
    def group(self) -> dist.ProcessGroup:
        if self._held is None:
            raise UndriftError("This process has left the others; start the run again.")
        return self._held

    def exchange(
        self, letters: Sequence[Outgoing], expected: Sequence[Incoming], flag: int = 0
    ) -> Exchange:
        """Send and receive; returns at once, while the messages are under way."""
        return Exchange(self, letters, expected, flag)

    def close(self) -> None:
        """Hold the group no longer, so that its connections can close."""
        self._held = None

    def peer(self, rank: int) -> int:
        """A rank of the group as the backend counts."""
        return dist.get_global_rank(self.group, rank)


class Exchange:
    """Messages under way; `wait` ends when all have come and gone."""

    def __init__(
        self, post: Transport, letters: Sequence[Outgoing], expected: Sequence[Incoming], flag: int
    ) -> None:
        self._post, self._expected = post, expected
        self._headers = [torch.empty(3, dtype=torch.int64) for _ in expected]
        self._payloads: list[Tensor | None] = [
            None if each.nbytes is None else _buffer(each.nbytes) for each in expected
        ]
        self._kept: list[Tensor] = []  # what the backend reads until it has been sent
        # Receives before sends: a peer that waits to be told that it may send is told sooner.
        first: list[_Operation] = []
        rest: list[_Operation] = []
        come: Counter[int] = Counter()
        self._tags = []
        for each, header, payload in zip(expected, self._headers, self._payloads, strict=True):
            tag = 2 * come[each.rank]
            (first if payload is None else rest).append(
                _Operation(dist.irecv, header, each.rank, tag)
            )
            if payload is not None and len(payload):
                rest.append(_Operation(dist.irecv, payload, each.rank, tag + 1))
            self._tags.append(tag + 1)
            come[each.rank] += 1
        sent: Counter[int] = Counter()
        for letter in letters:
            header = torch.tensor([_tag(letter.label), len(letter.data), flag])
            rest.append(_Operation(dist.isend, header, letter.rank, 2 * sent[letter.rank]))
            if len(letter.data):
                data, tag = letter.data.contiguous(), 2 * sent[letter.rank] + 1
                rest.append(_Operation(dist.isend, data, letter.rank, tag))
            sent[letter.rank] += 1
            post.sent += HEADER + len(letter.data)
        works = self._start([*first, *rest])
        self._first, self._rest = works[: len(first)], works[len(first) :]

    def wait(self) -> list[Received]:
        # Only the headers that tell a length: a send may not end before its receiver asks for it,
        # and two that waited for each other's sends would wait for ever.
        _finish(self._first)
        late: list[_Operation] = []
        for i, each in enumerate(self._expected):
            if self._payloads[i] is None:
                self._payloads[i] = payload = _buffer(self._length(i))
                if len(payload):
                    late.append(_Operation(dist.irecv, payload, each.rank, self._tags[i]))
        _finish([*self._start(late), *self._rest])
        arrived = []
        for i, came in enumerate(self._payloads):
            if came is None or self._length(i) != len(came):
                raise self._misled(i)
            arrived.append(Received(came, int(self._headers[i][2])))
        return arrived

    def _length(self, i: int) -> int:
        """What the header says, once it is sure to be the right one."""
        tag, nbytes, _ = self._headers[i].tolist()
        if tag != _tag(self._expected[i].label):
            raise self._misled(i)
        return int(nbytes)

    def _misled(self, i: int) -> UndriftError:
        return UndriftError(
            "Processes need to send each other the same things in the same order, got another "
            f"message from rank {self._expected[i].rank} than {self._expected[i].label}; run the "
            "same program on all of them, and do not let a node's data decide what it asks."
        )

    def _start(self, operations: list[_Operation]) -> list[tuple[Any, int]]:
        if not operations:
            return []
        post = self._post
        self._kept += [each.tensor for each in operations]
        ops = [
            dist.P2POp(each.operation, each.tensor, post.peer(each.rank), post.group, each.tag)
            for each in operations
        ]
        ranks = [each.rank for each in operations]
        try:
            works = dist.batch_isend_irecv(ops)
        except RuntimeError as error:  # a connection that is known to be closed
            raise LostError(ranks[0], plain_words(error)) from error
        # A backend may answer for all of them with one.
        return list(zip(works, ranks if len(works) == len(ranks) else ranks[:1], strict=True))


def _finish(works: list[tuple[Any, int]]) -> None:
    for work, rank in works:
        try:
            work.wait()
        except RuntimeError as error:
            raise LostError(rank, plain_words(error)) from error


def _buffer(nbytes: int) -> Tensor:
    """In NumPy's huge pages, where that is large; touching small ones costs as much as filling."""
    return torch.from_numpy(np.empty(nbytes, np.uint8))


def _tag(label: str) -> int:
    digest = hashlib.blake2b(label.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def plain_words(error: Exception) -> str:
    """The backend's own words, without the place in its source."""
    return first_line(error).split("] ", 1)[-1].split(". This is typically", 1)[0]
