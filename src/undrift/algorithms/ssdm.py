"""SSDM. Safaryan, Richtarik, "Stochastic Sign Descent Methods: New Algorithms and Better Theory",
ICML 2021 (distributed with momentum).

    m_m <- beta m_m + (1 - beta) g_m(x), or the sum of the worker's K directions in place of g_m
    s_m,j = +1 with probability 1/2 + m_m,j / (2 ||m_m||), else -1
    x <- x - server_lr mean_m s_m

The K local steps are y <- y - lr d, d the direction of `rule` for g_m(y). `server_lr` is the step
of every coordinate, lr unless given. The norm is the 2-norm as printed, or the maximum norm with
norm="inf". Signs alone are biased; two scales make the step unbiased for server_lr mean_m m_m:
scale="max" puts the largest norm of all workers, found by an all-reduce of one number, into the
probability and before the mean; scale="own" is mean_m ||m_m|| s_m, the thesis's SSDM under a server
(Appendix A). The thesis's section 3.2.2 prints a probability without the factor 1/2, which can
exceed one; its Appendix A prints the one above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from undrift.check import require, require_choice, require_positive
from undrift.comm.merges import (
    Code,
    Largest,
    Norm,
    OwnNorm,
    SignSum,
    norm_of,
    require_code,
    require_norm,
)
from undrift.core import AllReduce, Comm, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, Rule, local_update, require_rule


class SSDMNode(NamedTuple):
    x: Vector
    m: Vector
    s: Any  # state of the rule


@documented
@dataclass(frozen=True)
class SSDM(AllReduce[SSDMNode]):
    """Sends momentum as random signs, +1 the likelier the larger the entry."""

    lr: float
    """Step size of the local steps, > 0, and of the signs unless server_lr is set."""
    beta: float = 0.9
    """Momentum of what is sent, in [0, 1); 0 leaves all momentum to the rule."""
    server_lr: float | None = None
    """Step of the mean of the signs, > 0: how far a coordinate moves when all workers agree; none
    takes lr."""
    rule: Rule = SGD()
    """Direction of the local steps; its state is the worker's own and lives on from round to
    round."""
    norm: Norm = "l2"
    """Norm in the probability of a sign: "l2" as printed, or "inf", the largest magnitude."""
    scale: Literal["none", "max", "own"] = "none"
    """Factor of the signs: "none"; "max", the largest norm of all workers, and "own", each worker's
    norm, make the step unbiased."""
    code: Code = "fixed"
    """Code of the summed signs: "fixed" width, or Elias "gamma", "delta" or "omega"; scale "own"
    has no such sum and takes "fixed"."""

    def __post_init__(self) -> None:
        require_positive("SSDM", lr=self.lr)
        if self.server_lr is not None:
            require_positive("SSDM", server_lr=self.server_lr)
        require(0 <= self.beta < 1, "SSDM", "beta in [0, 1)", self.beta)
        require_rule(self)
        require_norm("SSDM", self.norm)
        require_choice("SSDM", "scale", self.scale, ("none", "max", "own"))
        require_code("SSDM", self.code)
        coded = self.scale != "own" or self.code == "fixed"
        remedy = "its sums are no whole numbers; leave code out"
        require(coded, "SSDM", 'code "fixed" beside scale "own"', self.code, remedy)

    def init(self, x0: Vector, f: Objective) -> SSDMNode:
        return SSDMNode(x0, torch.zeros_like(x0), self.rule.init(x0))

    def round(self, node: SSDMNode, steps: Loop, comm: Comm) -> SSDMNode:
        u, s = local_update(node.x, node.s, self.lr, self.rule, steps)
        m = self.beta * node.m + (1 - self.beta) * u / self.lr
        step = self.lr if self.server_lr is None else self.server_lr
        return SSDMNode(node.x - step * self._mean(m, comm), m, s)

    def _mean(self, m: Vector, comm: Comm) -> Vector:
        """Return the mean of the workers' signs, scaled."""
        if self.scale == "own":
            return comm.reduce(m, OwnNorm(self.norm))
        n = norm_of(m, self.norm).view(1)
        if self.scale == "max":
            n = comm.reduce(n, Largest())
        v = torch.where(n > 0, (m / n).clamp(-1, 1), torch.zeros_like(m))  # rounding may exceed 1
        signs = comm.reduce(v, SignSum(self.code, stochastic=True))
        return n * signs if self.scale == "max" else signs
