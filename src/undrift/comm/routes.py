"""Routes of an all-reduce: which worker sends which piece of the vector to whom, step by step.

A route is a schedule and knows nothing of what travels. In a merging step the receiver merges a
share that comes with its own share of the piece; in the copying steps after them the results of the
pieces spread.
All sends of a step happen at once.

ring             2(M-1) steps, 2(M-1)/M vectors a worker. Patarasuk and Yuan, JPDC 2009.
segmented ring   the vector in segments, each merged by a ring of its own, then one gathering ring;
                 smaller messages, more steps (Open MPI's ring_segmented).
torus X x Y      rings along rows, then along columns for the piece owned, then rows again: as much
                 traffic in 2(X-1) + 2(Y-1) steps. Mikami et al., arXiv:1811.05233.
tree             binomial: ceil(log2 M) steps up to worker 0 and as many down, whole vectors.
server           everybody to a server, which is worker number M, and back: 2 steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from undrift.check import is_whole, require, require_choice
from undrift.topology import near_square


class Piece(NamedTuple):
    """A piece of a vector has the coordinates start, ..., stop - 1."""

    start: int
    stop: int

    def split(self, parts: int) -> list[Piece]:
        """Return consecutive pieces whose sizes differ by at most one, the longer ones first."""
        size, longer = divmod(self.stop - self.start, parts)
        pieces, start = [], self.start
        for part in range(parts):
            stop = start + size + (part < longer)
            pieces.append(Piece(start, stop))
            start = stop
        return pieces


class Send(NamedTuple):
    """A worker sends its share or result of a piece to another worker."""

    sender: int
    receiver: int
    piece: Piece


class Step(NamedTuple):
    """All sends of a step happen at once."""

    merging: bool  # or copying
    sends: list[Send]


@runtime_checkable
class Route(Hashable, Protocol):
    """A route makes the schedule of an all-reduce."""

    def check(self, workers: int) -> None:
        """Refuse a number of workers that the route does not fit."""
        ...

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        """Yield the steps of an all-reduce of vectors with `size` coordinates."""
        ...


Chunks = list[list[Piece]]  # for each place of a ring, the pieces of its chunk
Places = Sequence[int]  # the workers of a ring in its order


def _scatter(rings: Sequence[Places], chunks: Sequence[Chunks]) -> Iterator[Step]:
    """Yield the steps of rings side by side that merge chunks; place i then owns chunk i + 1."""
    return _pass_on(rings, chunks, merging=True)


def _gather(rings: Sequence[Places], chunks: Sequence[Chunks]) -> Iterator[Step]:
    """Yield the steps of rings side by side that copy chunks, from where `_scatter` leaves them."""
    return _pass_on(rings, [_owned(cut) for cut in chunks], merging=False)


def _pass_on(rings: Sequence[Places], chunks: Sequence[Chunks], *, merging: bool) -> Iterator[Step]:
    n = len(rings[0])
    for s in range(n - 1):
        sends = [
            Send(ring[i], ring[(i + 1) % n], piece)
            for ring, cut in zip(rings, chunks, strict=True)
            for i in range(n)
            for piece in cut[(i - s) % n]
        ]
        yield Step(merging, sends)


def _owned(chunks: Chunks) -> Chunks:
    """Return the chunks by the place that owns them after `_scatter`."""
    return chunks[1:] + chunks[:1]


def _single(pieces: list[Piece]) -> Chunks:
    return [[piece] for piece in pieces]


@dataclass(frozen=True)
class Ring:
    """Every worker sends to the next one: 2(M-1) steps, each with a piece of every worker."""

    def check(self, workers: int) -> None:
        """Accept any number of workers."""

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        """Yield the steps of an all-reduce."""
        everybody, chunks = [range(workers)], [_single(Piece(0, size).split(workers))]
        yield from _scatter(everybody, chunks)
        yield from _gather(everybody, chunks)


@dataclass(frozen=True)
class SegmentedRing:
    """A ring merges the vector in segments of at most `segment` coordinates."""

    segment: int = 2**20

    def __post_init__(self) -> None:
        positive = is_whole(self.segment) and self.segment >= 1
        require(positive, "SegmentedRing", "segment >= 1, a whole number", self.segment)

    def check(self, workers: int) -> None:
        """Accept any number of workers."""

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        """Yield the steps of an all-reduce."""
        everybody = [range(workers)]
        segments = Piece(0, size).split(max(1, -(-size // self.segment)))
        cuts = [segment.split(workers) for segment in segments]
        for cut in cuts:
            yield from _scatter(everybody, [_single(cut)])
        yield from _gather(everybody, [[list(chunk) for chunk in zip(*cuts, strict=True)]])


@dataclass(frozen=True)
class Torus:
    """The torus has x workers in a row and y in a column; worker = row * x + place in the row."""

    x: int
    y: int

    def __post_init__(self) -> None:
        sides = is_whole(self.x) and is_whole(self.y) and min(self.x, self.y) >= 1
        require(sides, "Torus", "whole sides >= 1", (self.x, self.y))

    def check(self, workers: int) -> None:
        """Refuse a number of workers that is not x times y."""
        fits = self.x * self.y == workers
        expected = f"sides whose product is the number of workers, {workers}"
        require(fits, "The torus", expected, f"{self.x}x{self.y}")

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        """Yield the steps of an all-reduce."""
        rows = [[r * self.x + i for i in range(self.x)] for r in range(self.y)]
        columns = [[r * self.x + i for r in range(self.y)] for i in range(self.x)]
        # A row's chunk travels as the pieces into which its column will cut it, because packed bits
        # cannot be cut later.
        chunks = [chunk.split(self.y) for chunk in Piece(0, size).split(self.x)]
        cuts = [_single(chunk) for chunk in _owned(chunks)]
        yield from _scatter(rows, [chunks] * self.y)
        yield from _scatter(columns, cuts)
        yield from _gather(columns, cuts)
        yield from _gather(rows, [chunks] * self.y)


@dataclass(frozen=True)
class Tree:
    """A binomial tree merges whole vectors up to worker 0 and copies the result down."""

    def check(self, workers: int) -> None:
        """Accept any number of workers."""

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        """Yield the steps of an all-reduce."""
        vector, pairs = Piece(0, size), []
        distance = 1
        while distance < workers:
            pairs.append([(i, i - distance) for i in range(distance, workers, 2 * distance)])
            distance *= 2
        for level in pairs:
            yield Step(True, [Send(child, parent, vector) for child, parent in level])
        for level in reversed(pairs):
            yield Step(False, [Send(parent, child, vector) for child, parent in level])


@dataclass(frozen=True)
class Server:
    """All workers send to a server, which is worker number M, and get the result back."""

    def check(self, workers: int) -> None:
        """Accept any number of workers."""

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        """Yield the steps of an all-reduce."""
        vector = Piece(0, size)
        yield Step(True, [Send(worker, workers, vector) for worker in range(workers)])
        yield Step(False, [Send(workers, worker, vector) for worker in range(workers)])


ROUTES = ("ring", "segmented-ring", "torus", "tree", "server")


def parse(route: str | Route, workers: int) -> Route:
    """Return a route by its name: `ring`, `segmented-ring:65536`, `torus:2x4`, ...

    `torus` without sides has the most square ones.
    """
    if not isinstance(route, str):
        instance = isinstance(route, Route) and not isinstance(route, type)
        require(instance, "allreduce", f"one of {', '.join(ROUTES)} or a Route", route)
        route.check(workers)
        return route
    name, colon, rest = route.strip().lower().partition(":")
    require_choice("allreduce", "it", name, ROUTES)
    numbers = rest.split("x") if colon else []
    wanted = {"segmented-ring": 1, "torus": 2}.get(name, 0)
    form = {1: "a segment, such as segmented-ring:65536", 2: "sides, such as torus:2x4"}
    fits = not colon or (len(numbers) == wanted > 0 and all(text.isdecimal() for text in numbers))
    require(fits, "allreduce", form.get(wanted, f"{name} without a number"), route)
    if name == "torus":
        route = Torus(*(map(int, numbers) if numbers else near_square(workers)))
    elif name == "segmented-ring":
        route = SegmentedRing(*map(int, numbers))
    else:
        plain: dict[str, type[Ring | Tree | Server]] = {"ring": Ring, "tree": Tree}
        route = plain.get(name, Server)()
    route.check(workers)
    return route
