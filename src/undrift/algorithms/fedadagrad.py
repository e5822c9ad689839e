"""FedAdagrad. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.

    server:  broadcast x
    client:  y <- x;  K_i times:  y <- y - lr g_i(y);  send D_i = y - x
    server:  D = sum_i w_i D_i
             m <- beta1 m + (1 - beta1) D,   m starts at 0
             v <- v + D^2,                   v starts at tau^2
             x <- x + server_lr m / (sqrt(v) + tau)

All but the rule of v is in `adaptive.py`. The paper's experiments have beta1 = 0, the default here,
so that m = D. As v never falls, the steps shrink by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from undrift.algorithms.adaptive import AdaptiveServer
from undrift.core import Vector
from undrift.field_help import documented


@documented
@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """Runs Adagrad on the server; the larger `tau`, the less adaptive."""

    lr: float
    server_lr: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3

    def second_moment(self, v: Vector, mean: Vector) -> Vector:
        return v + mean**2
