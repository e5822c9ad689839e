"""SignSGD. Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault
Tolerant", ICLR 2019.

    u_m = lr g_m(x), or the worker's update of K local steps
    x <- x - server_lr sign(sum_m sign(u_m))

sign(0) = +1, and so is a tie among an even number of workers. `server_lr` is the step of every
coordinate, lr unless given. With rule = Momentum(beta) this is Signum. Partial sums grow on the
way: a message that stands for r workers takes ceil(log2(r + 1)) bits a coordinate, or an Elias
`code`; the vote that comes back takes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from undrift.check import require_positive
from undrift.comm.merges import Code, SignSum, require_code
from undrift.core import AllReduce, Comm, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, Rule, local_update, require_rule


class SignSGDNode(NamedTuple):
    x: Vector
    s: Any  # state of the rule


@documented
@dataclass(frozen=True)
class SignSGD(AllReduce[SignSGDNode]):
    """Moves each coordinate by server_lr, the way most workers' gradients point."""

    lr: float
    """Step size of the local steps, > 0, and of every coordinate unless
    server_lr is set."""
    server_lr: float | None = None
    """Step of every coordinate, > 0; none takes lr."""
    rule: Rule = SGD()
    """Direction of the local steps, whose state lives on from round to round; momentum makes the
    method Signum."""
    code: Code = "fixed"
    """Code of the summed signs: "fixed" width, or Elias "gamma", "delta" or "omega"."""

    def __post_init__(self) -> None:
        require_positive("SignSGD", lr=self.lr)
        if self.server_lr is not None:
            require_positive("SignSGD", server_lr=self.server_lr)
        require_rule(self)
        require_code("SignSGD", self.code)

    def init(self, x0: Vector, f: Objective) -> SignSGDNode:
        return SignSGDNode(x0, self.rule.init(x0))

    def round(self, node: SignSGDNode, steps: Loop, comm: Comm) -> SignSGDNode:
        u, s = local_update(node.x, node.s, self.lr, self.rule, steps)
        vote = comm.reduce(u, SignSum(self.code, vote=True))
        step = self.lr if self.server_lr is None else self.server_lr
        return SignSGDNode(node.x - step * vote, s)
