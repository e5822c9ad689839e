"""FedAdagrad. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.

    server:  broadcast x
    client:  y <- x;  K_i times:  y <- y - lr g_i(y);  send D_i = y - x
    server:  D = sum_i w_i D_i
             m <- beta1 m + (1 - beta1) D,   m starts at 0
             v <- v + D^2,                    v starts at tau^2
             x <- x + server_lr m / (sqrt(v) + tau)

The paper's experiments have beta1 = 0, the default here, so that m = D. As v never falls, the
steps shrink by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from undrift.check import require, require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector


class FedAdagradServer(NamedTuple):
    x: Vector
    m: Vector
    v: Vector


@dataclass(frozen=True)
class FedAdagrad(Federated[FedAdagradServer, Vector, tuple[()], Vector]):
    """Adagrad on the server; larger `tau`, less adaptive."""

    lr: float
    server_lr: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3

    def __post_init__(self) -> None:
        require_positive("FedAdagrad", lr=self.lr, tau=self.tau)
        require_nonnegative("FedAdagrad", server_lr=self.server_lr)
        require(0 <= self.beta1 < 1, "FedAdagrad", "beta1 in [0, 1)", self.beta1)

    def init(self, x0: Vector) -> FedAdagradServer:
        return FedAdagradServer(x0, torch.zeros_like(x0), torch.full_like(x0, self.tau**2))

    def init_client(self, x0: Vector, down: Vector) -> tuple[()]:
        return ()

    def broadcast(self, server: FedAdagradServer) -> Vector:
        return server.x

    def local(self, down: Vector, client: tuple[()], steps: Loop) -> tuple[Vector, tuple[()]]:
        x = down

        def step(y: Vector, f: Objective) -> Vector:
            return y.sub(f.grad(y), alpha=self.lr)

        return steps(step, x) - x, client

    def update(self, server: FedAdagradServer, mean: Vector, cohort: Cohort) -> FedAdagradServer:
        m = self.beta1 * server.m + (1 - self.beta1) * mean
        v = server.v + mean**2
        return FedAdagradServer(server.x + self.server_lr * m / (v.sqrt() + self.tau), m, v)
