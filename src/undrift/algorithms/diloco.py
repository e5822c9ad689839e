"""DiLoCo. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
arXiv 2311.08105, 2023, Algorithm 1.

    server:  broadcast x
    client:  y <- x;  K_i times:  y <- y - lr d, d AdamW's direction for g_i(y);  send D_i = y - x
    server:  D = sum_i w_i D_i;  m <- beta m + D;  x <- x + server_lr (D + beta m)

The rule's state (AdamW's moments) is the client's own and lives on from round to round; D is the
paper's outer gradient with the other sign, and the server is torch.optim.SGD with Nesterov's
momentum on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from undrift.check import require, require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import AdamW, Rule, require_rule, stepped


class DiLoCoServer(NamedTuple):
    x: Vector
    m: Vector


@documented
@dataclass(frozen=True)
class DiLoCo(Federated[DiLoCoServer, Vector, Any, Vector]):
    """Runs AdamW on clients, which keep its moments, and Nesterov's momentum on the server."""

    lr: float
    """Step size of the local steps, > 0."""
    server_lr: float = 0.7
    """Step size of the server, >= 0; 1 with beta = 0 takes the mean of the local models."""
    beta: float = 0.9
    """Share of the server's old momentum that stays, in [0, 1)."""
    rule: Rule = AdamW()
    """Direction of the local steps; its state is the client's own and lives on from round to
    round."""

    def __post_init__(self) -> None:
        require_rule(self)
        require_positive("DiLoCo", lr=self.lr)
        require_nonnegative("DiLoCo", server_lr=self.server_lr)
        require(0 <= self.beta < 1, "DiLoCo", "beta in [0, 1)", self.beta)

    def init(self, x0: Vector) -> DiLoCoServer:
        return DiLoCoServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: Vector) -> Any:
        return self.rule.init(x0)

    def broadcast(self, server: DiLoCoServer) -> Vector:
        return server.x

    def local(self, down: Vector, client: Any, steps: Loop) -> tuple[Vector, Any]:
        x = down

        def step(carry: tuple[Vector, Any], f: Objective) -> tuple[Vector, Any]:
            y, s = carry
            return stepped(self.rule, f.grad(y), s, y, self.lr)

        y, s = steps(step, (x, client))
        return y - x, s

    def update(self, server: DiLoCoServer, mean: Vector, cohort: Cohort) -> DiLoCoServer:
        m = self.beta * server.m + mean
        return DiLoCoServer(server.x + self.server_lr * (mean + self.beta * m), m)
