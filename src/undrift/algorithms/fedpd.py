"""FedPD. Zhang et al., "FedPD: A Federated Learning Framework With Adaptivity to Non-IID Data",
IEEE Transactions on Signal Processing 2021, Algorithm 1 with Oracle I.

    line 1  server: broadcast x;  every client: x0_i <- x
    line 2  client: x_i ~ argmin F_i(y) + <lam_i, y - x0_i> + ||y - x0_i||^2 / (2 eta), from x_i:
                    K_i times:  y <- y - lr (g_i(y) + lam_i + (y - x0_i) / eta)
    line 3          lam_i <- lam_i + (x_i - x0_i) / eta
    line 4          x0_i <- x_i + eta lam_i
    line 5          with probability p (one coin for all) again from line 2; else send x0_i - x
    line 6  server: x <- mean of the x0_i

A round of the engine is one communication, so it runs a geometric number of passes of K_i steps,
the same for all clients: a function of `coin` (a seed) and the round. Deviations:
* `start="own"` (default: the authors' code) starts line 2 from the client's last x_i; "server" from
  x0_i, which with p = 0 is FedDyn(alpha=1 / eta). A newcomer's x_i is the model it receives.
* The paper has everybody in every round. Under partial participation the absent keep their state,
  and line 6 as printed, the mean over the cohort, then stalls at a noise floor (test_duals).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from undrift import keyed
from undrift.check import require, require_choice, require_positive
from undrift.core import DUALS_NEED_MEAN, Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedPDServer(NamedTuple):
    x: Vector


class FedPDClient(NamedTuple):
    x: Vector  # x_i; empty with start="server", which does not need it
    lam: Vector


@documented
@dataclass(frozen=True)
class FedPD(Federated[FedPDServer, Vector, FedPDClient, Vector]):
    """Skips communications at random in a primal-dual method; the larger `p`, the more of them."""

    lr: float
    """Step size of the local steps, > 0."""
    eta: float = 10.0
    """The paper's eta, at least lr; the quadratic weighs 1 / (2 eta), so a larger one lets clients
    go further."""
    p: float = 0.0
    """Probability of skipping a communication, in [0, 1); a message stands for 1 / (1 - p) local
    passes on average."""
    start: Literal["own", "server"] = "own"
    """Point at which a local pass starts: the client's "own" last x_i, or x0_i of the "server"."""
    coin: int = 0
    """Seed of the coin that decides who skips, the same for all clients."""

    def __post_init__(self) -> None:
        require_positive("FedPD", lr=self.lr, eta=self.eta)
        require(
            self.eta >= self.lr,
            "FedPD",
            f"eta >= lr = {float(self.lr)}",
            float(self.eta),
            "below it prox steps overshoot and the clients' own models grow; raise eta or lower lr",
        )
        never = "with p = 1 nobody would ever communicate"
        require(0 <= self.p < 1, "FedPD", "p in [0, 1)", float(self.p), never)
        require_choice("FedPD", "start", self.start, ("own", "server"))

    @property
    def starts_at_broadcast(self) -> bool:
        return self.start == "server"

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return DUALS_NEED_MEAN

    def init(self, x0: Vector) -> FedPDServer:
        return FedPDServer(x0)

    def init_client(self, x0: Vector, down: Vector) -> FedPDClient:
        return FedPDClient(down if self.start == "own" else down[:0], torch.zeros_like(x0))

    def broadcast(self, server: FedPDServer) -> Vector:
        return server.x  # line 1

    def passes(self, t: int) -> int:
        """Return how often lines 2-4 run in round t, for all clients; 1 / (1 - p) on average."""
        return int(keyed.generator(self.coin, "fedpd", t).geometric(1 - self.p))

    def local(self, down: Vector, client: FedPDClient, steps: Loop) -> tuple[Vector, FedPDClient]:
        x0, (x, lam) = down, client

        def step(y: Vector, f: Objective) -> Vector:
            return y - self.lr * (f.grad(y) + lam + (y - x0) / self.eta)

        for _ in range(self.passes(steps.t)):  # line 5
            x = steps(step, x if self.start == "own" else x0)  # line 2
            lam = lam + (x - x0) / self.eta  # line 3
            x0 = x + self.eta * lam  # line 4
        return x0 - down, FedPDClient(x if self.start == "own" else client.x, lam)

    def update(self, server: FedPDServer, mean: Vector, cohort: Cohort) -> FedPDServer:
        return FedPDServer(server.x + mean)  # line 6
