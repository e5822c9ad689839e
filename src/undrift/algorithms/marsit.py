"""Marsit. Wu, He, Guo, Qu, Wang, Zhuang, Zhang, "Sign Bit is Enough: A Learning Synchronization
Framework for Multi-hop All-reduce with Ultimate Compression", DAC 2022.

    u_m = lr g_m(x) + c_m, or the worker's update of K local steps + c_m
    t mod period = 0:  d = mean_m u_m in full precision;  c_m <- 0
    otherwise:         d = server_lr b, b_j = +1 or -1 by the one-bit all-reduce of sign(u_m);
                       c_m <- u_m - d
    x <- x - d

Every hop carries one bit a coordinate (`comm.merges.OneBit`). The compensation uses the common d,
so that x_t - mean_m c_m = x_0 - sum mean_m (u_m - c_m) holds exactly, through both kinds of rounds.
period=None has no round in full precision, not even the first; sign(0) = +1. server_lr is the step
of every coordinate and must be tuned (in theory lr = sqrt(M / T) and server_lr = 1 / sqrt(T D)).
`decay` multiplies lr and server_lr at every full-precision round but the first: the thesis's 0.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from undrift.check import is_whole, require, require_positive
from undrift.comm.merges import Mean, OneBit
from undrift.core import AllReduce, Comm, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, Rule, local_update, require_rule


class MarsitNode(NamedTuple):
    x: Vector
    c: Vector  # compensation, of which only the mean over the workers has a meaning
    s: Any  # state of the rule


@documented
@dataclass(frozen=True)
class Marsit(AllReduce[MarsitNode]):
    """Sends one unbiased bit a coordinate at every hop and compensates globally for the loss."""

    lr: float
    """Step size of the local steps, > 0."""
    server_lr: float = 0.01
    """Step of every coordinate in one-bit rounds, > 0, which must be tuned; in theory lr / sqrt(M
    D) for M workers and D parameters."""
    period: int | None = None
    """Rounds from one in full precision to the next, >= 1 and the first included; 1 is PSGD, none
    has no such round."""
    rule: Rule = SGD()
    """Direction of the local steps; its state is the worker's own and lives on from round to
    round."""
    decay: float = 1.0
    """Factor of lr and server_lr at every full-precision round but the first, in (0, 1]; below 1 it
    needs a period."""

    def __post_init__(self) -> None:
        require_positive("Marsit", lr=self.lr, server_lr=self.server_lr)
        valid = self.period is None or (is_whole(self.period) and self.period >= 1)
        remedy = "leave it out for one-bit rounds only"
        require(valid, "Marsit", "period >= 1, a whole number or None", self.period, remedy)
        require_rule(self)
        require(0 < self.decay <= 1, "Marsit", "decay in (0, 1]", self.decay)
        tied = float(self.decay) == 1 or self.period is not None
        require(tied, "Marsit", "a period for decay to be tied to", self.period, "set period")

    def init(self, x0: Vector, f: Objective) -> MarsitNode:
        return MarsitNode(x0, torch.zeros_like(x0), self.rule.init(x0))

    def round(self, node: MarsitNode, steps: Loop, comm: Comm) -> MarsitNode:
        decayed = 1.0 if self.period is None else self.decay ** (steps.t // self.period)
        u, s = local_update(node.x, node.s, decayed * self.lr, self.rule, steps)
        u = u + node.c
        if self.period is not None and steps.t % self.period == 0:
            return MarsitNode(node.x - comm.reduce(u, Mean()), torch.zeros_like(u), s)
        signs, scale = comm.reduce(u, OneBit()), decayed * self.server_lr
        return MarsitNode(node.x.sub(signs, alpha=scale), u.sub(signs, alpha=scale), s)
