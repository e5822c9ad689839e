"""FedCM. Xu et al., "FedCM: Federated Learning with Client-level Momentum", arXiv:2106.10874, 2021.

    line 1  server: broadcast x and the momentum m
    line 2  client: y <- x;  K_i times:  y <- y - lr (alpha g_i(y) + (1 - alpha) m / K_i)
    line 3          send D_i = y - x
    line 4  server: m <- -sum_i w_i D_i / lr;  x <- x - lr m

Here m is the sum of a round's directions: m / K is the paper's Delta_t, in gradient units, and x
moves by the mean of the D_i. Deviations, each fixed by a test:
* Unequal K_i: the paper has one K. Each client divides m by its own K_i, so that the momentum moves
  all of them by the same (1 - alpha) lr m: one vector up, alpha = 1 is FedAvg, and the fixed point
  is FedAvg's at alpha lr. Dividing each D_i by K_i on the way up would lose the last two.
* m is divided by the lr of its own round, so a schedule of lr rescales it.
* Weight decay is part of g_i, so it is weighed by alpha; FL-Simulator adds it outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from undrift.check import require, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedCMServer(NamedTuple):
    x: Vector
    m: Vector  # the mean of the clients' sums of directions in the last round


@documented
@dataclass(frozen=True)
class FedCM(Federated[FedCMServer, FedCMServer, tuple[()], Vector]):
    """Draws every local step to the last global one; smaller `alpha` remembers longer."""

    lr: float
    """Step size of the local steps, > 0."""
    alpha: float = 0.1
    """Weight of the client's own gradient, in (0, 1]; a smaller one follows the last global
    direction more closely."""

    def __post_init__(self) -> None:
        require_positive("FedCM", lr=self.lr)
        require(0 < self.alpha <= 1, "FedCM", "alpha in (0, 1]", self.alpha)

    def init(self, x0: Vector) -> FedCMServer:
        return FedCMServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: FedCMServer) -> tuple[()]:
        return ()

    def broadcast(self, server: FedCMServer) -> FedCMServer:
        return server  # line 1

    def local(self, down: FedCMServer, client: tuple[()], steps: Loop) -> tuple[Vector, tuple[()]]:
        x, m = down
        pull = (1 - self.alpha) * m / steps.count

        def step(y: Vector, f: Objective) -> Vector:
            return y.sub(pull.add(f.grad(y), alpha=self.alpha), alpha=self.lr)  # line 2

        return steps(step, x) - x, client  # line 3

    def update(self, server: FedCMServer, mean: Vector, cohort: Cohort) -> FedCMServer:
        return FedCMServer(server.x + mean, -mean / self.lr)  # line 4
