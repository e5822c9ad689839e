"""DSGD. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study
for Decentralized Parallel Stochastic Gradient Descent", NeurIPS 2017 (D-PSGD).

    cta:  x_i <- sum_j W_ij x_j - lr g_i(x_i)           combine, then adapt
    atc:  x_i <- sum_j W_ij (x_j - lr g_j(x_j))         adapt, then combine

Communicates at every step: a round of K steps has K exchanges of one vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from undrift.check import require_choice, require_positive
from undrift.core import Comm, Gossip, Loop, Objective, Vector
from undrift.field_help import documented


class DSGDNode(NamedTuple):
    x: Vector


@documented
@dataclass(frozen=True)
class DSGD(Gossip[DSGDNode]):
    """Gossips at every step; with a constant lr it ends at a biased point without consensus."""

    lr: float
    """Step size, > 0."""
    form: Literal["cta", "atc"] = "cta"
    """Order of a step: "cta" combines models, then steps, as the paper prints it; "atc" steps
    first."""

    def __post_init__(self) -> None:
        require_positive("DSGD", lr=self.lr)
        require_choice("DSGD", "form", self.form, ("cta", "atc"))

    @property
    def every_step(self) -> bool:
        return True

    def init(self, x0: Vector, f: Objective) -> DSGDNode:
        return DSGDNode(x0)

    def round(self, node: DSGDNode, steps: Loop, comm: Comm) -> DSGDNode:
        def step(x: Vector, f: Objective) -> Vector:
            d = self.lr * f.grad(x)
            return comm.mix(x) - d if self.form == "cta" else comm.mix(x - d)

        return DSGDNode(steps(step, node.x))
