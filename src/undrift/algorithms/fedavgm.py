"""FedAvgM. Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", arXiv 1909.06335, 2019.

    server:  broadcast x
    client:  y <- x;  K_i times:  y <- y - lr (g_i(y) + mu (y - x));  send D_i = y - x
    server:  D = sum_i w_i D_i;  m <- beta m + D;  x <- x + server_lr m,
             or x <- x + server_lr (D + beta m) with Nesterov's momentum

The momentum is not damped: with server_lr = 1 a steady update moves the model 1 / (1 - beta) times
as far as in FedAvg. Clients start from x, not from a look-ahead: that is FedACG. The prox term,
mu > 0, is not in the paper: it is the row "momentum + prox" of FedACG's ablation. `rule` replaces
the local direction by that of momentum or Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from undrift.check import require, require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, Rule, require_rule, stepped


class FedAvgMServer(NamedTuple):
    x: Vector
    m: Vector


@documented
@dataclass(frozen=True)
class FedAvgM(Federated[FedAvgMServer, Vector, Any, Vector]):
    """Adds heavy-ball momentum to FedAvg's server; the larger `beta`, the longer it remembers."""

    lr: float
    """Step size of the local steps, > 0."""
    beta: float = 0.4
    """Share of the old momentum that stays, in [0, 1); a larger one remembers longer."""
    server_lr: float = 1.0
    """Step size along the momentum, >= 0; a steady update moves the model server_lr / (1 - beta)
    times as far."""
    mu: float = 0.0
    """Weight of the prox term (mu / 2) ||y - x||^2, >= 0, which the paper does not have."""
    nesterov: bool = False
    """Nesterov's momentum on the server, as torch.optim.SGD has it; the paper's is heavy-ball."""
    rule: Rule = SGD()
    """Direction of the local steps; its state starts anew in every round unless kept."""
    keep_rule: bool = False
    """Keep the rule's state on the client from round to round."""

    def __post_init__(self) -> None:
        require_rule(self)
        require_positive("FedAvgM", lr=self.lr)
        require(0 <= self.beta < 1, "FedAvgM", "beta in [0, 1)", self.beta)
        require_nonnegative("FedAvgM", server_lr=self.server_lr, mu=self.mu)

    def init(self, x0: Vector) -> FedAvgMServer:
        return FedAvgMServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: Vector) -> Any:
        return self.rule.init(x0) if self.keep_rule else ()

    def broadcast(self, server: FedAvgMServer) -> Vector:
        return server.x

    def local(self, down: Vector, client: Any, steps: Loop) -> tuple[Vector, Any]:
        x = down

        def step(carry: tuple[Vector, Any], f: Objective) -> tuple[Vector, Any]:
            y, s = carry
            return stepped(self.rule, f.grad(y) + self.mu * (y - x), s, y, self.lr)

        y, s = steps(step, (x, client if self.keep_rule else self.rule.init(x)))
        return y - x, s if self.keep_rule else client

    def update(self, server: FedAvgMServer, mean: Vector, cohort: Cohort) -> FedAvgMServer:
        m = self.beta * server.m + mean
        d = mean + self.beta * m if self.nesterov else m
        return FedAvgMServer(server.x + self.server_lr * d, m)
