"""What computes and what carries: machines, their codecs and links; links from measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from undrift.check import is_finite, require, require_nonnegative
from undrift.cost.steps import Merging


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


class Point(NamedTuple):
    """A measurement: so many hops and bytes one after the other took so long."""

    hops: int
    nbytes: float
    seconds: float


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
