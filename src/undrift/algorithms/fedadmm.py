"""FedADMM. Wang, Marella and Anderson, "FedADMM: A Federated Primal-Dual Algorithm Allowing Partial
Participation", CDC 2022, with g = l1 ||x||_1 as the regulariser.

    line 1  server: broadcast x
    line 2  client: y ~ argmin F_i(y) + <lam_i, y - x> + (rho / 2) ||y - x||^2, from y = x:
                    K_i times:  y <- y - lr (g_i(y) + lam_i + rho (y - x))
    line 3          lam_i <- lam_i + rho (y - x)
    line 4          x^_i+ = y + lam_i / rho;  send x^_i+ - x^_i;  x^_i <- x^_i+
    line 5  server: x~ <- x~ + |S| / N mean_S (x^_i+ - x^_i);  x <- prox_{g / rho}(x~)

All lam_i start at zero and all x^_i at the first model, so x~ = sum_i w_i x^_i always, over the
present, the absent and the never seen; without a regulariser (the default) x = x~. Deviations:
* With weights, |S| / N of line 5 is the population weight of the cohort.
* This is not the FedADMM of Gong et al. (2022), whose published code converges to a point that
  depends on the first model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import softshrink

from undrift.check import require, require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedADMMServer(NamedTuple):
    x: Vector
    x_tilde: Vector
    first: Vector  # x^_i of those never seen


class FedADMMClient(NamedTuple):
    x_hat: Vector
    lam: Vector


@documented
@dataclass(frozen=True)
class FedADMM(Federated[FedADMMServer, Vector, FedADMMClient, Vector]):
    """Solves consensus ADMM inexactly; larger `rho` holds clients nearer and speeds up duals."""

    lr: float
    """Step size of the local steps, > 0."""
    rho: float = 0.1
    """Weight of the quadratic penalty, in (0, 1 / lr]; a larger one keeps clients nearer to x and
    lets their duals learn faster."""
    l1: float = 0.0
    """Weight of the server's regulariser l1 ||x||_1, >= 0; a larger one makes the model sparser, 0
    leaves it out."""

    def __post_init__(self) -> None:
        require_positive("FedADMM", lr=self.lr, rho=self.rho)
        require_nonnegative("FedADMM", l1=self.l1)
        require(
            self.rho * self.lr <= 1,
            "FedADMM",
            f"rho <= 1 / lr = {1 / self.lr:g}",
            float(self.rho),
            "with rho > 1 / lr each prox step overshoots; lower rho or lr",
        )

    def init(self, x0: Vector) -> FedADMMServer:
        return FedADMMServer(x0, x0, x0)

    def init_client(self, x0: Vector, down: Vector) -> FedADMMClient:
        return FedADMMClient(x0, torch.zeros_like(x0))

    def broadcast(self, server: FedADMMServer) -> Vector:
        return server.x  # line 1

    def local(
        self, down: Vector, client: FedADMMClient, steps: Loop
    ) -> tuple[Vector, FedADMMClient]:
        x, (x_hat, lam) = down, client

        def step(y: Vector, f: Objective) -> Vector:
            return y - self.lr * (f.grad(y) + lam + self.rho * (y - x))  # line 2

        y = steps(step, x)
        lam = lam + self.rho * (y - x)  # line 3
        x_hat_new = y + lam / self.rho  # line 4
        return x_hat_new - x_hat, FedADMMClient(x_hat_new, lam)  # line 4

    def enrol(self, server: FedADMMServer, share: float) -> FedADMMServer:
        return self.at(server, server.first + share * (server.x_tilde - server.first))

    def update(self, server: FedADMMServer, mean: Vector, cohort: Cohort) -> FedADMMServer:
        return self.at(server, server.x_tilde + cohort.mass * mean)  # line 5

    def at(self, server: FedADMMServer, x_tilde: Vector) -> FedADMMServer:
        """Return the server's state at another x~, with x from its prox step."""
        return server._replace(x=softshrink(x_tilde, self.l1 / self.rho), x_tilde=x_tilde)
