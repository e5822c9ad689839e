"""FedLin. Mitra et al., "Linear Convergence in Federated Learning: Tackling Client Heterogeneity
and Sparse Gradients", NeurIPS 2021, Algorithm 1 without sparsification.

    server:  broadcast x
    client:  send g_i = grad F_i(x), over the whole local data
    server:  broadcast g = sum_i w_i g_i
    client:  y <- x;  K_i times:  y <- y - (lr / K_i) (grad F_i(y) - g_i + g);  send y - x
    server:  x <- x + sum_i w_i (y - x)

`lr` is the step of a whole round: a client divides it by its number of steps. With minibatches
grad F_i(y) is that of the step's minibatch, and g_i remains the full gradient: one gradient a step
as in the box, whose noise does not cancel; with whole local batches it is the paper's box. A client
keeps x and g_i from the first exchange to the second, so 2 vectors go down and 2 come up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from undrift.check import require_positive
from undrift.core import Cohort, Loop, Objective, Prelude, Vector
from undrift.field_help import documented


class FedLinServer(NamedTuple):
    x: Vector
    g: Vector  # sum_i w_i g_i of the last exchange


class FedLinClient(NamedTuple):
    """Holds a client's first exchange of a round for the second one; the next round needs none."""

    x: Vector
    g: Vector  # g_i


@documented
@dataclass(frozen=True)
class FedLin(Prelude[FedLinServer, Vector, Any, Vector]):
    """Asks all for a fresh gradient before the local steps; exact for any K_i, without noise."""

    lr: float
    """Step size of a whole round, > 0; a client with K_i steps takes lr / K_i in each."""

    def __post_init__(self) -> None:
        require_positive("FedLin", lr=self.lr)

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return "clients add the mean gradient less their own, which cancels in the mean alone"

    def init(self, x0: Vector) -> FedLinServer:
        return FedLinServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: Vector) -> tuple[()]:
        return ()

    def ask(self, server: FedLinServer) -> Vector:
        return server.x

    def answer(self, down: Vector, client: tuple[()], steps: Loop) -> tuple[Vector, FedLinClient]:
        g = steps.full.grad(down)
        return g, FedLinClient(down, g)

    def hear(self, server: FedLinServer, mean: Vector, cohort: Cohort) -> FedLinServer:
        return server._replace(g=mean)

    def broadcast(self, server: FedLinServer) -> Vector:
        return server.g

    def local(self, down: Vector, client: FedLinClient, steps: Loop) -> tuple[Vector, tuple[()]]:
        g, (x, g_i) = down, client

        def step(y: Vector, f: Objective) -> Vector:
            return y - self.lr / steps.count * (f.grad(y) - g_i + g)

        return steps(step, x) - x, ()

    def update(self, server: FedLinServer, mean: Vector, cohort: Cohort) -> FedLinServer:
        return server._replace(x=server.x + mean)
