"""FedYogi. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.

    server:  broadcast x
    client:  y <- x;  K_i times:  y <- y - lr g_i(y);  send D_i = y - x
    server:  D = sum_i w_i D_i
             m <- beta1 m + (1 - beta1) D,             m starts at 0
             v <- v - (1 - beta2) D^2 sign(v - D^2),   v starts at tau^2
             x <- x + server_lr m / (sqrt(v) + tau)

All but the rule of v is in `adaptive.py`. There is no bias correction, as in the paper
(test_servers, first round in closed form). Where v comes out equal to D^2 it stays: sign(0) = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from undrift.algorithms.adaptive import DecayingServer
from undrift.core import Vector
from undrift.field_help import documented


@documented
@dataclass(frozen=True)
class FedYogi(DecayingServer):
    """Runs Yogi on the server: like Adam, but v moves by at most (1 - beta2) D^2 a round."""

    def second_moment(self, v: Vector, mean: Vector) -> Vector:
        return v - (1 - self.beta2) * mean**2 * (v - mean**2).sign()
