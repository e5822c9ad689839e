"""Settings and problems in which one method is compared with another, or with torch.optim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import undrift as ud
from tests.support.problems import From, bed
from tests.support.runs import on_net, on_quadratics
from undrift import FedACG, FedaGrac, FedAvg, FedProx, FedSpeed, Scaffold
from undrift.testing import small_clients, small_net

TIGHT = 1e-10
ROUNDS = 3
STEPS = [2, 4, 1, 3]  # some pass over their ragged last minibatch, client 1 starts a new epoch
PARTIAL = [[1, 3], [0, 2, 3], [1, 0]]
UNEQUAL = [0.4, 0.1, 0.2, 0.3]
Runner = Callable[..., ud.Run]

# Pairs that are one method, whoever takes part and with whatever weights.
SAME_ANYWHERE = {
    "FedProx(mu=0) = FedAvg": (FedProx(lr=0.3, mu=0), FedAvg(lr=0.3)),
    "FedACG(lam=0, beta=0) = FedAvg": (FedACG(lr=0.3, lam=0, beta=0), FedAvg(lr=0.3)),
    "FedACG(lam=0) = FedProx": (FedACG(lr=0.3, lam=0, beta=0.7), FedProx(lr=0.3, mu=0.7)),
    "FedaGrac(lam=0) = FedAvg": (FedaGrac(lr=0.3, lam=0), FedAvg(lr=0.3)),
    "FedSpeed without correction and perturbation = FedProx": (
        FedSpeed(lr=0.3, lam=2.5, correction=False, perturbation=False),
        FedProx(lr=0.3, mu=0.4),
    ),
    "FedSpeed with nothing = FedAvg": (
        FedSpeed(lr=0.3, lam=2.5, correction=False, prox=False, perturbation=False),
        FedAvg(lr=0.3),
    ),
    "FedSpeed(alpha=0) = no perturbation": (
        FedSpeed(lr=0.3, lam=2.5, alpha=0),
        FedSpeed(lr=0.3, lam=2.5, perturbation=False),
    ),
    # The second gradient must see the minibatch and the dropout masks of the first.
    "FedSpeed(rho=0) = no perturbation": (
        FedSpeed(lr=0.3, lam=2.5, rho=0),
        FedSpeed(lr=0.3, lam=2.5, perturbation=False),
    ),
    "FedaGrac_avg over all clients = Scaffold": (
        FedaGrac(lr=0.3, scheme="avg", nu_scope="all"),
        Scaffold(lr=0.3),
    ),
}


def vector(seed: int, dim: int = 3) -> Tensor:
    """Return a normal vector."""
    return torch.tensor(np.random.default_rng(seed).normal(size=dim))


def start_of(model: nn.Module) -> Tensor:
    """Return the parameters of a model as one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def quadratics(clients: int = 4, seed: int = 1) -> From:
    """Return quadratics whose start is not 0, with a client each of unequal size."""
    problem = bed(clients=clients, dim=3, samples=[5, 9, 4, 7][:clients], seed=seed)
    return From(problem.clients, problem.A, problem.b, vector(9))


def on_the_stacked_net(parameters: Mapping[str, Any]) -> bool:
    """Return whether stacked clients train the net, with ragged minibatches and dropout."""
    return parameters["on"] == "net-stacked"


@dataclass(frozen=True)
class Plain:
    """Holds a task without randomness, for the simulator and for an optimiser by hand."""

    task: str
    mode: str

    def clients(self) -> ud.Clients:
        return quadratics().clients if self.task == "quadratics" else small_clients()

    def model(self) -> nn.Module:
        return quadratics().model() if self.task == "quadratics" else small_net(dropout=0)

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        return quadratics().loss if self.task == "quadratics" else nn.functional.cross_entropy

    def run(self, algorithm: Any, clients: ud.Clients | None = None, **options: Any) -> ud.Run:
        clients = clients or self.clients()
        if self.task == "quadratics":
            problem = replace(quadratics(), clients=clients)
            return on_quadratics(algorithm, problem, mode=self.mode, **options)
        options = {"batch_size": None, "model": self.model(), "clients": clients, **options}
        return on_net(algorithm, mode=self.mode, **options)

    def by_hand(
        self,
        optimiser: Callable[..., torch.optim.Optimizer],
        steps: int,
        weights: list[float],
        clients: ud.Clients | None = None,
        **options: Any,
    ) -> Tensor:
        """Return where the optimiser ends on sum_i w_i F_i."""
        model, clients = self.model(), clients or self.clients()
        update = optimiser(model.parameters(), **options)
        for _ in range(steps):
            update.zero_grad()
            for i, weight in enumerate(weights):
                inputs, targets = clients[i]
                (weight * self.loss(model(inputs), targets)).backward()
            update.step()
        return start_of(model)


def four_copies(plain: Plain) -> tuple[ud.Clients, ud.Clients]:
    """Return four equal clients, and one of them alone."""
    pair = plain.clients()[2]
    return ud.Clients([pair] * 4), ud.Clients([pair])


def trajectory_end(algorithm: Any, problem: From) -> Tensor:
    """Return the model after three rounds with absences and unequal weights."""
    options = {"participation": PARTIAL, "weighting": UNEQUAL}
    return on_quadratics(algorithm, problem, rounds=ROUNDS, work=STEPS, **options).x


def shifted(problem: From, v: Tensor) -> From:
    """Return the problem with all b_i and x0 moved by v."""
    pairs = [problem.clients[i] for i in range(len(problem.clients))]
    moved = ud.Clients([(inputs, targets + (inputs @ v)[:, None]) for inputs, targets in pairs])
    return From(moved, problem.A, problem.b + v, problem.x0 + v)


def rotated(problem: From, Q: Tensor) -> From:
    """Return the problem with all b_i and x0 turned by Q, and A_i with them."""
    pairs = [problem.clients[i] for i in range(len(problem.clients))]
    turned = ud.Clients([(inputs @ Q.T, targets) for inputs, targets in pairs])
    return From(turned, Q @ problem.A @ Q.T, problem.b @ Q.T, Q @ problem.x0)


def orthogonal() -> Tensor:
    """Return a matrix that turns vectors and keeps their lengths."""
    return torch.linalg.qr(torch.stack([vector(s) for s in (4, 5, 6)]))[0]
