"""Seconds of a round, and the link at which two merges are equally fast."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from undrift.check import require
from undrift.comm.routes import Route
from undrift.cost.machines import Machine
from undrift.cost.steps import EqualSteps, GossipRoute, Merging, parse, require_merge, schedule

_SLOWEST, _FASTEST = 1.0, 1e18  # bits a second, between which `break_even` looks


class Round(NamedTuple):
    """A round takes so many seconds of each kind, one after the other."""

    computation: float
    compression: float
    communication: float

    @property
    def total(self) -> float:
        """Return the seconds of the whole round."""
        return self.computation + self.compression + self.communication


def predict(
    route: str | Route | GossipRoute,
    merge: Merging,
    workers: int,
    coordinates: int,
    machine: Machine,
    *,
    server: Machine | None = None,
    overlap: bool = True,
) -> Round:
    """Return the seconds of a round of `workers` equal machines.

    The server is a machine like them if `server` is None. With `overlap` a machine draws for the
    next merge while the message is on its way, so that only the time by which drawing outlasts the
    message counts as compression.
    """
    for each in (machine, machine if server is None else server):
        require(
            isinstance(each, Machine), "cost", "a Machine such as Machine(NetworkLink(1e-4))", each
        )
    parsed = parse(route, workers)
    groups = schedule(parsed, merge, workers, coordinates)
    centre = machine if server is None else server
    codec = machine.codec(merge)
    # In gossip every neighbour's message is unpacked and added, which needs no draws.
    draws, unpacked = (0, parsed.degree) if isinstance(parsed, GossipRoute) else (1, 1)
    compression = (codec.pack + codec.unpack * unpacked) * coordinates
    communication = 0.0
    for group in groups:
        wire = _wire_seconds(group, machine, centre)
        communication += group.steps * wire
        for load, times in ((group.worker, codec), (group.server, centre.codec(merge))):
            drawing = draws * times.draw * load.merged
            waited = max(0.0, drawing - wire) if overlap else drawing
            compression += group.steps * (times.merge * load.merged + waited)
    return Round(machine.computation, compression, communication)


def _wire_seconds(group: EqualSteps, machine: Machine, server: Machine) -> float:
    """Return the seconds that the messages of one step are on their way."""
    seconds = machine.link.seconds(group.worker.nbytes)
    if not group.server.nbytes:
        return seconds
    return max(seconds, server.link.seconds(group.server.nbytes))


def break_even(
    route: str | Route | GossipRoute,
    workers: int,
    coordinates: int,
    machine: Machine,
    *,
    merge: Merging = "one-bit",
    server: Machine | None = None,
    overlap: bool = True,
) -> float:
    """Return the bits a second of the workers' links at which full precision is as fast as `merge`.

    Full precision is faster above. The answer is `math.inf` where it never is and 0 where it always
    is. A server that is given keeps its link.
    """
    require_merge(merge)
    parsed = parse(route, workers)

    def saved(bandwidth: float) -> tuple[float, float]:
        """Return by how many seconds full precision compresses and takes longer."""
        changed = replace(machine, link=replace(machine.link, bandwidth=bandwidth))
        full, other = (
            predict(parsed, each, workers, coordinates, changed, server=server, overlap=overlap)
            for each in ("mean", merge)
        )
        return full.compression - other.compression, full.total - other.total

    # The seconds that a merge saves on the wire fall as the links get faster; those that its
    # compression costs do not.
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
