"""FedGamma. Dai et al., "FedGAMMA: Federated Learning With Global Sharpness-Aware Minimization",
IEEE TNNLS 2023: SCAFFOLD with gradients of sharpness-aware minimisation.

    server:  broadcast x, c
    client:  y <- x;  K_i times:  g = g_i(y);  g~ = g_i(y + rho g / ||g||), same minibatch
                                  y <- y - lr (g~ - c_i + c)
             c_i+ = c_i - c + (x - y) / (K_i lr);  send y - x, c_i+ - c_i;  c_i <- c_i+
    server:  x <- x + server_lr mean_S (y - x);  c <- c + |S| / N mean_S (c_i+ - c_i)

The ascent follows the client's own gradient, without c; `ascent="data"` takes it without weight
decay and clipping, `normalise=False` is y + rho g, `relative` y + rho ||y|| g / ||g||. All control
variates start at zero, so c = sum_i w_i c_i always; with weights, |S| / N is the population weight
of the cohort.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from undrift.algorithms.ascent import ascent_divisor, ascent_stall_cause, require_one_length
from undrift.check import require_choice, require_nonnegative, require_positive
from undrift.core import DUALS_NEED_MEAN, Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedGammaServer(NamedTuple):
    x: Vector
    c: Vector


class FedGammaUpload(NamedTuple):
    x: Vector  # y - x
    c: Vector  # c_i+ - c_i


@documented
@dataclass(frozen=True)
class FedGamma(Federated[FedGammaServer, FedGammaServer, Vector, FedGammaUpload]):
    """Looks for flat minima of the global objective, whose gradient control variates carry."""

    lr: float
    """Step size of the local steps, > 0."""
    rho: float = 0.1
    """Length of the ascent step, >= 0; a larger one finds flatter minima."""
    server_lr: float = 1.0
    """Share of the mean update that the server applies, >= 0; control variates are not scaled by
    it."""
    ascent: Literal["full", "data"] = "full"
    """Gradient that the ascent step follows: "full" with weight decay and clipping, or that of the
    "data" alone, as the box has it."""
    normalise: bool = True
    """Divide the ascent step by the norm of the gradient over all parameters."""
    relative: bool = False
    """Multiply rho by the norm of the weights, so that one value serves nets of different size."""

    def __post_init__(self) -> None:
        require_positive("FedGamma", lr=self.lr)
        require_nonnegative("FedGamma", rho=self.rho, server_lr=self.server_lr)
        require_choice("FedGamma", "ascent", self.ascent, ("full", "data"))
        require_one_length("FedGamma", normalise=self.normalise, relative=self.relative)

    @property
    def stall_cause(self) -> str:
        return ascent_stall_cause(self.rho)

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return DUALS_NEED_MEAN

    def init(self, x0: Vector) -> FedGammaServer:
        return FedGammaServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: FedGammaServer) -> Vector:
        return torch.zeros_like(x0)

    def broadcast(self, server: FedGammaServer) -> FedGammaServer:
        return server

    def local(
        self, down: FedGammaServer, client: Vector, steps: Loop
    ) -> tuple[FedGammaUpload, Vector]:
        (x, c), c_i = down, client

        def step(y: Vector, f: Objective) -> Vector:
            g = f.grad(y) if self.ascent == "full" else f.grad_and_data_grad(y)[1]
            size = ascent_divisor(y, g, normalise=self.normalise, relative=self.relative)
            g = f.grad(y + self.rho * g / size)
            return y - self.lr * (g - c_i + c)

        y = steps(step, x)
        c_new = c_i - c + (x - y) / (steps.count * self.lr)
        return FedGammaUpload(y - x, c_new - c_i), c_new

    def enrol(self, server: FedGammaServer, share: float) -> FedGammaServer:
        return server._replace(c=share * server.c)

    def update(
        self, server: FedGammaServer, mean: FedGammaUpload, cohort: Cohort
    ) -> FedGammaServer:
        x = server.x + self.server_lr * mean.x
        c = server.c + cohort.mass * mean.c
        return FedGammaServer(x, c)
