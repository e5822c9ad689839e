"""LDSGD. Li et al., "Communication-Efficient Local Decentralized SGD Methods", arXiv:1910.09126,
2019 (LD-SGD).

    cta:  the first `gossip` of the round's K steps:  x_i <- sum_j W_ij x_j - lr g_i(x_i)
          the K - gossip others:                      x_i <- x_i - lr g_i(x_i)
    atc:  K times x_i <- x_i - lr g_i(x_i), then `gossip` times x_i <- sum_j W_ij x_j

In the paper a round is I1 local steps and I2 steps of DSGD; here K = I1 + I2 and I2 = gossip, and
the gossip steps open the round, as in NET-FLEET. The atc form with gossip = 1 ends the round with
an adapt-then-combine step of DSGD; with W = J it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from undrift.check import is_whole, require, require_choice, require_positive
from undrift.core import Comm, Gossip, Loop, Objective, Vector
from undrift.field_help import documented


class LDSGDNode(NamedTuple):
    x: Vector


@documented
@dataclass(frozen=True)
class LDSGD(Gossip[LDSGDNode]):
    """Gossips once a round between local steps; ends further off than DSGD, for less traffic."""

    lr: float
    """Step size, > 0."""
    form: Literal["cta", "atc"] = "cta"
    """Place of the gossip: "cta" opens the round with steps of DSGD; "atc" ends it by mixing
    without a step."""
    gossip: int = 1
    """Exchanges in a round, the paper's I2, >= 1."""

    def __post_init__(self) -> None:
        require_positive("LDSGD", lr=self.lr)
        require_choice("LDSGD", "form", self.form, ("cta", "atc"))
        valid = is_whole(self.gossip) and self.gossip >= 1
        require(valid, "LDSGD", "gossip >= 1, a whole number", self.gossip)

    @property
    def meetings(self) -> int:
        return self.gossip if self.form == "cta" else 1

    def init(self, x0: Vector, f: Objective) -> LDSGDNode:
        return LDSGDNode(x0)

    def round(self, node: LDSGDNode, steps: Loop, comm: Comm) -> LDSGDNode:
        def step(x: Vector, f: Objective) -> Vector:
            mixes = self.form == "cta" and f.k < self.gossip
            return (comm.mix(x) if mixes else x) - self.lr * f.grad(x)

        x = steps(step, node.x)
        for _ in range(self.gossip if self.form == "atc" else 0):
            x = comm.mix(x)
        return LDSGDNode(x)
