"""Seconds of a round before it is run: computation, compression and communication.

Closed forms of the schedules of `route.py`, so that 100,000 workers cost no more to predict than
two. All workers make a step together: it takes latency + 8 bytes / bandwidth, the bytes being those
that the busiest machine sends or receives one after the other. For M workers, D coordinates,
B(n, w) = ceil(n w / 8) bytes for n coordinates of w bits:

ring             w_1, ..., w_(M-1) merging, w' copying: sum_r B(D/M, w_r) + (M-1) B(D/M, w')
segmented ring   the same for each of P segments of D/P, then M-1 steps that copy P pieces each
torus X x Y      X-1 steps of Y pieces of D/M, Y-1 of one; the same back
tree             ceil(log2 M) steps of whole vectors up, as many down
server           2 steps in which M whole vectors go through the server's link
gossip           1 step in which a worker sends a whole vector to each of its neighbours

where D/M, D/P are rounded up as the pieces are. w is 32 in full precision ("mean"), 1 for one bit,
and ceil(log2(r + 1)) for sums of r workers' signs, which come back in one bit where they are a vote
("sign-vote") and in full width where not ("sign-sum").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from undrift import route as routes
from undrift.check import is_finite, is_whole, require, require_choice, require_nonnegative
from undrift.route import Ring, Route, SegmentedRing, Server, Torus, Tree

Merging = Literal["mean", "one-bit", "sign-sum", "sign-vote"]
ROUTES = (*routes.ROUTES, "gossip")
_SLOWEST, _FASTEST = 1.0, 1e18  # bits a second, between which `break_even` looks


@dataclass(frozen=True)
class Link:
    """`latency` in seconds a message, `bandwidth` in bits a second each way; `math.inf` is none."""

    latency: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        require_nonnegative("Link", latency=self.latency)
        fast = self.bandwidth == math.inf or is_finite(self.bandwidth)
        require(fast and self.bandwidth > 0, "Link", "bandwidth > 0", self.bandwidth)

    def seconds(self, nbytes: float) -> float:
        return self.latency + 8 * nbytes / self.bandwidth


@dataclass(frozen=True)
class Codec:
    """Seconds a coordinate: to pack, to merge two messages, to unpack.

    `draw` is what merging needs beside the message, such as random bits: it can be made ready while
    the message is on its way.
    """

    pack: float = 0.0
    draw: float = 0.0
    merge: float = 0.0
    unpack: float = 0.0

    def __post_init__(self) -> None:
        require_nonnegative("Codec", **vars(self))


@dataclass(frozen=True)
class Machine:
    """`computation` is the seconds that its local steps take in a round."""

    link: Link = Link()
    computation: float = 0.0
    mean: Codec = Codec()
    one_bit: Codec = Codec()
    signs: Codec = Codec()

    def __post_init__(self) -> None:
        require_nonnegative("Machine", computation=self.computation)
        linked = isinstance(self.link, Link)
        require(linked, "Machine", "a Link such as Link(50e-6, 10e9)", self.link)

    def codec(self, merge: Merging) -> Codec:
        return {"mean": self.mean, "one-bit": self.one_bit}.get(merge, self.signs)


@dataclass(frozen=True)
class Gossip:
    """Everybody to its neighbours; `degree` is the number of those of the busiest worker."""

    degree: int

    def __post_init__(self) -> None:
        whole = is_whole(self.degree) and self.degree >= 0
        require(whole, "Gossip", "degree >= 0, a whole number", self.degree)

    def check(self, workers: int) -> None:
        expected = f"a degree below the number of workers, {workers}"
        require(self.degree < workers, "Gossip", expected, self.degree)


class Round(NamedTuple):
    """Seconds."""

    computation: float
    compression: float
    communication: float

    @property
    def total(self) -> float:
        return self.computation + self.compression + self.communication


class Load(NamedTuple):
    """What one machine has to do in one step."""

    nbytes: int = 0  # through its link, the busier way
    merged: int = 0  # coordinates


class Run(NamedTuple):
    """Equal steps, one after the other."""

    steps: int
    worker: Load  # of the busiest
    server: Load = Load()


class Path(NamedTuple):
    """What has to happen one after the other."""

    hops: int
    nbytes: int  # of the busiest machine of each hop


class Point(NamedTuple):
    """A measurement: so many hops and bytes one after the other took so long."""

    hops: int
    nbytes: float
    seconds: float


def predict(
    route: str | Route | Gossip,
    merge: Merging,
    workers: int,
    coordinates: int,
    machine: Machine,
    *,
    server: Machine | None = None,
    overlap: bool = True,
) -> Round:
    """Seconds of a round of `workers` equal machines; the server is one of them if not given.

    With `overlap` a machine draws for the next merge while the message is on its way, so that only
    what takes longer than the message counts as compression.
    """
    for each in (machine, machine if server is None else server):
        require(isinstance(each, Machine), "cost", "a Machine such as Machine(Link(1e-4))", each)
    way = parse(route, workers)
    runs = schedule(way, merge, workers, coordinates)
    centre = machine if server is None else server
    codec = machine.codec(merge)
    # A neighbour's message is unpacked and added; nothing stands for several workers by chance.
    draws, unpacked = (0, way.degree) if isinstance(way, Gossip) else (1, 1)
    compression = (codec.pack + codec.unpack * unpacked) * coordinates
    communication = 0.0
    for run in runs:
        wire = _wire(run, machine, centre)
        communication += run.steps * wire
        for load, done_by in ((run.worker, codec), (run.server, centre.codec(merge))):
            drawing = draws * done_by.draw * load.merged
            waited = max(0.0, drawing - wire) if overlap else drawing
            compression += run.steps * (done_by.merge * load.merged + waited)
    return Round(machine.computation, compression, communication)


def _wire(run: Run, machine: Machine, server: Machine) -> float:
    """Seconds of one step on the way."""
    outside = machine.link.seconds(run.worker.nbytes)
    return max(outside, server.link.seconds(run.server.nbytes)) if run.server.nbytes else outside


def critical_path(
    route: str | Route | Gossip, merge: Merging, workers: int, coordinates: int
) -> Path:
    """Hops and bytes that have to wait for each other, where all links are alike."""
    runs = schedule(route, merge, workers, coordinates)
    nbytes = sum(run.steps * max(run.worker.nbytes, run.server.nbytes) for run in runs)
    return Path(sum(run.steps for run in runs), nbytes)


def break_even(
    route: str | Route | Gossip,
    workers: int,
    coordinates: int,
    machine: Machine,
    *,
    merge: Merging = "one-bit",
    server: Machine | None = None,
    overlap: bool = True,
) -> float:
    """Bits a second of the workers' links from which on full precision is as fast as `merge`.

    `math.inf` where it never is, 0 where it always is. A server keeps its link where it is given.
    """
    _require_merge(merge)
    way = parse(route, workers)

    def saved(bandwidth: float) -> tuple[float, float]:
        """Seconds of compression and of the whole round that full precision takes more."""
        here = replace(machine, link=replace(machine.link, bandwidth=bandwidth))
        full, other = (
            predict(way, how, workers, coordinates, here, server=server, overlap=overlap)
            for how in ("mean", merge)
        )
        return full.compression - other.compression, full.total - other.total

    # What a merge saves on the way falls as the links get faster; what it costs does not.
    if saved(_SLOWEST)[1] <= 0:
        return 0.0
    cheaper, sooner = saved(math.inf)
    if cheaper >= 0 or sooner > 0:
        return math.inf
    low, high = _SLOWEST, _FASTEST
    while high > low * (1 + 1e-12):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if saved(middle)[1] > 0 else (low, middle)
    return high


def fit(points: Sequence[Point]) -> Link:
    """The link under which seconds = hops * latency + 8 bytes / bandwidth fits best.

    Least squares of the relative errors, so that quick and slow points count alike; neither latency
    nor bandwidth comes out negative.
    """
    require(len(points) >= 2, "fit", "two points or more", len(points))
    for point in points:
        sound = all(is_finite(value) and value > 0 for value in point)
        require(sound, "fit", "points of positive hops, bytes and seconds", tuple(point))
    table = np.array([(hops, 8 * nbytes) for hops, nbytes, _ in points], np.float64)
    table /= np.array([[point.seconds] for point in points])
    scale = np.linalg.norm(table, axis=0)
    table /= scale  # hops and bits differ by many powers of ten
    told_apart = np.linalg.matrix_rank(table, tol=1e-9) == 2
    remedy = "measure vectors of two sizes"
    require(told_apart, "fit", "points that differ in bytes a hop", list(points), remedy)
    ones = np.ones(len(points))
    hop, bit = np.linalg.lstsq(table, ones, rcond=None)[0]
    if hop < 0:  # each column has length one: the best alone is its product with ones
        hop, bit = 0.0, table[:, 1] @ ones
    elif bit < 0:
        hop, bit = table[:, 0] @ ones, 0.0
    return Link(float(hop / scale[0]), float(scale[1] / bit) if bit > 0 else math.inf)


def in_series(*links: Link) -> Link:
    """Links that a message passes one after the other, such as a host's own work and the wire."""
    return Link(
        sum(link.latency for link in links),
        1 / pace if (pace := sum(1 / link.bandwidth for link in links)) else math.inf,
    )


