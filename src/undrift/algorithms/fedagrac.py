"""FedaGrac. Wu et al., "From Deterioration to Acceleration: A Calibration Approach to
Rehabilitating Step Asynchronism in Federated Optimization", TPDS 2023, Algorithm 3 of the thesis.

    server:  broadcast x, nu, and the mean number of steps K = sum_i w_i K_i
    client:  y <- x;  K_i times:  y <- y - lr (g_i(y) + lam (nu - nu_i))
             avg = mean of the K_i gradients,  first = the gradient of step 0
             v_i = first if K_i > K else avg;  send y - x, v_i;  nu_i <- avg
    server:  x <- x + sum_i w_i (y - x);  nu <- sum_i w_i v_i

`scheme` chooses v_i: "fedagrac" as above, "avg" and "first" always that one, "reverse" the
opposite. `start="full"` sets nu_i = grad F_i(x) on all local data before a client's first round
and nu to the mean of those that are known, as Section 4.4 of the thesis does at its first model;
"zero" (default, the authors' code) begins with zeros. Deviations, each fixed by a test:
* `local_reference="avg"` (default: Algorithm 3 and the code) keeps nu_i = avg; "sent" keeps
  nu_i = v_i, as Eq. 4.4 reads.
* `nu_scope="all"` (default) keeps nu as the mean of what all clients sent last, as SCAFFOLD does;
  "participants" (the code) is the mean over the cohort, with a noise floor under partial
  participation. With everybody present, as in the thesis, the two are the same.
* The thesis has all clients at its first model. With start="full" a client that joins later sets
  nu_i at the model of its first round, and nu becomes the mean over the clients seen so far.
* K is weighted as the aggregate is; the code takes the plain mean under partial participation.
* "first" is the gradient of step 0; the code lengthens it to an average after one epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from undrift.check import require_choice, require_nonnegative, require_positive
from undrift.core import DUALS_NEED_MEAN, Cohort, Loop, Objective, Prelude, Vector
from undrift.field_help import documented


class FedaGracServer(NamedTuple):
    x: Vector
    nu: Vector
    seen: Vector  # with start="full" the population weight of the clients seen, else empty


class FedaGracBroadcast(NamedTuple):
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
class FedaGrac(Prelude[FedaGracServer, FedaGracBroadcast, FedaGracClient, FedaGracUpload]):
    """Calibrates the gradients of clients that run different numbers of steps."""

    lr: float
    """Step size of the local steps, > 0."""
    lam: float = 1.0
    """Weight of the calibration nu - nu_i, >= 0; 1 removes the bias, 0 is FedAvg."""
    scheme: Literal["fedagrac", "avg", "first", "reverse"] = "fedagrac"
    """Orientation that a client sends: "fedagrac" the first gradient if it runs more steps than the
    mean, else the average; "avg" or "first" always that one; "reverse" the opposite."""
    local_reference: Literal["avg", "sent"] = "avg"
    """Gradient that a client keeps as nu_i: the "avg" of its steps (the thesis's Algorithm 3) or
    what it "sent" (its Eq. 4.4)."""
    nu_scope: Literal["participants", "all"] = "all"
    """Clients whose orientations nu averages: "all", with what the absent sent last, or the
    "participants" of the round (the authors' code)."""
    start: Literal["zero", "full"] = "zero"
    """Value of nu_i before a client's first round: "zero" (the authors' code), or its "full"
    gradient on all local data (the thesis), for one more exchange with clients not seen before."""

    def __post_init__(self) -> None:
        require_positive("FedaGrac", lr=self.lr)
        require_nonnegative("FedaGrac", lam=self.lam)
        schemes = ("fedagrac", "avg", "first", "reverse")
        require_choice("FedaGrac", "scheme", self.scheme, schemes)
        require_choice("FedaGrac", "local_reference", self.local_reference, ("avg", "sent"))
        require_choice("FedaGrac", "nu_scope", self.nu_scope, ("participants", "all"))
        require_choice("FedaGrac", "start", self.start, ("zero", "full"))

    @property
    def asks(self) -> Literal["new", "nobody"]:
        return "new" if self.start == "full" else "nobody"

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return DUALS_NEED_MEAN

    def init(self, x0: Vector) -> FedaGracServer:
        seen = x0.new_zeros(() if self.start == "full" else 0)
        return FedaGracServer(x0, torch.zeros_like(x0), seen)

    def ask(self, server: FedaGracServer) -> Vector:
        return server.x

    def answer(
        self, down: Vector, client: FedaGracClient, steps: Loop
    ) -> tuple[Vector, FedaGracClient]:
        nu_i = steps.full.grad(down)
        return nu_i, FedaGracClient(nu_i, nu_i if self.nu_scope == "all" else client.sent)

    def hear(self, server: FedaGracServer, mean: Vector, cohort: Cohort) -> FedaGracServer:
        seen = server.seen + cohort.mass
        if self.nu_scope == "participants":  # later ones change nu by what they send
            return server._replace(nu=server.nu if server.seen > 0 else mean, seen=seen)
        nu = server.nu + cohort.mass / seen * (mean - server.nu)
        return server._replace(nu=nu, seen=seen)

    def init_client(self, x0: Vector, down: FedaGracBroadcast) -> FedaGracClient:
        zero = torch.zeros_like(x0)
        return FedaGracClient(zero, zero if self.nu_scope == "all" else zero[:0])

    def broadcast(self, server: FedaGracServer) -> FedaGracBroadcast:
        return FedaGracBroadcast(server.x, server.nu)

    def local(
        self, down: FedaGracBroadcast, client: FedaGracClient, steps: Loop
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
        if self.start == "full":  # nu is a mean over those seen, who are now a smaller part
            return server._replace(seen=share * server.seen)
        return server._replace(nu=share * server.nu) if self.nu_scope == "all" else server

    def update(
        self, server: FedaGracServer, mean: FedaGracUpload, cohort: Cohort
    ) -> FedaGracServer:
        scope = cohort.mass if self.nu_scope == "all" else 1.0
        if self.nu_scope == "all" and self.start == "full":
            scope = float(cohort.mass / server.seen)
        return server._replace(x=server.x + mean.x, nu=server.nu + scope * mean.nu)
