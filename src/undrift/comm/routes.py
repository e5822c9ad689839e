"""Routes of an all-reduce: which worker sends which piece of the vector to whom, step by step.

A route is a schedule and knows nothing of what travels. In a merging step the receiver merges what
comes with its own share of the piece; in the copying steps after them the finished pieces spread.
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
    """Coordinates start, ..., stop - 1."""

    start: int
    stop: int

    def split(self, parts: int) -> list[Piece]:
        """Consecutive pieces whose sizes differ by at most one, the longer ones first."""
        size, longer = divmod(self.stop - self.start, parts)
        pieces, start = [], self.start
        for part in range(parts):
            stop = start + size + (part < longer)
            pieces.append(Piece(start, stop))
            start = stop
        return pieces


class Send(NamedTuple):
    sender: int
    receiver: int
    piece: Piece


class Step(NamedTuple):
    merging: bool  # or copying
    sends: list[Send]


@runtime_checkable
class Route(Hashable, Protocol):
    def check(self, workers: int) -> None:
        """Refuse what does not fit this many workers."""
        ...

    def steps(self, workers: int, size: int) -> Iterator[Step]: ...


Chunks = list[list[Piece]]  # for each place of a ring, the pieces of its chunk
Places = Sequence[int]  # the workers of a ring in its order


def _scatter(rings: Sequence[Places], chunks: Sequence[Chunks]) -> Iterator[Step]:
    """Rings side by side, each merging its chunks; afterwards place i owns chunk i + 1."""
    return _pass_on(rings, chunks, merging=True)


def _gather(rings: Sequence[Places], chunks: Sequence[Chunks]) -> Iterator[Step]:
    """Rings side by side, copying: place i starts with chunk i + 1, as `_scatter` leaves it."""
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
    """Chunks by the place that owns them after `_scatter`."""
    return chunks[1:] + chunks[:1]


def _alone(pieces: list[Piece]) -> Chunks:
    return [[piece] for piece in pieces]


@dataclass(frozen=True)
class Ring:
    def check(self, workers: int) -> None: ...

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        everybody, chunks = [range(workers)], [_alone(Piece(0, size).split(workers))]
        yield from _scatter(everybody, chunks)
        yield from _gather(everybody, chunks)


@dataclass(frozen=True)
class SegmentedRing:
    """`segment` is the most coordinates that one ring merges."""

    segment: int = 2**20

    def __post_init__(self) -> None:
        whole = is_whole(self.segment) and self.segment >= 1
        require(whole, "SegmentedRing", "segment >= 1, a whole number", self.segment)

    def check(self, workers: int) -> None: ...

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        everybody = [range(workers)]
        segments = Piece(0, size).split(max(1, -(-size // self.segment)))
        cuts = [segment.split(workers) for segment in segments]
        for cut in cuts:
            yield from _scatter(everybody, [_alone(cut)])
        yield from _gather(everybody, [[list(chunk) for chunk in zip(*cuts, strict=True)]])


@dataclass(frozen=True)
class Torus:
    """x workers in a row, y in a column; worker number = row * x + place in the row."""

    x: int
    y: int

    def __post_init__(self) -> None:
        sides = is_whole(self.x) and is_whole(self.y) and min(self.x, self.y) >= 1
        require(sides, "Torus", "whole sides >= 1", (self.x, self.y))

    def check(self, workers: int) -> None:
        fits = self.x * self.y == workers
        expected = f"sides whose product is the number of workers, {workers}"
        require(fits, "The torus", expected, f"{self.x}x{self.y}")

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        rows = [[r * self.x + i for i in range(self.x)] for r in range(self.y)]
        columns = [[r * self.x + i for r in range(self.y)] for i in range(self.x)]
        # A row's chunk travels as the pieces its column will cut it into: bits cannot be cut later.
        chunks = [chunk.split(self.y) for chunk in Piece(0, size).split(self.x)]
        cuts = [_alone(chunk) for chunk in _owned(chunks)]
        yield from _scatter(rows, [chunks] * self.y)
        yield from _scatter(columns, cuts)
        yield from _gather(columns, cuts)
        yield from _gather(rows, [chunks] * self.y)


@dataclass(frozen=True)
class Tree:
    def check(self, workers: int) -> None: ...

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        whole, pairs = Piece(0, size), []
        distance = 1
        while distance < workers:
            pairs.append([(i, i - distance) for i in range(distance, workers, 2 * distance)])
            distance *= 2
        for level in pairs:
            yield Step(True, [Send(child, parent, whole) for child, parent in level])
        for level in reversed(pairs):
            yield Step(False, [Send(parent, child, whole) for child, parent in level])


@dataclass(frozen=True)
class Server:
    def check(self, workers: int) -> None: ...

    def steps(self, workers: int, size: int) -> Iterator[Step]:
        whole = Piece(0, size)
        yield Step(True, [Send(worker, workers, whole) for worker in range(workers)])
        yield Step(False, [Send(workers, worker, whole) for worker in range(workers)])


ROUTES = ("ring", "segmented-ring", "torus", "tree", "server")


def parse(route: str | Route, workers: int) -> Route:
    """A route by name: `ring`, `segmented-ring:65536`, `torus` (most square), `torus:2x4`, ..."""
    if not isinstance(route, str):
        made = isinstance(route, Route) and not isinstance(route, type)
        require(made, "allreduce", f"one of {', '.join(ROUTES)} or a Route", route)
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
