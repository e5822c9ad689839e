"""NetFleet. Zhang, Fang, Liu, Yang, Liu, Zhu, "NET-FLEET: Achieving Linear Convergence Speedup for
Fully Decentralized Federated Learning with Heterogeneous Data", ACM MobiHoc 2022.

    start:   y_i = g_i(x_i)
    round:   x_i' <- sum_j W_ij x_j - lr y_i;  y_i <- sum_j W_ij y_j + g_i(x_i') - g_i;  x_i <- x_i'
    K - 1 times:
             x_i' <- x_i - lr y_i;  y_i <- y_i + g_i(x_i') - g_i;  x_i <- x_i'

g_i is always the gradient taken last, on the minibatch of its own step. x and y of the previous
point travel together, once a round; the step uses the node's own y_i, not the mixed one. The
formula printed after the paper's (5) mixes y^(i) where y^(j) is meant; the neighbours of i include
i. K steps a round are K gradients, and one more at the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from undrift.check import require_positive
from undrift.core import Comm, Gossip, Loop, Objective, Vector
from undrift.field_help import documented


class NetFleetNode(NamedTuple):
    x: Vector
    y: Vector  # tracks the mean gradient of all nodes
    g: Vector  # the gradient that y holds


@documented
@dataclass(frozen=True)
class NetFleet(Gossip[NetFleetNode]):
    """Gossips once a round and corrects gradients recursively; exact with a constant lr."""

    lr: float
    """Step size, > 0; longer rounds need a smaller one."""

    def __post_init__(self) -> None:
        require_positive("NetFleet", lr=self.lr)

    def init(self, x0: Vector, f: Objective) -> NetFleetNode:
        g = f.grad(x0)
        return NetFleetNode(x0, g, g)

    def round(self, node: NetFleetNode, steps: Loop, comm: Comm) -> NetFleetNode:
        def step(node: NetFleetNode, f: Objective) -> NetFleetNode:
            x, y = node.x, node.y
            if f.k == 0:
                x, y = comm.mix((x, y))
            x = x - self.lr * node.y
            g = f.grad(x)
            return NetFleetNode(x, y + g - node.g, g)

        return steps(step, node)
