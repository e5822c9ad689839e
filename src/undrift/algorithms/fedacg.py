"""FedACG. Kim et al., "Communication-Efficient Federated Learning with Accelerated Client
Gradient", CVPR 2024, Algorithm 1.

    server:  broadcast Phi = x + lam m
    client:  y <- Phi;  K_i times:  y <- y - lr (g_i(y) + beta (y - Phi));  send D_i = y - Phi
    server:  m <- lam m + sum_i w_i D_i;  x <- x + m

The model that is evaluated is x, not the look-ahead Phi. `beta` weighs (beta / 2) ||y - Phi||^2;
the authors' code omits the half, so its 0.001 is beta = 0.002 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from undrift.check import require, require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, Rule, require_rule, stepped


class FedACGServer(NamedTuple):
    x: Vector
    m: Vector


@documented
@dataclass(frozen=True)
class FedACG(Federated[FedACGServer, Vector, Any, Vector]):
    """Starts clients from a model already moved along the global momentum."""

    lr: float
    """Step size of the local steps, > 0."""
    lam: float = 0.85
    """Momentum of the server, which clients start ahead by, in [0, 1); 0 is FedProx with mu =
    beta."""
    beta: float = 0.01
    """Weight of the prox term (beta / 2) ||y - Phi||^2, >= 0."""
    rule: Rule = SGD()
    """Direction of the local steps; its state starts anew in every round unless kept."""
    keep_rule: bool = False
    """Keep the rule's state on the client from round to round."""

    def __post_init__(self) -> None:
        require_rule(self)
        require_positive("FedACG", lr=self.lr)
        require(0 <= self.lam < 1, "FedACG", "lam in [0, 1)", self.lam)
        require_nonnegative("FedACG", beta=self.beta)

    def init(self, x0: Vector) -> FedACGServer:
        return FedACGServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: Vector) -> Any:
        return self.rule.init(x0) if self.keep_rule else ()

    def broadcast(self, server: FedACGServer) -> Vector:
        return server.x + self.lam * server.m

    def local(self, down: Vector, client: Any, steps: Loop) -> tuple[Vector, Any]:
        phi = down

        def step(carry: tuple[Vector, Any], f: Objective) -> tuple[Vector, Any]:
            y, s = carry
            return stepped(self.rule, f.grad(y).add(y - phi, alpha=self.beta), s, y, self.lr)

        y, s = steps(step, (phi, client if self.keep_rule else self.rule.init(phi)))
        return y - phi, s if self.keep_rule else client

    def update(self, server: FedACGServer, mean: Vector, cohort: Cohort) -> FedACGServer:
        m = self.lam * server.m + mean
        return FedACGServer(server.x + m, m)
