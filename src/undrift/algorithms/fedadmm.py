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
* `average="seen"` leaves those never seen out of the mean, where "all" (default, line 5) lets their
  first model pull x back; a client's first message adds it to the mean. Once all were seen the two
  are the same. A client then sends one scalar more, which says whether it is its first message.
* With weights, |S| / N of line 5 is the population weight of the cohort.
* This is not the FedADMM of Gong et al. (2022), whose published code converges to a point that
  depends on the first model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch.nn.functional import softshrink

from undrift.check import require, require_choice, require_nonnegative, require_positive
from undrift.core import DUALS_NEED_MEAN, Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedADMMServer(NamedTuple):
    x: Vector
    x_tilde: Vector
    first: Vector  # x^_i of those never seen
    seen: Vector  # with average="seen" the population weight of the clients seen, else empty


class FedADMMClient(NamedTuple):
    x_hat: Vector
    lam: Vector
    new: Vector  # 1 before the first round, then 0; empty unless average="seen" needs it


class FedADMMUpload(NamedTuple):
    x: Vector  # x^_i+ - x^_i
    new: Vector


@documented
@dataclass(frozen=True)
class FedADMM(Federated[FedADMMServer, Vector, FedADMMClient, FedADMMUpload]):
    """Solves consensus ADMM inexactly; larger `rho` holds clients nearer and speeds up duals."""

    lr: float
    """Step size of the local steps, > 0."""
    rho: float = 0.1
    """Weight of the quadratic penalty, in (0, 2 / lr]; a larger one keeps clients nearer to x and
    lets their duals learn faster."""
    l1: float = 0.0
    """Weight of the server's regulariser l1 ||x||_1, >= 0; a larger one makes the model sparser, 0
    leaves it out."""
    average: Literal["all", "seen"] = "all"
    """Clients whose messages the server averages: "all", where those never seen count with the
    first model, or only those "seen" so far."""

    def __post_init__(self) -> None:
        require_positive("FedADMM", lr=self.lr, rho=self.rho)
        require_nonnegative("FedADMM", l1=self.l1)
        require_choice("FedADMM", "average", self.average, ("all", "seen"))
        require(
            self.rho * self.lr <= 2,
            "FedADMM",
            f"rho <= 2 / lr = {2 / self.lr:g}",
            float(self.rho),
            "above it the prox steps grow without bound; lower rho or lr",
        )

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return DUALS_NEED_MEAN

    def init(self, x0: Vector) -> FedADMMServer:
        return FedADMMServer(x0, x0, x0, x0.new_zeros(() if self.average == "seen" else 0))

    def init_client(self, x0: Vector, down: Vector) -> FedADMMClient:
        new = x0.new_ones(() if self.average == "seen" else 0)
        return FedADMMClient(x0, torch.zeros_like(x0), new)

    def broadcast(self, server: FedADMMServer) -> Vector:
        return server.x  # line 1

    def local(
        self, down: Vector, client: FedADMMClient, steps: Loop
    ) -> tuple[FedADMMUpload, FedADMMClient]:
        x, (x_hat, lam, new) = down, client

        def step(y: Vector, f: Objective) -> Vector:
            return y - self.lr * (f.grad(y) + lam + self.rho * (y - x))  # line 2

        y = steps(step, x)
        lam = lam + self.rho * (y - x)  # line 3
        x_hat_new = y + lam / self.rho  # line 4
        up = FedADMMUpload(x_hat_new - x_hat, new)  # line 4
        return up, FedADMMClient(x_hat_new, lam, torch.zeros_like(new))

    def enrol(self, server: FedADMMServer, share: float) -> FedADMMServer:
        if self.average == "seen":
            return server._replace(seen=share * server.seen)
        return self.at(server, server.first + share * (server.x_tilde - server.first))

    def update(self, server: FedADMMServer, mean: FedADMMUpload, cohort: Cohort) -> FedADMMServer:
        change = cohort.mass * mean.x
        if self.average == "all":
            return self.at(server, server.x_tilde + change)  # line 5
        new = cohort.mass * mean.new
        seen = server.seen + new
        change = change + new * (server.first - server.x_tilde)  # the new have sent x^_i - first
        return self.at(server._replace(seen=seen), server.x_tilde + change / seen)

    def at(self, server: FedADMMServer, x_tilde: Vector) -> FedADMMServer:
        """Return the server's state at another x~, with x from its prox step."""
        return server._replace(x=softshrink(x_tilde, self.l1 / self.rho), x_tilde=x_tilde)
