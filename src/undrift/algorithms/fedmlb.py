"""FedMLB. Kim, Kim and Han, "Multi-Level Branched Regularization for Federated Learning",
ICML 2022.

    server:  broadcast x
    client:  hybrid_l = local blocks up to l, then the frozen blocks of x
             p_l, p = softmax of hybrid_l's and of the local logits, divided by T
             L(y) = F_i(y) + lam1 mean_l F_i(hybrid_l) + lam2 mean_l KL(p_l || p)
             y <- x;  K_i times:  y <- y - lr grad L(y);  send y - x
    server:  x <- x + sum_i w_i (y - x)

Asks of the model: two blocks or more (`undrift.models`); ResNet-18 has five and its classifier, so
five hybrids. Gradients pass through the frozen blocks to the local ones. As in the authors' code
the hybrids in the KL are not detached and there is no factor T^2 (T = `temperature`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from undrift.check import require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented
from undrift.models import require_blocks
from undrift.optim.rules import SGD, Rule, require_rule


class FedMLBServer(NamedTuple):
    x: Vector


@documented
@dataclass(frozen=True)
class FedMLB(Federated[FedMLBServer, Vector, tuple[()], Vector]):
    """Trains local blocks to work in front of the global model's later blocks, too."""

    lr: float
    """Step size of the local steps, > 0."""
    lam1: float = 1.0
    """Weight of the losses of the hybrids, >= 0."""
    lam2: float = 1.0
    """Weight of the divergence of the hybrids' predictions from the local ones, >= 0."""
    temperature: float = 1.0
    """Temperature T that divides the logits in the divergence, > 0."""
    rule: Rule = SGD()
    """Direction of the local steps; its state starts anew in every round."""

    def __post_init__(self) -> None:
        require_rule(self)
        require_positive("FedMLB", lr=self.lr, temperature=self.temperature)
        require_nonnegative("FedMLB", lam1=self.lam1, lam2=self.lam2)

    def check(self, model: nn.Module) -> None:
        require_blocks("FedMLB", model)

    def init(self, x0: Vector) -> FedMLBServer:
        return FedMLBServer(x0)

    def init_client(self, x0: Vector, down: Vector) -> tuple[()]:
        return ()

    def broadcast(self, server: FedMLBServer) -> Vector:
        return server.x

    def local(self, down: Vector, client: tuple[()], steps: Loop) -> tuple[Vector, tuple[()]]:
        x = down

        def step(carry: tuple[Vector, Any], f: Objective) -> tuple[Vector, Any]:
            y, s = carry
            hybrids = range(int(f.level.max()))

            def branches(y: Vector) -> Tensor:
                log_p = log_softmax(f.outputs(y).logits / self.temperature, 1)
                total = torch.zeros_like(log_p[:, 0])
                for level in hybrids:
                    mixed = f.outputs(torch.where(f.level <= level, y, x))
                    log_p_l = log_softmax(mixed.logits / self.temperature, 1)
                    kl = kl_div(log_p, log_p_l, reduction="none", log_target=True).sum(1)
                    total = total + self.lam1 * mixed.loss + self.lam2 * kl
                return total / len(hybrids)

            d, s = self.rule(f.plus(branches).grad(y), s, y)
            return y - self.lr * d, s

        y, _ = steps(step, (x, self.rule.init(x)))
        return y - x, client

    def update(self, server: FedMLBServer, mean: Vector, cohort: Cohort) -> FedMLBServer:
        return FedMLBServer(server.x + mean)
