"""MOON. Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1.

    server:  broadcast x
    client:  z, z_glob, z_prev = features of the sample under y, x, and the client's last y
             a, b = cos(z, z_glob), cos(z, z_prev)
             l = -log( e^{a / tau} / (e^{a / tau} + e^{b / tau}) )
             y <- x;  K_i times:  y <- y - lr grad( F_i(y) + mu mean l );  send y - x;  prev <- y
    server:  x <- x + sum_i w_i (y - x)

Asks of the model: features before its classifier, the output of a projection head in the paper
(`undrift.models`). At a client's first round prev is the broadcast model, where l = log 2 and its
gradient is 0. Local momentum 0.9 as in the authors' code. Deviation: the frozen nets see the
dropout masks of the step instead of being in eval mode; the paper's nets have no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, softplus

from undrift.check import require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.models import require_features
from undrift.optim.rules import Momentum, Rule, require_rule


class MOONServer(NamedTuple):
    x: Vector


@documented
@dataclass(frozen=True)
class MOON(Federated[MOONServer, Vector, Vector, Vector]):
    """Pulls features to the global model's and away from the client's last one."""

    lr: float
    """Step size of the local steps, > 0."""
    mu: float = 1.0
    """Weight of the contrastive loss l, >= 0; 0 is FedAvg."""
    tau: float = 0.5
    """Temperature of the contrast, > 0; a smaller one is sharper."""
    rule: Rule = Momentum(0.9)
    """Direction of the local steps, momentum as in the authors' code; its state starts anew in
    every round."""

    def __post_init__(self) -> None:
        require_rule(self)
        require_positive("MOON", lr=self.lr, tau=self.tau)
        require_nonnegative("MOON", mu=self.mu)

    def check(self, model: nn.Module) -> None:
        require_features("MOON", model)

    def init(self, x0: Vector) -> MOONServer:
        return MOONServer(x0)

    def init_client(self, x0: Vector, down: Vector) -> Vector:
        return down

    def broadcast(self, server: MOONServer) -> Vector:
        return server.x

    def local(self, down: Vector, client: Vector, steps: Loop) -> tuple[Vector, Vector]:
        x, prev = down, client

        def step(carry: tuple[Vector, Any], f: Objective) -> tuple[Vector, Any]:
            y, s = carry
            z_glob, z_prev = f.outputs(x).features, f.outputs(prev).features

            def contrast(y: Vector) -> Tensor:
                z = f.outputs(y).features
                gap = cosine_similarity(z, z_prev) - cosine_similarity(z, z_glob)
                return self.mu * softplus(gap / self.tau)  # l, one value per sample

            d, s = self.rule(f.plus(contrast).grad(y), s, y)
            return y - self.lr * d, s

        y, _ = steps(step, (x, self.rule.init(x)))
        return y - x, y

    def update(self, server: MOONServer, mean: Vector, cohort: Cohort) -> MOONServer:
        return MOONServer(server.x + mean)
