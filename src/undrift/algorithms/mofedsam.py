"""MoFedSAM. Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", ICML
2022: FedCM with gradients of sharpness-aware minimisation.

    server:  broadcast x and the momentum m
    client:  y <- x;  K_i times:  g = g_i(y);  g~ = g_i(y + rho g / ||g||), same minibatch
                                  y <- y - lr (alpha g~ + (1 - alpha) m / K_i)
             send D_i = y - x
    server:  m <- -sum_i w_i D_i / lr;  x <- x - lr m

Here m is the sum of a round's directions, as in FedCM: m / K is the paper's Delta, and each client
divides by its own K_i where the paper has one K. rho = 0 is FedCM, alpha = 1 is FedSAM
(test_servers). The ascent follows the client's own gradient, without m; `ascent="data"` takes it
without weight decay and clipping; `normalise=False` is y + rho g and `relative` is
y + rho ||y|| g / ||g||.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from undrift.algorithms.ascent import ascent_divisor, ascent_stall_cause, require_one_length
from undrift.check import require, require_choice, require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class MoFedSAMServer(NamedTuple):
    x: Vector
    m: Vector  # the mean of the clients' sums of directions in the last round


@documented
@dataclass(frozen=True)
class MoFedSAM(Federated[MoFedSAMServer, MoFedSAMServer, tuple[()], Vector]):
    """Draws every step of FedSAM to the last global one; smaller `alpha` remembers longer."""

    lr: float
    """Step size of the local steps, > 0."""
    rho: float = 0.1
    """Length of the ascent step, >= 0; 0 is FedCM."""
    alpha: float = 0.1
    """Weight of the client's own gradient, in (0, 1]; a smaller one remembers longer; 1 is
    FedSAM."""
    ascent: Literal["full", "data"] = "full"
    """Gradient that the ascent step follows: "full" with weight decay and clipping, or that of the
    "data" alone, as the authors' simulator has it."""
    normalise: bool = True
    """Divide the ascent step by the norm of the gradient over all parameters."""
    relative: bool = False
    """Multiply rho by the norm of the weights, so that one value serves nets of different size."""

    def __post_init__(self) -> None:
        require_positive("MoFedSAM", lr=self.lr)
        require_nonnegative("MoFedSAM", rho=self.rho)
        require(0 < self.alpha <= 1, "MoFedSAM", "alpha in (0, 1]", self.alpha)
        require_choice("MoFedSAM", "ascent", self.ascent, ("full", "data"))
        require_one_length("MoFedSAM", normalise=self.normalise, relative=self.relative)

    @property
    def stall_cause(self) -> str:
        return ascent_stall_cause(self.rho)

    def init(self, x0: Vector) -> MoFedSAMServer:
        return MoFedSAMServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: MoFedSAMServer) -> tuple[()]:
        return ()

    def broadcast(self, server: MoFedSAMServer) -> MoFedSAMServer:
        return server

    def local(
        self, down: MoFedSAMServer, client: tuple[()], steps: Loop
    ) -> tuple[Vector, tuple[()]]:
        x, m = down
        pull = (1 - self.alpha) * m / steps.count

        def step(y: Vector, f: Objective) -> Vector:
            g = f.grad(y) if self.ascent == "full" else f.grad_and_data_grad(y)[1]
            size = ascent_divisor(y, g, normalise=self.normalise, relative=self.relative)
            g = f.grad(y + self.rho * g / size)
            return y - self.lr * (self.alpha * g + pull)

        return steps(step, x) - x, client

    def update(self, server: MoFedSAMServer, mean: Vector, cohort: Cohort) -> MoFedSAMServer:
        return MoFedSAMServer(server.x + mean, -mean / self.lr)
