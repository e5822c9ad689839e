"""Seconds of a round, and the link at which two merges are equally fast."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from undrift.check import require
from undrift.comm.routes import Route
from undrift.cost.machines import Machine
from undrift.cost.steps import Gossip, Merging, Run, parse, require_merge, schedule

_SLOWEST, _FASTEST = 1.0, 1e18  # bits a second, between which `break_even` looks


class Round(NamedTuple):
    """Seconds."""

    computation: float
    compression: float
    communication: float

    @property
    def total(self) -> float:
        return self.computation + self.compression + self.communication


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
    require_merge(merge)
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
