"""PSGD. Zinkevich, Weimer, Smola, Li, "Parallelized Stochastic Gradient Descent", NIPS 2010;
synchronous data-parallel SGD with an all-reduce in full precision.

    y <- x;  K times:  y <- y - lr d, d the direction of `rule` for g_m(y)
    x <- x - mean_m (x - y_m)

With K = 1 and plain SGD this is SGD on the mean gradient. The rule's state (momentum, Adam) is the
worker's own and lives on from round to round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from undrift.check import require_positive
from undrift.comm.merges import Mean
from undrift.core import AllReduce, Comm, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, Rule, local_update, require_rule


class PSGDNode(NamedTuple):
    x: Vector
    s: Any  # state of the rule


@documented
@dataclass(frozen=True)
class PSGD(AllReduce[PSGDNode]):
    """Averages the workers' updates exactly: what every compressed method is measured against."""

    lr: float
    """Step size of the local steps, > 0."""
    rule: Rule = SGD()
    """Direction of the local steps; its state is the worker's own and lives on from round to
    round."""

    def __post_init__(self) -> None:
        require_positive("PSGD", lr=self.lr)
        require_rule(self)

    def init(self, x0: Vector, f: Objective) -> PSGDNode:
        return PSGDNode(x0, self.rule.init(x0))

    def round(self, node: PSGDNode, steps: Loop, comm: Comm) -> PSGDNode:
        u, s = local_update(node.x, node.s, self.lr, self.rule, steps)
        return PSGDNode(node.x - comm.reduce(u, Mean()), s)
