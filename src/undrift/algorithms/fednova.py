"""FedNova. Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020.

    server:  broadcast x
    client:  y <- x;  K_i times:  m <- rho m + g_i(y);  y <- y - lr (m + mu (y - x))
             a_i = the factor that a gradient constant over the steps would get:
                   K_i times from c = a = 0:  c <- rho c + 1;  a <- (1 - lr mu) a + c
             send D_i / a_i = (y - x) / a_i, and a_i
    server:  x <- x + (sum_i w_i a_i) (sum_i w_i D_i / a_i)

In closed form a_i = K_i for plain SGD, (K_i - rho (1 - rho^K_i) / (1 - rho)) / (1 - rho) with
momentum, (1 - (1 - lr mu)^K_i) / (lr mu) with the prox term.
Deviations of the authors' code, each reading fixed by a test of test_servers:
* With mu it multiplies by sum_i w_i K_i instead of sum_i w_i a_i, so that equal K_i no longer are
  plain averaging.
* With both rho and mu it counts every step twice (a <- (1 - lr mu) (a + c) + 1), and its prox term
  enters the momentum buffer by an addition in place; here it acts after the buffer.
* Its global momentum is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.check import require, require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedNovaServer(NamedTuple):
    x: Vector


class FedNovaUpload(NamedTuple):
    x: Vector  # (y - x) / a_i
    a: Tensor  # a_i, a scalar


@documented
@dataclass(frozen=True)
class FedNova(Federated[FedNovaServer, Vector, tuple[()], FedNovaUpload]):
    """Averages directions instead of updates, so that clients with more steps weigh no more."""

    lr: float
    """Step size of the local steps, > 0."""
    mu: float = 0.0
    """Weight of the prox term (mu / 2) ||y - x||^2, >= 0 and below 1 / lr."""
    rho: float = 0.0
    """Momentum of the local steps, in [0, 1), zero at the start of every round."""

    def __post_init__(self) -> None:
        require_positive("FedNova", lr=self.lr)
        require_nonnegative("FedNova", mu=self.mu)
        require(0 <= self.rho < 1, "FedNova", "rho in [0, 1)", self.rho)
        product = self.lr * self.mu  # from 1 on each prox step overshoots and a_i may vanish
        require(product < 1, "FedNova", "lr * mu < 1", product, "lower mu or lr")

    def init(self, x0: Vector) -> FedNovaServer:
        return FedNovaServer(x0)

    def init_client(self, x0: Vector, down: Vector) -> tuple[()]:
        return ()

    def broadcast(self, server: FedNovaServer) -> Vector:
        return server.x

    def local(
        self, down: Vector, client: tuple[()], steps: Loop
    ) -> tuple[FedNovaUpload, tuple[()]]:
        x = down

        def step(
            carry: tuple[Vector, Vector, Tensor, Tensor], f: Objective
        ) -> tuple[Vector, Vector, Tensor, Tensor]:
            y, m, c, a = carry
            m = self.rho * m + f.grad(y)
            y = y - self.lr * (m + self.mu * (y - x))
            c = self.rho * c + 1
            a = (1 - self.lr * self.mu) * a + c
            return y, m, c, a

        zero = x.new_zeros(())
        y, _, _, a = steps(step, (x, torch.zeros_like(x), zero, zero))
        return FedNovaUpload((y - x) / a, a), client

    def update(self, server: FedNovaServer, mean: FedNovaUpload, cohort: Cohort) -> FedNovaServer:
        return FedNovaServer(server.x + mean.a * mean.x)
