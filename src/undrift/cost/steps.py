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
class GossipRoute:
    """Everybody sends to its neighbours; the busiest worker has `degree` of them."""

    degree: int

    def __post_init__(self) -> None:
        valid = is_whole(self.degree) and self.degree >= 0
        require(valid, "GossipRoute", "degree >= 0, a whole number", self.degree)

    def check(self, workers: int) -> None:
        """Refuse a degree that does not fit this many workers."""
        expected = f"a degree below the number of workers, {workers}"
        require(self.degree < workers, "GossipRoute", expected, self.degree)


class StepLoad(NamedTuple):
    """One machine has this much to do in one step."""

    nbytes: int = 0  # through its link, the busier way
    merged: int = 0  # coordinates


class EqualSteps(NamedTuple):
    """Equal steps follow one after the other."""

    steps: int
    worker: StepLoad  # the busiest worker's
    server: StepLoad = StepLoad()


class CriticalPath(NamedTuple):
    """The hops and bytes of a round follow one after the other."""

    hops: int
    nbytes: int  # those of the busiest machine of each hop


def critical_path(
    route: str | Route | GossipRoute, merge: Merging, workers: int, coordinates: int
) -> CriticalPath:
    """Return the hops and bytes that have to wait for each other, where all links are alike."""
    groups = schedule(route, merge, workers, coordinates)
    nbytes = sum(group.steps * max(group.worker.nbytes, group.server.nbytes) for group in groups)
    return CriticalPath(sum(group.steps for group in groups), nbytes)


def parse(route: str | Route | GossipRoute, workers: int) -> Route | GossipRoute:
    """Return a route from what `allreduce=` takes, or from `gossip:4` for four neighbours."""
    require(is_whole(workers) and workers >= 1, "cost", "workers >= 1, a whole number", workers)
    if isinstance(route, str):
        name, _, rest = route.strip().lower().partition(":")
        require_choice("cost", "route", name, ROUTES)
        if name != "gossip":
            return routes.parse(route, workers)
        require(rest.isdecimal(), "cost", "a degree, such as gossip:4", route)
        route = GossipRoute(int(rest))
    known = isinstance(route, Ring | SegmentedRing | Torus | Tree | Server | GossipRoute)
    require(known, "cost", f"a route of {', '.join(ROUTES)}", route)
    route.check(workers)
    return route


def schedule(
    route: str | Route | GossipRoute, merge: Merging, workers: int, coordinates: int
) -> list[EqualSteps]:
    """Return all steps of the round, equal ones together: O(log M) groups."""
    require_merge(merge)
    valid = is_whole(coordinates) and coordinates >= 1
    require(valid, "cost", "coordinates >= 1, a whole number", coordinates)
    parsed, M, D = parse(route, workers), int(workers), int(coordinates)
    match parsed:
        case Torus(x, y):
            groups = _torus(int(x), int(y), merge, D)
        case SegmentedRing(segment):
            groups = _segmented(int(segment), merge, M, D)
        case Tree():
            groups = _tree(merge, M, D)
        case Server():
            groups = _server(merge, M, D)
        case GossipRoute(degree):
            d = int(degree)
            groups = [EqualSteps(min(1, d), StepLoad(d * _nbytes(D, _width(merge, 1)), d * D))]
        case _:
            groups = _torus(M, 1, merge, D)
    return [group for group in groups if group.steps]


def _torus(x: int, y: int, merge: Merging, size: int) -> list[EqualSteps]:
    """Return the steps of a torus; a ring is a torus of one row."""
    chunk, piece = _up(size, x), _up(size, x * y)  # the largest, for which the others wait
    back = _result_width(merge, x * y)
    return [
        *(EqualSteps(n, StepLoad(_cut(chunk, y, w), chunk)) for n, w in _widths(merge, 1, x - 1)),
        *(EqualSteps(n, StepLoad(_nbytes(piece, w), piece)) for n, w in _widths(merge, x, y - 1)),
        EqualSteps(y - 1, StepLoad(_nbytes(piece, back))),
        EqualSteps(x - 1, StepLoad(_cut(chunk, y, back))),
    ]


def _segmented(segment: int, merge: Merging, workers: int, size: int) -> list[EqualSteps]:
    parts = _up(size, segment)
    short, longer = divmod(size, parts)
    kinds = [(longer, _up(short + 1, workers)), (parts - longer, _up(short, workers))]
    back = _result_width(merge, workers)
    groups = []
    for number, piece in kinds:
        for n, w in _widths(merge, 1, workers - 1):
            groups.append(EqualSteps(number * n, StepLoad(_nbytes(piece, w), piece)))
    copied = sum(number * _nbytes(piece, back) for number, piece in kinds)
    return [*groups, EqualSteps(workers - 1, StepLoad(copied))]


def _tree(merge: Merging, workers: int, size: int) -> list[EqualSteps]:
    levels = (workers - 1).bit_length()
    up = []
    for level in range(levels):
        count = min(2**level, workers - 2**level)  # behind the first child, which has the most
        up.append(EqualSteps(1, StepLoad(_nbytes(size, _width(merge, count)), size)))
    return [*up, EqualSteps(levels, StepLoad(_nbytes(size, _result_width(merge, workers))))]


def _server(merge: Merging, workers: int, size: int) -> list[EqualSteps]:
    up, down = (_nbytes(size, w) for w in (_width(merge, 1), _result_width(merge, workers)))
    merged = (workers - 1) * size  # the first that comes is kept
    return [
        EqualSteps(1, StepLoad(up), StepLoad(workers * up, merged)),
        EqualSteps(1, StepLoad(down), StepLoad(workers * down)),
    ]


def _widths(merge: Merging, unit: int, steps: int) -> Iterator[tuple[int, int]]:
    """Yield (number of steps, their width), where step s sends shares of s * unit workers."""
    s = 1
    while s <= steps:
        width = _width(merge, s * unit)
        last = steps if merge in ("mean", "one-bit") else min(steps, (2**width - 1) // unit)
        yield last - s + 1, width
        s = last + 1


def _width(merge: Merging, count: int) -> int:
    """Return the bits a coordinate of a message that stands for so many workers."""
    return {"mean": 32, "one-bit": 1}.get(merge, count.bit_length())


def _result_width(merge: Merging, workers: int) -> int:
    """Return the bits a coordinate of the result."""
    return 1 if merge == "sign-vote" else _width(merge, workers)


def _cut(size: int, parts: int, width: int) -> int:
    """Return the bytes of a chunk that travels in parts, each of which is padded."""
    short, longer = divmod(size, parts)
    return longer * _nbytes(short + 1, width) + (parts - longer) * _nbytes(short, width)


def _nbytes(size: int, width: int) -> int:
    return _up(size * width, 8)


def _up(size: int, parts: int) -> int:
    return -(-size // parts)


def require_merge(merge: str) -> None:
    """Refuse a merge whose name is not known."""
    require_choice("cost", "merge", merge, get_args(Merging))
