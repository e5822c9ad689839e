"""The server of FedAdam, FedYogi and FedAdagrad. Reddi et al., "Adaptive Federated Optimization",
ICLR 2021, Algorithm 2: one algorithm with three rules for v.

    line 1  server: broadcast x
    line 2  client: y <- x;  K_i times:  y <- y - lr g_i(y);  send D_i = y - x
    line 3  server: D = sum_i w_i D_i
    line 4          m <- beta1 m + (1 - beta1) D,   m starts at 0
    line 5          v <- second_moment(v, D),       v starts at tau^2
    line 6          x <- x + server_lr m / (sqrt(v) + tau)

Squares and roots are taken by coordinate. There is no bias correction, as in the paper.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch

from undrift.check import require, require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector


class AdaptiveState(NamedTuple):
    x: Vector
    m: Vector
    v: Vector


class AdaptiveServer(Federated[AdaptiveState, Vector, tuple[()], Vector]):
    """Scales the server's step by coordinate; a subclass says how v follows D."""

    # Subclasses are the dataclasses, because the order and the defaults of the fields are theirs.
    lr: float
    """Step size of the local steps, > 0."""
    server_lr: float
    """Step size of the server, >= 0: about the largest move of a coordinate in a round."""
    beta1: float
    """Share of the old m that stays, in [0, 1); a larger one is smoother."""
    tau: float
    """Constant added to the root of v, > 0; a larger one is less adaptive; v starts at tau^2."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_positive(name, lr=self.lr, tau=self.tau)
        require_nonnegative(name, server_lr=self.server_lr)
        require(0 <= self.beta1 < 1, name, "beta1 in [0, 1)", self.beta1)

    @abstractmethod
    def second_moment(self, v: Vector, mean: Vector) -> Vector:
        """Return the v of this round from that of the last one and the mean update D."""

    def init(self, x0: Vector) -> AdaptiveState:
        return AdaptiveState(x0, torch.zeros_like(x0), torch.full_like(x0, self.tau**2))

    def init_client(self, x0: Vector, down: Vector) -> tuple[()]:
        return ()

    def broadcast(self, server: AdaptiveState) -> Vector:
        return server.x  # line 1

    def local(self, down: Vector, client: tuple[()], steps: Loop) -> tuple[Vector, tuple[()]]:
        x = down

        def step(y: Vector, f: Objective) -> Vector:
            return y.sub(f.grad(y), alpha=self.lr)

        return steps(step, x) - x, client  # line 2

    def update(self, server: AdaptiveState, mean: Vector, cohort: Cohort) -> AdaptiveState:
        m = self.beta1 * server.m + (1 - self.beta1) * mean  # line 4
        v = self.second_moment(server.v, mean)  # line 5
        return AdaptiveState(server.x + self.server_lr * m / (v.sqrt() + self.tau), m, v)  # line 6


@dataclass(frozen=True)
class DecayingServer(AdaptiveServer):
    """Is the server of the two rules whose v forgets: FedAdam and FedYogi."""

    lr: float
    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    """Inertia of v, in [0, 1); a larger one adapts more slowly."""
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta2 < 1, type(self).__name__, "beta2 in [0, 1)", self.beta2)
