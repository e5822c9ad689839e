"""FedAvg. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017.

    server:  broadcast x
    client:  y <- x;  K_i times:  y <- y - lr g_i(y);  send D_i = y - x
    server:  x <- x + server_lr sum_i w_i D_i

`rule` replaces the local direction g_i(y) by that of momentum or Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from undrift.check import require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, Rule, require_rule, stepped


class FedAvgServer(NamedTuple):
    x: Vector


@documented
@dataclass(frozen=True)
class FedAvg(Federated[FedAvgServer, Vector, Any, Vector]):
    """Averages local SGD; converges to a biased point on heterogeneous clients."""

    lr: float
    """Step size of the local steps, > 0."""
    server_lr: float = 1.0
    """Share of the mean update that the server applies, >= 0; 0 keeps the model."""
    rule: Rule = SGD()
    """Direction of the local steps; its state starts anew in every round unless kept."""
    keep_rule: bool = False
    """Keep the rule's state on the client from round to round."""

    def __post_init__(self) -> None:
        require_rule(self)
        require_positive("FedAvg", lr=self.lr)
        require_nonnegative("FedAvg", server_lr=self.server_lr)

    def init(self, x0: Vector) -> FedAvgServer:
        return FedAvgServer(x0)

    def init_client(self, x0: Vector, down: Vector) -> Any:
        return self.rule.init(x0) if self.keep_rule else ()

    def broadcast(self, server: FedAvgServer) -> Vector:
        return server.x

    def local(self, down: Vector, client: Any, steps: Loop) -> tuple[Vector, Any]:
        x = down

        def step(carry: tuple[Vector, Any], f: Objective) -> tuple[Vector, Any]:
            y, s = carry
            return stepped(self.rule, f.grad(y), s, y, self.lr)

        y, s = steps(step, (x, client if self.keep_rule else self.rule.init(x)))
        return y - x, s if self.keep_rule else client

    def update(self, server: FedAvgServer, mean: Vector, cohort: Cohort) -> FedAvgServer:
        return FedAvgServer(server.x + self.server_lr * mean)
