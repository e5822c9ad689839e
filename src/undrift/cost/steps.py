"""The steps of a round and what the busiest machine has to do in each: the closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from undrift.check import is_whole, require, require_choice
from undrift.comm import routes
from undrift.comm.routes import Ring, Route, SegmentedRing, Server, Torus, Tree

Merging = Literal["mean", "one-bit", "sign-sum", "sign-vote"]
ROUTES = (*routes.ROUTES, "gossip")


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


def critical_path(
    route: str | Route | Gossip, merge: Merging, workers: int, coordinates: int
) -> Path:
    """Hops and bytes that have to wait for each other, where all links are alike."""
    runs = schedule(route, merge, workers, coordinates)
    nbytes = sum(run.steps * max(run.worker.nbytes, run.server.nbytes) for run in runs)
    return Path(sum(run.steps for run in runs), nbytes)


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
    require_merge(merge)
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


def require_merge(merge: str) -> None:
    require_choice("cost", "merge", merge, get_args(Merging))
