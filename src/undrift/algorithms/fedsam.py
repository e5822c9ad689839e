"""FedSAM. Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022;
also Caldarola et al., "Improving Generalization in Federated Learning by Seeking Flat
Minima", ECCV 2022.

    server:  broadcast x
    client:  y <- x;  K_i times:  g = g_i(y);  y <- y - lr g_i(y + rho g / ||g||), same minibatch
             send D_i = y - x
    server:  x <- x + sum_i w_i D_i

The norm is over all parameters, plus 1e-7 against a zero gradient. `normalise=False` ascends by
rho g; on quadratics the direction is then (I + rho A_i) A_i (y - b_i). `relative` ascends by
rho ||y|| g / ||g||. `ascent="data"` takes g without weight decay and clipping, which the second
gradient keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from undrift.algorithms.ascent import ascent_divisor, ascent_stall_cause, require_one_length
from undrift.check import require_choice, require_nonnegative, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedSAMServer(NamedTuple):
    x: Vector


@documented
@dataclass(frozen=True)
class FedSAM(Federated[FedSAMServer, Vector, tuple[()], Vector]):
    """Lets FedAvg's clients look for flat minima; the larger `rho`, the wider they look."""

    lr: float
    """Step size of the local steps, > 0."""
    rho: float = 0.1
    """Length of the ascent step, >= 0; a larger one finds flatter minima with more bias."""
    normalise: bool = True
    """Divide the ascent step by the norm of the gradient over all parameters."""
    ascent: Literal["full", "data"] = "full"
    """Gradient that the ascent step follows: "full" with weight decay and clipping, or that of the
    "data" alone, as the authors' simulator has it."""
    relative: bool = False
    """Multiply rho by the norm of the weights, so that one value serves nets of different size."""

    def __post_init__(self) -> None:
        require_positive("FedSAM", lr=self.lr)
        require_nonnegative("FedSAM", rho=self.rho)
        require_choice("FedSAM", "ascent", self.ascent, ("full", "data"))
        require_one_length("FedSAM", normalise=self.normalise, relative=self.relative)

    @property
    def stall_cause(self) -> str:
        return ascent_stall_cause(self.rho)

    def init(self, x0: Vector) -> FedSAMServer:
        return FedSAMServer(x0)

    def init_client(self, x0: Vector, down: Vector) -> tuple[()]:
        return ()

    def broadcast(self, server: FedSAMServer) -> Vector:
        return server.x

    def local(self, down: Vector, client: tuple[()], steps: Loop) -> tuple[Vector, tuple[()]]:
        x = down

        def step(y: Vector, f: Objective) -> Vector:
            g = f.grad(y) if self.ascent == "full" else f.grad_and_data_grad(y)[1]
            return y.sub(f.grad(y + self.ascent_step(y, g)), alpha=self.lr)

        return steps(step, x) - x, client

    def ascent_step(self, y: Vector, g: Vector) -> Vector:
        """Return the ascent step from y along the gradient g."""
        return self.rho / ascent_divisor(y, g, normalise=self.normalise, relative=self.relative) * g

    def update(self, server: FedSAMServer, mean: Vector, cohort: Cohort) -> FedSAMServer:
        return FedSAMServer(server.x + mean)
