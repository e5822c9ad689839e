"""FedaGrac. Wu et al., "From Deterioration to Acceleration: A Calibration Approach to
Rehabilitating Step Asynchronism in Federated Optimization", TPDS 2023, Algorithm 3 of the thesis.

    server:  broadcast x, nu, and the mean number of steps K = sum_i w_i K_i
    client:  y <- x;  K_i times:  y <- y - lr (g_i(y) + lam (nu - nu_i))
             avg = mean of the K_i gradients,  first = the gradient of step 0
             v_i = first if K_i > K else avg;  send y - x, v_i;  nu_i <- avg
    server:  x <- x + sum_i w_i (y - x);  nu <- sum_i w_i v_i

`scheme` chooses v_i: "fedagrac" as above, "avg" and "first" always that one, "reverse" the
opposite. All states start at zero (as the authors' code; the paper starts at full gradients).
Deviations, each fixed by a test:
* `local_reference="avg"` (default: Algorithm 3 and the code) keeps nu_i = avg; "sent" keeps
  nu_i = v_i, as Eq. 4.4 reads.
* `nu_scope="participants"` (default: the code) averages v_i over the cohort and so has a noise
  floor under partial participation; "all" keeps the mean over all clients, as SCAFFOLD does.
* K is weighted as the aggregate is; the code takes the plain mean under partial participation.
* "first" is the gradient of step 0; the code lengthens it to an average after one epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from undrift.check import require, require_choice, require_positive
from undrift.core import Cohort, Federated, Loop, Objective, Vector
from undrift.field_help import documented


class FedaGracServer(NamedTuple):
    x: Vector
    nu: Vector


class FedaGracClient(NamedTuple):
    nu: Vector  # nu_i
    sent: Vector  # v_i of its last round; empty unless nu_scope="all" needs it


class FedaGracUpload(NamedTuple):
    x: Vector
    nu: Vector


Carry = tuple[Vector, Vector, Vector]  # y, the sum of its gradients, the first of them


@documented
@dataclass(frozen=True)
class FedaGrac(Federated[FedaGracServer, FedaGracServer, FedaGracClient, FedaGracUpload]):
    """Calibrates the gradients of clients that run different numbers of steps."""

    lr: float
    """Step size of the local steps, > 0."""
    lam: float = 1.0
    """Weight of the calibration nu - nu_i, in [0, 1]; 1 removes the bias, 0 is FedAvg."""
    scheme: Literal["fedagrac", "avg", "first", "reverse"] = "fedagrac"
    """Orientation that a client sends: "fedagrac" the first gradient if it runs more steps than the
    mean, else the average; "avg" or "first" always that one; "reverse" the opposite."""
    local_reference: Literal["avg", "sent"] = "avg"
    """Gradient that a client keeps as nu_i: the "avg" of its steps (the thesis's Algorithm 3) or
    what it "sent" (its Eq. 4.4)."""
    nu_scope: Literal["participants", "all"] = "participants"
    """Clients whose orientations nu averages: the "participants" of the round (the authors' code)
    or "all"."""

    def __post_init__(self) -> None:
        require_positive("FedaGrac", lr=self.lr)
        require(0 <= self.lam <= 1, "FedaGrac", "lam in [0, 1]", self.lam)
        schemes = ("fedagrac", "avg", "first", "reverse")
        require_choice("FedaGrac", "scheme", self.scheme, schemes)
        require_choice("FedaGrac", "local_reference", self.local_reference, ("avg", "sent"))
        require_choice("FedaGrac", "nu_scope", self.nu_scope, ("participants", "all"))

    def init(self, x0: Vector) -> FedaGracServer:
        return FedaGracServer(x0, torch.zeros_like(x0))

    def init_client(self, x0: Vector, down: FedaGracServer) -> FedaGracClient:
        zero = torch.zeros_like(x0)
        return FedaGracClient(zero, zero if self.nu_scope == "all" else zero[:0])

    def broadcast(self, server: FedaGracServer) -> FedaGracServer:
        return server

    def local(
        self, down: FedaGracServer, client: FedaGracClient, steps: Loop
    ) -> tuple[FedaGracUpload, FedaGracClient]:
        x, nu = down
        calibration = self.lam * (nu - client.nu)

        def step(carry: Carry, f: Objective) -> Carry:
            y, total, first = carry
            g = f.grad(y)
            y = y.sub(g + calibration, alpha=self.lr)
            return y, total + g, g if f.k == 0 else first

        zero = torch.zeros_like(x)
        y, total, first = steps(step, (x, zero, zero))
        avg = total / steps.count
        v = self.orientation(avg, first, steps)
        nu_i = avg if self.local_reference == "avg" else v
        if self.nu_scope == "all":
            return FedaGracUpload(y - x, v - client.sent), FedaGracClient(nu_i, v)
        return FedaGracUpload(y - x, v - nu), FedaGracClient(nu_i, client.sent)

    def orientation(self, avg: Vector, first: Vector, steps: Loop) -> Vector:
        """Return v_i by the scheme, from the mean of the gradients and the first of them."""
        if self.scheme in ("avg", "first"):
            return avg if self.scheme == "avg" else first
        fast = steps.count > steps.mean_count
        for_fast, for_slow = (first, avg) if self.scheme == "fedagrac" else (avg, first)
        return torch.where(fast, for_fast, for_slow)

    def enrol(self, server: FedaGracServer, share: float) -> FedaGracServer:
        return server._replace(nu=share * server.nu) if self.nu_scope == "all" else server

    def update(
        self, server: FedaGracServer, mean: FedaGracUpload, cohort: Cohort
    ) -> FedaGracServer:
        scope = cohort.mass if self.nu_scope == "all" else 1.0
        return FedaGracServer(server.x + mean.x, server.nu + scope * mean.nu)
