"""SSDM. Safaryan, Richtarik, "Stochastic Sign Descent Methods: New Algorithms and Better Theory",
ICML 2021 (distributed with momentum).

    m_m <- beta m_m + (1 - beta) g_m(x)
    s_m,j = +1 with probability 1/2 + m_m,j / (2 ||m_m||_2), else -1
    x <- x - lr mean_m s_m

With K local steps g_m is the sum of the gradients along y <- y - lr g_m(y). `norm="max"` makes the
step unbiased for lr mean_m m_m: the norm in the probability is the largest of all workers, found by
an all-reduce of one number, and multiplies the mean. The thesis prints a probability without the
factor 1/2, which can exceed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from undrift.check import require, require_choice, require_positive
from undrift.comm.merges import Code, Largest, SignSum, euclidean, require_code
from undrift.core import AllReduce, Comm, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, local_update


class SSDMNode(NamedTuple):
    x: Vector
    m: Vector


@documented
@dataclass(frozen=True)
class SSDM(AllReduce[SSDMNode]):
    """Sends momentum as random signs, +1 the likelier the larger the entry."""

    lr: float
    """Step size, > 0: how far a coordinate moves when all workers agree."""
    beta: float = 0.9
    """Momentum of the gradients that are sent, in [0, 1)."""
    norm: Literal["none", "max"] = "none"
    """Norm in the probability of a sign: the worker's own with "none"; with "max" the largest of
    all, which also scales the step and makes it unbiased."""
    code: Code = "fixed"
    """Code of the summed signs: "fixed" width, or Elias "gamma", "delta" or "omega"."""

    def __post_init__(self) -> None:
        require_positive("SSDM", lr=self.lr)
        require(0 <= self.beta < 1, "SSDM", "beta in [0, 1)", self.beta)
        require_choice("SSDM", "norm", self.norm, ("none", "max"))
        require_code("SSDM", self.code)

    def init(self, x0: Vector, f: Objective) -> SSDMNode:
        return SSDMNode(x0, torch.zeros_like(x0))

    def round(self, node: SSDMNode, steps: Loop, comm: Comm) -> SSDMNode:
        u, _ = local_update(node.x, (), self.lr, SGD(), steps)
        m = self.beta * node.m + (1 - self.beta) * u / self.lr
        n = euclidean(m).view(1)
        if self.norm == "max":
            n = comm.reduce(n, Largest())
        v = torch.where(n > 0, (m / n).clamp(-1, 1), torch.zeros_like(m))  # rounding may exceed 1
        s = comm.reduce(v, SignSum(self.code, stochastic=True))
        return SSDMNode(node.x - self.lr * (n * s if self.norm == "max" else s), m)
