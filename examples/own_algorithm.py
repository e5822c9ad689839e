"""A method of your own: server momentum on top of local SGD, checked against the contract."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

import undrift as ud
from undrift.field_help import documented
from undrift.testing import check_algorithm


class HeavyServer(NamedTuple):
    x: torch.Tensor
    m: torch.Tensor


@documented
@dataclass(frozen=True)
class Heavy(ud.Federated):
    """Adds momentum to the server: m <- beta m + mean of updates; x <- x + m."""

    lr: float
    """Step size of the local steps, > 0."""
    beta: float = 0.9
    """Share of the old momentum that stays, in [0, 1)."""

    def init(self, x0):
        return HeavyServer(x0, torch.zeros_like(x0))

    def init_client(self, x0, down):
        return ()  # clients keep nothing

    def broadcast(self, server):
        return server.x

    def local(self, down, client, steps):
        y = steps(lambda y, f: y - self.lr * f.grad(y), down)
        return y - down, client  # an increment, never y itself

    def update(self, server, mean, cohort):
        m = self.beta * server.m + mean
        return HeavyServer(server.x + m, m)


if __name__ == "__main__":
    check_algorithm(Heavy(lr=0.1))
    print("Heavy passes every check of the contract.")
