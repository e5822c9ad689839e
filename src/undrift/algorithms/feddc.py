"""FedDC. Gao et al., "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and
Correction", CVPR 2022, Algorithm 1.

    line 1  server: broadcast x, G
    line 2  client: y <- x
    line 3          K_i times:  y <- y - lr (g_i(y) + alpha (y - x + h_i) + G - G_i)
    line 4          G_i+ = G_i - G + (x - y) / (K_i lr)
    line 5          send y - x, G_i+ - G_i;  h_i <- h_i + y - x;  G_i <- G_i+
    line 6  server: G <- G + |S| / N mean_S (G_i+ - G_i)
    line 7          x <- mean_S y + sum_i w_i h_i

Everything but x starts at zero, so G = sum_i w_i G_i and h = sum_i w_i h_i always. Deviations:
* Line 7 takes the drifts of all clients, as the authors' code; the paper takes mean_S (y + h_i),
  which under partial participation has the noise floor of FedSpeed's "participants".
* With weights, |S| / N of line 6, and in the mean of the h_i, is the cohort's population weight.
* Line 4 has the lr of the round; the authors' code divides by the first one also when lr decays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from undrift.check import require, require_positive
from undrift.core import DUALS_NEED_MEAN, Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedDCServer(NamedTuple):
    x: Vector
    G: Vector  # sum_i w_i G_i over all clients
    h: Vector  # sum_i w_i h_i over all clients


class FedDCDown(NamedTuple):
    x: Vector
    G: Vector


class FedDCClient(NamedTuple):
    h: Vector  # the drift, in parameter units
    G: Vector  # the mean direction of its last round without the correction


class FedDCUpload(NamedTuple):
    x: Vector  # y - x
    G: Vector  # G_i+ - G_i


@documented
@dataclass(frozen=True)
class FedDC(Federated[FedDCServer, FedDCDown, FedDCClient, FedDCUpload]):
    """Joins FedDyn's drift variable and SCAFFOLD's correction; larger `alpha` holds y nearer."""

    lr: float
    """Step size of the local steps, > 0."""
    alpha: float = 0.01
    """Weight of the quadratic, in (0, 1 / lr]; a larger one keeps clients nearer to x - h_i."""

    def __post_init__(self) -> None:
        require_positive("FedDC", lr=self.lr, alpha=self.alpha)
        require(
            self.alpha * self.lr <= 1,
            "FedDC",
            f"alpha <= 1 / lr = {1 / self.lr:g}",
            float(self.alpha),
            "above it prox steps overshoot and the drift variables grow; lower alpha or lr",
        )

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return DUALS_NEED_MEAN

    def init(self, x0: Vector) -> FedDCServer:
        return FedDCServer(x0, torch.zeros_like(x0), torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: FedDCDown) -> FedDCClient:
        return FedDCClient(torch.zeros_like(x0), torch.zeros_like(x0))

    def broadcast(self, server: FedDCServer) -> FedDCDown:
        return FedDCDown(server.x, server.G)  # line 1

    def local(
        self, down: FedDCDown, client: FedDCClient, steps: Loop
    ) -> tuple[FedDCUpload, FedDCClient]:
        (x, G), (h_i, G_i) = down, client

        def step(y: Vector, f: Objective) -> Vector:
            return y - self.lr * (f.grad(y) + self.alpha * (y - x + h_i) + G - G_i)  # line 3

        y = steps(step, x)  # line 2
        G_new = G_i - G + (x - y) / (steps.count * self.lr)  # line 4
        return FedDCUpload(y - x, G_new - G_i), FedDCClient(h_i + y - x, G_new)  # line 5

    def enrol(self, server: FedDCServer, share: float) -> FedDCServer:
        return server._replace(G=share * server.G, h=share * server.h)

    def update(self, server: FedDCServer, mean: FedDCUpload, cohort: Cohort) -> FedDCServer:
        G = server.G + cohort.mass * mean.G  # line 6
        h = server.h + cohort.mass * mean.x
        return FedDCServer(server.x + mean.x + h, G, h)  # line 7
