"""Machines, the times of their codecs and their links; links from measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from undrift.check import is_finite, require, require_nonnegative
from undrift.cost.steps import Merging


@dataclass(frozen=True)
class NetworkLink:
    """A link takes `latency` seconds a message and carries `bandwidth` bits a second each way.

    A bandwidth of `math.inf` sets no limit.
    """

    latency: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        require_nonnegative("NetworkLink", latency=self.latency)
        fast = self.bandwidth == math.inf or is_finite(self.bandwidth)
        require(fast and self.bandwidth > 0, "NetworkLink", "bandwidth > 0", self.bandwidth)

    def seconds(self, nbytes: float) -> float:
        """Return the seconds that a message of so many bytes takes."""
        return self.latency + 8 * nbytes / self.bandwidth


@dataclass(frozen=True)
class CodecTimes:
    """A machine takes so many seconds a coordinate to pack, to merge two messages and to unpack.

    `draw` is the time to make what merging needs beside the message, such as random bits, which can
    happen while the message is on its way.
    """

    pack: float = 0.0
    draw: float = 0.0
    merge: float = 0.0
    unpack: float = 0.0

    def __post_init__(self) -> None:
        require_nonnegative("CodecTimes", **vars(self))


@dataclass(frozen=True)
class Machine:
    """A machine has a link, and its local steps take `computation` seconds in a round."""

    link: NetworkLink = NetworkLink()
    computation: float = 0.0
    mean: CodecTimes = CodecTimes()
    one_bit: CodecTimes = CodecTimes()
    signs: CodecTimes = CodecTimes()

    def __post_init__(self) -> None:
        require_nonnegative("Machine", computation=self.computation)
        linked = isinstance(self.link, NetworkLink)
        require(linked, "Machine", "a NetworkLink such as NetworkLink(50e-6, 10e9)", self.link)

    def codec(self, merge: Merging) -> CodecTimes:
        """Return the times of the codec that a merge uses."""
        return {"mean": self.mean, "one-bit": self.one_bit}.get(merge, self.signs)


class Point(NamedTuple):
    """A measurement says how long so many hops and bytes took one after the other."""

    hops: int
    nbytes: float
    seconds: float


def fit(points: Sequence[Point]) -> NetworkLink:
    """Return the link under which seconds = hops * latency + 8 bytes / bandwidth fits best.

    The fit has the least squares of the relative errors, so that quick and slow points count alike;
    neither latency nor bandwidth comes out negative.
    """
    require(len(points) >= 2, "fit", "two points or more", len(points))
    for point in points:
        sound = all(is_finite(value) and value > 0 for value in point)
        require(sound, "fit", "points of positive hops, bytes and seconds", tuple(point))
    table = np.array([(hops, 8 * nbytes) for hops, nbytes, _ in points], np.float64)
    table /= np.array([[point.seconds] for point in points])
    scale = np.linalg.norm(table, axis=0)
    table /= scale  # hops and bits differ by many powers of ten
    differ = np.linalg.matrix_rank(table, tol=1e-9) == 2
    remedy = "measure vectors of two sizes"
    require(differ, "fit", "points that differ in bytes a hop", list(points), remedy)
    ones = np.ones(len(points))
    hop, bit = np.linalg.lstsq(table, ones, rcond=None)[0]
    if hop < 0:  # each column has length one, so its product with ones is its best factor
        hop, bit = 0.0, table[:, 1] @ ones
    elif bit < 0:
        hop, bit = table[:, 0] @ ones, 0.0
    return NetworkLink(float(hop / scale[0]), float(scale[1] / bit) if bit > 0 else math.inf)


def in_series(*links: NetworkLink) -> NetworkLink:
    """Return one link for links that a message passes in turn, such as a host's work and a wire."""
    return NetworkLink(
        sum(link.latency for link in links),
        1 / pace if (pace := sum(1 / link.bandwidth for link in links)) else math.inf,
    )
