"""FedSpeed. Sun et al., "FedSpeed: Larger Local Interval, Less Communication Round, and Higher
Generalization Accuracy", ICLR 2023, Algorithm 1.

    line  4  server: broadcast x
    line  7  client: g1 = g_i(y), K_i times from y = x
    line  8          y' = y + rho g1
    line  9          g2 = g_i(y'), same minibatch
    line 10          g~ = (1 - alpha) g1 + alpha g2
    line 11          y <- y - lr (g~ - g^_i + (y - x) / lam)
    line 13          g^_i <- g^_i - (y - x) / lam
    line 14          send y - lam g^_i
    line 16  server: x <- mean of what was sent

Deviations, each fixed by a test:
* `normalise` (default, as the experiments and the authors' code): line 8 is y + rho g1 / ||g1||;
  `relative` makes it y + rho ||y|| g1 / ||g1||.
* `average="all"` (default, the authors' code): x <- mean_S y - lam sum_i w_i g^_i over all
  clients. "participants" is line 16 as printed; under partial participation its error stalls near
  lam ||mean_S grad F_i(x*)|| (test_theory). With everybody present the two are the same.
* `ascent="data"` takes line 8 along the gradient of the data alone, as printed and in the authors'
  code; by default it has weight decay and clipping, as every gradient here.
* Line 11 prints g-check where the proof needs g~.
* `lam` is the paper's lambda; the "prox weight" of its experiments is 1 / lam.
* `correction`, `prox`, `perturbation` switch the parts off for the ablation. Both of the first two
  off is FedAvg (or FedSAM); lam -> infinity is not: its first round moves twice as far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from undrift.algorithms.ascent import ascent_divisor, ascent_stall_cause, require_one_length
from undrift.check import require, require_choice, require_nonnegative, require_positive
from undrift.core import DUALS_NEED_MEAN, Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedSpeedServer(NamedTuple):
    x: Vector
    g_hat: Vector  # sum_i w_i g^_i over all clients; zero with average="participants"


@documented
@dataclass(frozen=True)
class FedSpeed(Federated[FedSpeedServer, Vector, Vector, Vector]):
    """Corrects the prox term and perturbs gradients, for long local intervals and few rounds."""

    lr: float
    """Step size of the local steps, > 0 and at most 2 lam."""
    lam: float = 10.0
    """The paper's lambda, >= lr / 2; the prox weight of its experiments is 1 / lam."""
    rho: float = 0.1
    """Length of the ascent step, >= 0."""
    alpha: float = 0.9375
    """Share of the perturbed gradient g2 in the direction, in [0, 1]."""
    normalise: bool = True
    """Divide the ascent step by the norm of the gradient, as the authors' code does; the paper
    prints it undivided."""
    correction: bool = True
    """Update the prox-correction g^_i in every round; without it g^_i stays zero, for the
    ablation."""
    prox: bool = True
    """Add the prox term (y - x) / lam to each step; leave it out for the ablation."""
    perturbation: bool = True
    """Mix in the gradient at the ascended point; leave it out, with one gradient a step, for the
    ablation."""
    average: Literal["all", "participants"] = "all"
    """Clients whose corrections move the model: "all" as in the authors' code, or the round's
    "participants" as the paper prints it."""
    ascent: Literal["full", "data"] = "full"
    """Gradient that the ascent step follows: "full" with weight decay and clipping, or that of the
    "data" alone, as the paper's g1 and the authors' code."""
    relative: bool = False
    """Multiply rho by the norm of the weights, so that one value serves nets of different size."""

    def __post_init__(self) -> None:
        require_positive("FedSpeed", lr=self.lr, lam=self.lam)
        require_nonnegative("FedSpeed", rho=self.rho)
        require(0 <= self.alpha <= 1, "FedSpeed", "alpha in [0, 1]", self.alpha)
        require(
            2 * self.lam >= self.lr,
            "FedSpeed",
            f"lam >= lr / 2 = {self.lr / 2:g}",
            float(self.lam),
            "below it the prox steps grow without bound; raise lam or lower lr",
        )
        require_choice("FedSpeed", "average", self.average, ("all", "participants"))
        require_choice("FedSpeed", "ascent", self.ascent, ("full", "data"))
        require_one_length("FedSpeed", normalise=self.normalise, relative=self.relative)

    @property
    def stall_cause(self) -> str:
        return ascent_stall_cause(self.rho) if self.perturbation else ""

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return DUALS_NEED_MEAN if self.correction else ""

    def init(self, x0: Vector) -> FedSpeedServer:
        return FedSpeedServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: Vector) -> Vector:
        return torch.zeros_like(x0)

    def broadcast(self, server: FedSpeedServer) -> Vector:
        return server.x  # line 4

    def local(self, down: Vector, client: Vector, steps: Loop) -> tuple[Vector, Vector]:
        x, g_hat = down, client

        def step(y: Vector, f: Objective) -> Vector:
            if self.ascent == "full":
                g = g1 = f.grad(y)  # line 7
            else:
                g, g1 = f.grad_and_data_grad(y)  # line 7
            if self.perturbation:
                g2 = f.grad(y + self.ascent_step(y, g1))  # lines 8, 9
                g = g.lerp(g2, self.alpha)  # line 10
            if self.prox:
                g = g.add(y - x, alpha=1 / self.lam)
            return y.sub(g - g_hat, alpha=self.lr)  # line 11

        y = steps(step, x)
        if self.correction:
            g_hat = g_hat - (y - x) / self.lam  # line 13
        if self.average == "participants":
            return y - self.lam * g_hat - x, g_hat  # line 14
        return y - x, g_hat

    def ascent_step(self, y: Vector, g: Vector) -> Vector:
        """Return the ascent step from y along the gradient g."""
        return self.rho / ascent_divisor(y, g, normalise=self.normalise, relative=self.relative) * g

    def enrol(self, server: FedSpeedServer, share: float) -> FedSpeedServer:
        return server._replace(g_hat=share * server.g_hat)

    def update(self, server: FedSpeedServer, mean: Vector, cohort: Cohort) -> FedSpeedServer:
        if self.average == "participants":
            return FedSpeedServer(server.x + mean, server.g_hat)  # line 16
        change = cohort.mass * mean / self.lam if self.correction else 0.0
        g_hat = server.g_hat - change
        return FedSpeedServer(server.x + mean - self.lam * g_hat, g_hat)
