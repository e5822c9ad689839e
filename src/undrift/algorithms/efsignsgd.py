"""EFSignSGD. Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019.

    u_m = lr g_m(x), or the worker's update of K local steps;  p_m = u_m + e_m
    a = mean_m ||p_m||_1 / D
    x <- x - a mean_m sign(p_m);  e_m <- p_m - a sign(p_m)

One worker is the paper's method. With several, the scales are made common by an all-reduce of one
number first, so that signs can be summed as integers on the way; the telescoping
x_t - mean_m e_m = x_0 - sum mean_m u_m stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from undrift.check import require_positive
from undrift.comm.merges import Code, Mean, SignSum, require_code
from undrift.core import AllReduce, Comm, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, Rule, local_update, require_rule


class EFSignSGDNode(NamedTuple):
    x: Vector
    e: Vector  # what compression has left out so far
    s: Any  # state of the rule


@documented
@dataclass(frozen=True)
class EFSignSGD(AllReduce[EFSignSGDNode]):
    """Sends signs scaled by the mean magnitude and adds what is lost to the next update."""

    lr: float
    """Step size of the local steps, > 0."""
    rule: Rule = SGD()
    """Direction of the local steps; its state is the worker's own and lives on from round to
    round."""
    code: Code = "fixed"
    """Code of the summed signs: "fixed" width, or Elias "gamma", "delta" or "omega"."""

    def __post_init__(self) -> None:
        require_positive("EFSignSGD", lr=self.lr)
        require_rule(self)
        require_code("EFSignSGD", self.code)

    def init(self, x0: Vector, f: Objective) -> EFSignSGDNode:
        return EFSignSGDNode(x0, torch.zeros_like(x0), self.rule.init(x0))

    def round(self, node: EFSignSGDNode, steps: Loop, comm: Comm) -> EFSignSGDNode:
        u, s = local_update(node.x, node.s, self.lr, self.rule, steps)
        p = u + node.e
        a = comm.reduce(p.abs().mean().view(1), Mean())
        x = node.x - a * comm.reduce(p, SignSum(self.code))
        return EFSignSGDNode(x, p - a * torch.where(p >= 0, 1.0, -1.0).to(p.dtype), s)
