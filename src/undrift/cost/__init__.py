"""Seconds of a round before it is run: computation, compression and communication.

The schedules of `comm/routes.py` have closed forms here, so that 100,000 workers cost no more to
predict than two. All workers make a step together: it takes latency + 8 bytes / bandwidth, the
bytes being those that the busiest machine sends or receives one after the other. For M workers, D
coordinates, B(n, w) = ceil(n w / 8) bytes for n coordinates of w bits:

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

from undrift.cost.machines import CodecTimes, Machine, NetworkLink, Point, fit, in_series
from undrift.cost.prediction import Round, break_even, predict
from undrift.cost.steps import (
    ROUTES,
    CriticalPath,
    EqualSteps,
    GossipRoute,
    Merging,
    StepLoad,
    critical_path,
    parse,
    schedule,
)

__all__ = [
    "ROUTES",
    "CodecTimes",
    "CriticalPath",
    "EqualSteps",
    "GossipRoute",
    "Machine",
    "Merging",
    "NetworkLink",
    "Point",
    "Round",
    "StepLoad",
    "break_even",
    "critical_path",
    "fit",
    "in_series",
    "parse",
    "predict",
    "schedule",
]
