"""The state machine of an all-reduce: which share or result a worker holds of which piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift import keyed, tree
from undrift.comm.routes import Piece
from undrift.core import Merge, Vector
from undrift.engine.collectives.schedule import LONG, Hop, Message, MessagePart

# (purpose, worker, first coordinate, counts ...) -> the generator of one operation
Draws = Callable[..., np.random.Generator]
_Place = tuple[int, int, Piece]  # worker, vector, piece
_UNUSED = keyed.generator(0, "unused")  # for operations that draw nothing


class LocalShare(NamedTuple):
    """Holds a share that goes to a worker of the same rank as it is."""

    share: Any
    nbytes: int  # that it would take


class Reduction:
    """Holds the shares and results of one rank's workers during an all-reduce."""

    def __init__(
        self,
        workers: int,
        vectors: Mapping[int, Sequence[Vector]],
        merge: Merge,
        draws: Sequence[Draws],
    ) -> None:
        # One more than a worker whose vectors are not finite, or zero; it travels with messages.
        self.flag = 0
        self.not_finite: set[int] = set()  # of this rank's workers
        self._workers, self._vectors, self._merge = workers, vectors, merge
        self._draws, self._drawing = draws, merge.draws
        self._first = min(vectors)  # the worker whose result is decoded; all results are the same
        self.like = vectors[self._first]
        self._finite: dict[tuple[int, int], bool] = {}  # whether a worker's short vector is
        self._shares: dict[_Place, Any] = {}  # made when first needed
        self._prepared: dict[_Place, Any] = {}
        self._encoded: dict[_Place, Tensor] = {}  # results
        self._undecoded: list[tuple[int, Piece]] = []  # results of the first worker
        self._results = [_room(vector) for vector in self.like]
        self._decoded = False  # whether any result has been

    def encode(self, hop: Hop, message: Message) -> list[Tensor]:
        """Return the bytes of the message's parts."""
        encode = self._encode_share if hop.merging else self._encode_result
        return [encode(message.sender, part) for part in message.parts]

    def hand_over(self, hop: Hop, message: Message) -> list[Tensor | LocalShare]:
        """Return the message's parts for a worker of this rank, as bytes or as shares."""
        return [self._hand_over(hop, message.sender, part) for part in message.parts]

    def _hand_over(self, hop: Hop, worker: int, part: MessagePart) -> Tensor | LocalShare:
        if not hop.merging:
            return self._encode_result(worker, part)
        place = worker, part.vector, part.piece
        share = self._share(place)
        nbytes = self._merge.sent_bytes(share, part.stands_for)
        if nbytes is None:
            return self._encode_share(worker, part)
        del self._shares[place]
        return LocalShare(share, nbytes)

    def _encode_share(self, worker: int, part: MessagePart) -> Tensor:
        place = worker, part.vector, part.piece
        rng = self._rng("send", place, part.stands_for)
        share = self._share(place)
        del self._shares[place]  # a route sends a share once
        return self._merge.send(share, part.stands_for, rng)

    def _encode_result(self, worker: int, part: MessagePart) -> Tensor:
        return self._result((worker, part.vector, part.piece))

    def _result(self, place: _Place) -> Tensor:
        if place not in self._encoded:
            rng = self._rng("close", place)
            data = self._merge.encode_result(self._share(place), self._workers, rng)
            del self._shares[place]
            self._keep_result(place, data)
        return self._encoded[place]

    def prepare(self, hop: Hop) -> None:
        """Do all that can be done while the messages of a hop are on their way."""
        self._decode_results()
        if not hop.merging:
            return
        seen: set[_Place] = set()
        for message in hop.comes:
            for part in message.parts:
                place = message.receiver, part.vector, part.piece
                # Only the first share for a place is merged into the share that is held now.
                if part.before and place not in seen:
                    self._prepared[place] = self._prepare(place, part)
                seen.add(place)

    def _prepare(self, place: _Place, part: MessagePart) -> Any:
        rng = self._rng("merge", place, part.stands_for, part.before)
        return self._merge.prepare(part.stands_for, self._share(place), part.before, rng)

    def accept(self, hop: Hop, worker: int, part: MessagePart, data: Tensor | LocalShare) -> None:
        """Merge a share that has come, or keep a result that has come."""
        place = worker, part.vector, part.piece
        if isinstance(data, LocalShare):
            share = data.share
        elif hop.merging:
            share = self._merge.receive(data, part.stands_for, self._like(part))
        else:
            self._keep_result(place, data)
            return
        if part.before:
            early = place in self._prepared
            prepared = self._prepared.pop(place) if early else self._prepare(place, part)
            own = self._share(place)
            share = self._merge.merge(share, part.stands_for, own, part.before, prepared)
        self._shares[place] = share  # a server, which has no vector, keeps the first that comes

    def length(self, hop: Hop, part: MessagePart) -> int | None:
        """Return how many bytes the part has, or None if that depends on its values."""
        count = part.stands_for if hop.merging else self._workers
        return self._merge.nbytes(self._like(part), count, result=not hop.merging)

    def finish(self) -> None:
        """Decode the results of pieces that are needed in no later hop, and drop their bytes."""
        self._decode_results()
        self._encoded.clear()

    def results(self) -> list[Vector]:
        """Return the decoded results."""
        if self._workers == 1 and not self._decoded:  # a route without hops
            for v, vector in enumerate(self.like):
                self._result((self._first, v, Piece(0, len(vector))))
        self._decode_results()
        return self._results

    def _like(self, part: MessagePart) -> Vector:
        return self.like[part.vector][slice(*part.piece)]

    def _rng(self, purpose: str, place: _Place, *counts: int) -> np.random.Generator:
        if purpose not in self._drawing:  # making a generator takes longer than a small merge
            return _UNUSED
        worker, v, piece = place
        return self._draws[v](purpose, worker, piece.start, *counts)

    def _share(self, place: _Place) -> Any:
        share = self._shares.get(place)
        if share is None:
            share = self._shares[place] = self._start(place)
        return share

    def _start(self, place: _Place) -> Any:
        worker, v, piece = place
        vector = self._vectors[worker][v]
        own, rng = vector[slice(*piece)], self._rng("start", place)
        if len(vector) > LONG:  # whose pieces are checked while they are in the cache
            share = self._merge.start_if_finite(own, rng)
            if share is not None:
                return share
        elif self._is_finite(worker, v):
            return self._merge.start(own, rng)
        self.not_finite.add(worker)
        self.flag = max(self.flag, worker + 1)
        # Other ranks wait for messages, so zeros travel: no merge could encode the values.
        return self._merge.start(torch.zeros_like(own), self._rng("start", place))

    def _is_finite(self, worker: int, v: int) -> bool:
        known = self._finite.get((worker, v))
        if known is None:
            known = self._finite[worker, v] = tree.is_finite(self._vectors[worker][v])
        return known

    def _keep_result(self, place: _Place, data: Tensor) -> None:
        self._encoded[place] = data
        worker, v, piece = place
        if worker == self._first:
            self._undecoded.append((v, piece))

    def _decode_results(self) -> None:
        for v, piece in self._undecoded:
            data = self._encoded[self._first, v, piece]
            out = self._results[v][slice(*piece)]
            self._merge.decode_result_into(out, data, self._workers)
            self._decoded = True
        self._undecoded.clear()


def _room(like: Vector) -> Vector:
    """Return memory for a result, in NumPy's huge pages: small pages cost as much as filling."""
    if like.device.type != "cpu":
        return torch.empty_like(like)
    return torch.from_numpy(np.empty(like.nbytes, np.uint8)).view(like.dtype)
