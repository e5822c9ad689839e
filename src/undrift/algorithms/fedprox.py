"""FedProx. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    server:  broadcast x
    client:  y <- x;  K_i times:  y <- y - lr (g_i(y) + mu (y - x));  send D_i = y - x
    server:  x <- x + sum_i w_i D_i

The penalty is (mu / 2) ||y - x||^2, so its gradient is mu (y - x): not 2 mu, and not that of an
un-squared or squared-L1 norm as in some published code (test_theory, gradient of the penalty).
With `rule` the prox gradient is part of what the rule sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from undrift.check import require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.optim.rules import SGD, Rule, require_rule, stepped


class FedProxServer(NamedTuple):
    x: Vector


@documented
@dataclass(frozen=True)
class FedProx(Federated[FedProxServer, Vector, Any, Vector]):
    """Holds FedAvg's clients near the server's model; the larger `mu`, the nearer."""

    lr: float
    """Step size of the local steps, > 0."""
    mu: float = 0.1
    """Weight of the prox term (mu / 2) ||y - x||^2, >= 0; a larger one keeps y nearer to x."""
    rule: Rule = SGD()
    """Direction of the local steps, made from the gradient of the loss and the prox term together;
    its state starts anew in every round unless kept."""
    keep_rule: bool = False
    """Keep the rule's state on the client from round to round."""

    def __post_init__(self) -> None:
        require_rule(self)
        require_positive("FedProx", lr=self.lr)
        require_nonnegative("FedProx", mu=self.mu)

    def init(self, x0: Vector) -> FedProxServer:
        return FedProxServer(x0)

    def init_client(self, x0: Vector, down: Vector) -> Any:
        return self.rule.init(x0) if self.keep_rule else ()

    def broadcast(self, server: FedProxServer) -> Vector:
        return server.x

    def local(self, down: Vector, client: Any, steps: Loop) -> tuple[Vector, Any]:
        x = down

        def step(carry: tuple[Vector, Any], f: Objective) -> tuple[Vector, Any]:
            y, s = carry
            return stepped(self.rule, f.grad(y) + self.mu * (y - x), s, y, self.lr)

        y, s = steps(step, (x, client if self.keep_rule else self.rule.init(x)))
        return y - x, s if self.keep_rule else client

    def update(self, server: FedProxServer, mean: Vector, cohort: Cohort) -> FedProxServer:
        return FedProxServer(server.x + mean)
