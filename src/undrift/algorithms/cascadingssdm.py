"""CascadingSSDM. Wu, He, Guo, Qu, Wang, Zhuang, Zhang, "Sign Bit is Enough: A Learning
Synchronization Framework for Multi-hop All-reduce with Ultimate Compression", DAC 2022: its
baseline that compresses at every hop.

    m_m <- beta m_m + (1 - beta) g_m(x)
    C_1 = Q(m_1);  C_m = Q(C_(m-1) + m_m) at every hop;  x <- x - lr C_M / M
    Q(v) = ||v||_2 s(v), s_j = +1 with probability 1/2 + v_j / (2 ||v||_2), else -1

Unbiased, but the second moment of C_m grows like D^m: it collapses as workers are added. A hop
sends one bit a coordinate and the norm of the piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from undrift.check import require, require_positive
from undrift.comm.merges import Cascade
from undrift.core import AllReduce, Comm, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, local_update


class CascadingSSDMNode(NamedTuple):
    x: Vector
    m: Vector


@documented
@dataclass(frozen=True)
class CascadingSSDM(AllReduce[CascadingSSDMNode]):
    """Compresses SSDM anew at every hop: what one-bit all-reduce must not do."""

    lr: float
    """Step size, > 0."""
    beta: float = 0.9
    """Momentum of the gradients that are sent, in [0, 1)."""

    def __post_init__(self) -> None:
        require_positive("CascadingSSDM", lr=self.lr)
        require(0 <= self.beta < 1, "CascadingSSDM", "beta in [0, 1)", self.beta)

    def init(self, x0: Vector, f: Objective) -> CascadingSSDMNode:
        return CascadingSSDMNode(x0, torch.zeros_like(x0))

    def round(self, node: CascadingSSDMNode, steps: Loop, comm: Comm) -> CascadingSSDMNode:
        u, _ = local_update(node.x, (), self.lr, SGD(), steps)
        m = self.beta * node.m + (1 - self.beta) * u / self.lr
        return CascadingSSDMNode(node.x - self.lr * comm.reduce(m, Cascade()), m)
