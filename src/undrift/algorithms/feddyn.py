"""FedDyn. Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021,
Algorithm 1.

    line 1  server: broadcast x
    line 2  client: y ~ argmin F_i(y) - <lam_i, y> + (alpha / 2) ||y - x||^2, from y = x:
                    K_i times:  y <- y - lr (g_i(y) - lam_i + alpha (y - x))
    line 3          lam_i <- lam_i - alpha (y - x);  send D_i = y - x
    line 4  server: h <- h - alpha |S| / N mean_S D_i
    line 5          x <- x + mean_S D_i - h / alpha

lam_i and h start at zero; lam_i tends to grad F_i(x*) and h = sum_i w_i lam_i always. Deviations:
* With weights, |S| / N of line 4 is the population weight of the cohort (test_duals, optimum).
* One alpha for all; the authors' code has alpha_i = alpha n / (N n_i) and h_i = -lam_i / alpha.
* The quadratic is squared and its gradient is alpha (y - x): five libraries have it otherwise, and
  test_duals refuses all five.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from undrift.check import require, require_positive
from undrift.core import DUALS_NEED_MEAN, Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedDynServer(NamedTuple):
    x: Vector
    h: Vector  # sum_i w_i lam_i over all clients


@documented
@dataclass(frozen=True)
class FedDyn(Federated[FedDynServer, Vector, Vector, Vector]):
    """Makes local optima agree by a linear term per client; larger `alpha` holds them nearer."""

    lr: float
    """Step size of the local steps, > 0."""
    alpha: float = 0.1
    """Weight of the quadratic, in (0, 2 / lr]; a larger one keeps clients nearer to x and lets
    their duals learn faster."""

    def __post_init__(self) -> None:
        require_positive("FedDyn", lr=self.lr, alpha=self.alpha)
        require(
            self.alpha * self.lr <= 2,
            "FedDyn",
            f"alpha <= 2 / lr = {2 / self.lr:g}",
            float(self.alpha),
            "above it the prox steps grow without bound; lower alpha or lr",
        )

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return DUALS_NEED_MEAN

    def init(self, x0: Vector) -> FedDynServer:
        return FedDynServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: Vector) -> Vector:
        return torch.zeros_like(x0)

    def broadcast(self, server: FedDynServer) -> Vector:
        return server.x  # line 1

    def local(self, down: Vector, client: Vector, steps: Loop) -> tuple[Vector, Vector]:
        x, lam = down, client

        def step(y: Vector, f: Objective) -> Vector:
            d = (f.grad(y) - lam).add(y - x, alpha=self.alpha)
            return y.sub(d, alpha=self.lr)  # line 2

        y = steps(step, x)
        return y - x, lam - self.alpha * (y - x)  # line 3

    def enrol(self, server: FedDynServer, share: float) -> FedDynServer:
        return server._replace(h=share * server.h)

    def update(self, server: FedDynServer, mean: Vector, cohort: Cohort) -> FedDynServer:
        h = server.h - self.alpha * cohort.mass * mean  # line 4
        return FedDynServer(server.x + mean - h / self.alpha, h)  # line 5