def parse(route: str | Route | Gossip, workers: int) -> Route | Gossip:
    """A route as `allreduce=` takes it, or `gossip:4` for gossip with four neighbours."""
    require(is_whole(workers) and workers >= 1, "cost", "workers >= 1, a whole number", workers)
    if isinstance(route, str):
        name, _, rest = route.strip().lower().partition(":")
        require_choice("cost", "route", name, ROUTES)
        if name != "gossip":
            return routes.parse(route, workers)
        require(rest.isdecimal(), "cost", "a degree, such as gossip:4", route)
        route = Gossip(int(rest))
    known = isinstance(route, Ring | SegmentedRing | Torus | Tree | Server | Gossip)
    require(known, "cost", f"a route of {', '.join(ROUTES)}", route)
    route.check(workers)
    return route


def schedule(
    route: str | Route | Gossip, merge: Merging, workers: int, coordinates: int
) -> list[Run]:
    """All steps of the round, equal ones together: O(log M) runs."""
    _require_merge(merge)
    whole = is_whole(coordinates) and coordinates >= 1
    require(whole, "cost", "coordinates >= 1, a whole number", coordinates)
    way, M, D = parse(route, workers), int(workers), int(coordinates)
    match way:
        case Torus(x, y):
            runs = _torus(int(x), int(y), merge, D)
        case SegmentedRing(segment):
            runs = _segmented(int(segment), merge, M, D)
        case Tree():
            runs = _tree(merge, M, D)
        case Server():
            runs = _server(merge, M, D)
        case Gossip(degree):
            d = int(degree)
            runs = [Run(min(1, d), Load(d * _nbytes(D, _width(merge, 1)), d * D))]
        case _:
            runs = _torus(M, 1, merge, D)
    return [run for run in runs if run.steps]


