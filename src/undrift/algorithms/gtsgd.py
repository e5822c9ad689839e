"""GTSGD. Xin, Khan, Kar, "An Improved Convergence Analysis for Decentralized Online Stochastic
Non-Convex Optimization", IEEE Transactions on Signal Processing 2021 (GT-DSGD, the atc form); the
cta form is DIGing, Nedic, Olshevsky, Shi, SIAM Journal on Optimization 2017.

    cta:  y_i = g_i(x_i) at the start;  x_i' <- sum_j W_ij x_j - lr y_i
          y_i <- sum_j W_ij y_j + g_i(x_i') - g_i(x_i);  x_i <- x_i'
    atc:  y_i = g_i = 0 at the start;  y_i <- sum_j W_ij (y_j + g_j(x_j) - the g_j before)
          x_i <- sum_j W_ij (x_j - lr y_j)

Communicates at every step, two vectors each time; the cta form sends both at once. NET-FLEET with
one step a round is the cta form, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from undrift.check import require_choice, require_positive
from undrift.core import Comm, Gossip, Loop, Objective, Vector
from undrift.field_help import documented


class GTSGDNode(NamedTuple):
    x: Vector
    y: Vector  # tracks the mean gradient of all nodes
    g: Vector  # the gradient that y holds


@documented
@dataclass(frozen=True)
class GTSGD(Gossip[GTSGDNode]):
    """Tracks the mean gradient; reaches the optimum of the mean objective with a constant lr."""

    lr: float
    """Step size, > 0."""
    form: Literal["cta", "atc"] = "cta"
    """Order of the exchange: "cta" sends x and y together; "atc" sends y, then x."""

    def __post_init__(self) -> None:
        require_positive("GTSGD", lr=self.lr)
        require_choice("GTSGD", "form", self.form, ("cta", "atc"))

    @property
    def every_step(self) -> bool:
        return True

    def init(self, x0: Vector, f: Objective) -> GTSGDNode:
        g = f.grad(x0) if self.form == "cta" else torch.zeros_like(x0)
        return GTSGDNode(x0, g, g)

    def round(self, node: GTSGDNode, steps: Loop, comm: Comm) -> GTSGDNode:
        def combine_then_adapt(node: GTSGDNode, f: Objective) -> GTSGDNode:
            x, y = comm.mix((node.x, node.y))
            x = x - self.lr * node.y
            g = f.grad(x)
            return GTSGDNode(x, y + g - node.g, g)

        def adapt_then_combine(node: GTSGDNode, f: Objective) -> GTSGDNode:
            g = f.grad(node.x)
            y = comm.mix(node.y + g - node.g)
            return GTSGDNode(comm.mix(node.x - self.lr * y), y, g)

        return steps(combine_then_adapt if self.form == "cta" else adapt_then_combine, node)
