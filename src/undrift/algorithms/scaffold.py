"""SCAFFOLD. Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1.

    line  5  server: broadcast x, c
    line  7  client: y <- x
    line 10          K_i times:  y <- y - lr (g_i(y) - c_i + c)
    line 12          c_i+ = grad F_i(x) (option I)  or  c_i - c + (x - y) / (K_i lr) (option II)
    line 13          send y - x, c_i+ - c_i
    line 14          c_i <- c_i+
    line 17  server: x <- x + server_lr mean_S (y - x);  c <- c + |S| / N mean_S (c_i+ - c_i)

All control variates start at zero, so c = sum_i w_i c_i always. With weights, |S| / N of line 17 is
the population weight of the cohort: with |S| / N the method would converge to the uniform optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from undrift.check import require_choice, require_nonnegative, require_positive
from undrift.core import DUALS_NEED_MEAN, Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class ScaffoldServer(NamedTuple):
    x: Vector
    c: Vector


class ScaffoldUpload(NamedTuple):
    x: Vector  # y - x
    c: Vector  # c_i+ - c_i


@documented
@dataclass(frozen=True)
class Scaffold(Federated[ScaffoldServer, ScaffoldServer, Vector, ScaffoldUpload]):
    """Cancels the drift by control variates; exact for any K_i, whoever takes part."""

    lr: float
    """Step size of the local steps, > 0."""
    server_lr: float = 1.0
    """Share of the mean update that the server applies, >= 0."""
    option: Literal["I", "II"] = "II"
    """Control variate of a client: "II" reads it off the displacement, "I" takes a pass over all
    local data."""

    def __post_init__(self) -> None:
        require_positive("Scaffold", lr=self.lr)
        require_nonnegative("Scaffold", server_lr=self.server_lr)
        require_choice("Scaffold", "option", self.option, ("I", "II"))

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return DUALS_NEED_MEAN

    def init(self, x0: Vector) -> ScaffoldServer:
        return ScaffoldServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: ScaffoldServer) -> Vector:
        return torch.zeros_like(x0)

    def broadcast(self, server: ScaffoldServer) -> ScaffoldServer:
        return server  # line 5

    def local(
        self, down: ScaffoldServer, client: Vector, steps: Loop
    ) -> tuple[ScaffoldUpload, Vector]:
        (x, c), c_i = down, client
        correction = c - c_i

        def step(y: Vector, f: Objective) -> Vector:
            return y.sub(f.grad(y) + correction, alpha=self.lr)  # line 10

        y = steps(step, x)
        if self.option == "I":
            c_new = steps.full.grad(x)  # line 12
        else:
            c_new = c_i - c + (x - y) / (steps.count * self.lr)  # line 12
        return ScaffoldUpload(y - x, c_new - c_i), c_new  # lines 13, 14

    def enrol(self, server: ScaffoldServer, share: float) -> ScaffoldServer:
        return server._replace(c=share * server.c)

    def update(
        self, server: ScaffoldServer, mean: ScaffoldUpload, cohort: Cohort
    ) -> ScaffoldServer:
        x = server.x + self.server_lr * mean.x  # line 17
        c = server.c + cohort.mass * mean.c  # line 17
        return ScaffoldServer(x, c)
