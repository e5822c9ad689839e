"""CascadingSSDM. Wu, He, Guo, Qu, Wang, Zhuang, Zhang, "Sign Bit is Enough: A Learning
Synchronization Framework for Multi-hop All-reduce with Ultimate Compression", DAC 2022: its
baseline that compresses at every hop.

    m_m <- beta m_m + (1 - beta) g_m(x), or the sum of the worker's K directions in place of g_m
    C_1 = Q(m_1);  C_m = Q(C_(m-1) + m_m) at every hop;  x <- x - server_lr C_M / M
    Q(v) = ||v|| s(v), s_j = +1 with probability 1/2 + v_j / (2 ||v||), else -1

The K local steps are y <- y - lr d, d the direction of `rule` for g_m(y); `server_lr` is lr unless
given. Unbiased, but with the 2-norm, as printed, the second moment of C_m grows like D^m: it
collapses as workers are added. The maximum norm, norm="inf", makes that growth slower. A hop sends
one bit a coordinate and the norm of the piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from undrift.check import require, require_positive
from undrift.comm.merges import Cascade, Norm, require_norm
from undrift.core import AllReduce, Comm, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, Rule, local_update, require_rule


class CascadingSSDMNode(NamedTuple):
    x: Vector
    m: Vector
    s: Any  # state of the rule


@documented
@dataclass(frozen=True)
class CascadingSSDM(AllReduce[CascadingSSDMNode]):
    """Compresses SSDM anew at every hop: what one-bit all-reduce must not do."""

    lr: float
    """Step size of the local steps, > 0, and of the compressed mean unless server_lr is set."""
    beta: float = 0.9
    """Momentum of what is sent, in [0, 1); 0 leaves all momentum to the rule."""
    server_lr: float | None = None
    """Step of the compressed mean, > 0; none takes lr."""
    rule: Rule = SGD()
    """Direction of the local steps; its state is the worker's own and lives on from round to
    round."""
    norm: Norm = "l2"
    """Norm of Q: "l2" as printed, or "inf", the largest magnitude."""

    def __post_init__(self) -> None:
        require_positive("CascadingSSDM", lr=self.lr)
        if self.server_lr is not None:
            require_positive("CascadingSSDM", server_lr=self.server_lr)
        require(0 <= self.beta < 1, "CascadingSSDM", "beta in [0, 1)", self.beta)
        require_rule(self)
        require_norm("CascadingSSDM", self.norm)

    def init(self, x0: Vector, f: Objective) -> CascadingSSDMNode:
        return CascadingSSDMNode(x0, torch.zeros_like(x0), self.rule.init(x0))

    def round(self, node: CascadingSSDMNode, steps: Loop, comm: Comm) -> CascadingSSDMNode:
        u, s = local_update(node.x, node.s, self.lr, self.rule, steps)
        m = self.beta * node.m + (1 - self.beta) * u / self.lr
        step = self.lr if self.server_lr is None else self.server_lr
        return CascadingSSDMNode(node.x - step * comm.reduce(m, Cascade(self.norm)), m, s)