def _torus(x: int, y: int, merge: Merging, size: int) -> list[Run]:
    """A ring is one row."""
    chunk, piece = _up(size, x), _up(size, x * y)  # the largest are what the others wait for
    back = _closing(merge, x * y)
    return [
        *(Run(n, Load(_cut(chunk, y, w), chunk)) for n, w in _widths(merge, 1, x - 1)),
        *(Run(n, Load(_nbytes(piece, w), piece)) for n, w in _widths(merge, x, y - 1)),
        Run(y - 1, Load(_nbytes(piece, back))),
        Run(x - 1, Load(_cut(chunk, y, back))),
    ]


def _segmented(segment: int, merge: Merging, workers: int, size: int) -> list[Run]:
    parts = _up(size, segment)
    short, longer = divmod(size, parts)
    kinds = [(longer, _up(short + 1, workers)), (parts - longer, _up(short, workers))]
    back = _closing(merge, workers)
    runs = []
    for number, piece in kinds:
        for n, w in _widths(merge, 1, workers - 1):
            runs.append(Run(number * n, Load(_nbytes(piece, w), piece)))
    copied = sum(number * _nbytes(piece, back) for number, piece in kinds)
    return [*runs, Run(workers - 1, Load(copied))]


def _tree(merge: Merging, workers: int, size: int) -> list[Run]:
    levels = (workers - 1).bit_length()
    up = []
    for level in range(levels):
        count = min(2**level, workers - 2**level)  # behind the first child, which has the most
        up.append(Run(1, Load(_nbytes(size, _width(merge, count)), size)))
    return [*up, Run(levels, Load(_nbytes(size, _closing(merge, workers))))]


def _server(merge: Merging, workers: int, size: int) -> list[Run]:
    up, down = (_nbytes(size, w) for w in (_width(merge, 1), _closing(merge, workers)))
    merged = (workers - 1) * size  # the first that comes is kept
    return [
        Run(1, Load(up), Load(workers * up, merged)),
        Run(1, Load(down), Load(workers * down)),
    ]


def _widths(merge: Merging, unit: int, steps: int) -> Iterator[tuple[int, int]]:
    """(number of steps, their width) where step s sends what stands for s * unit workers."""
    s = 1
    while s <= steps:
        width = _width(merge, s * unit)
        last = steps if merge in ("mean", "one-bit") else min(steps, (2**width - 1) // unit)
        yield last - s + 1, width
        s = last + 1


def _width(merge: Merging, count: int) -> int:
    """Bits a coordinate of a message that stands for so many workers."""
    return {"mean": 32, "one-bit": 1}.get(merge, count.bit_length())


def _closing(merge: Merging, workers: int) -> int:
    """Bits a coordinate of the result."""
    return 1 if merge == "sign-vote" else _width(merge, workers)


def _cut(size: int, parts: int, width: int) -> int:
    """Bytes of a chunk that travels in parts, each of which is padded."""
    short, longer = divmod(size, parts)
    return longer * _nbytes(short + 1, width) + (parts - longer) * _nbytes(short, width)


def _nbytes(size: int, width: int) -> int:
    return _up(size * width, 8)


def _up(size: int, parts: int) -> int:
    return -(-size // parts)


def _require_merge(merge: str) -> None:
    require_choice("cost", "merge", merge, get_args(Merging))
