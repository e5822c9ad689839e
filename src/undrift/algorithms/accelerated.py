"""Accelerated broadcast around any method: "X + ACG" of the FedACG document.

    server:  Phi = x + lam m;  broadcast what X broadcasts from a model at Phi
    client:  X's local round, which starts at Phi
    server:  x+ = X's update from Phi;  m <- x+ - x;  x <- x+

`Accelerated(FedAvg(lr))` is FedACG without its prox-term and `Accelerated(FedMLB(lr))` the
document's FedMLB + ACG. It needs a method whose clients start at the model that is broadcast; the
traffic is X's. The model is x, not the look-ahead Phi.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from undrift.check import require
from undrift.core import Cohort, Federated, Loop, Prelude, Vector
from undrift.field_help import documented


class AcceleratedServer(NamedTuple):
    x: Vector
    m: Vector
    inner: Any  # X's own state, whose x is the model, too


@documented
@dataclass(frozen=True)
class Accelerated(Federated[AcceleratedServer, Any, Any, Any]):
    """Runs any method from a model already moved along the global momentum."""

    inner: Federated[Any, Any, Any, Any]
    """Method with a server whose clients start at the model that they are sent."""
    lam: float = 0.85
    """Momentum of the look-ahead x + lam m, in [0, 1)."""

    def __post_init__(self) -> None:
        method = isinstance(self.inner, Federated)
        require(method, "Accelerated", "a method with a server such as FedAvg(lr=0.1)", self.inner)
        require(0 <= self.lam < 1, "Accelerated", "lam in [0, 1)", self.lam)
        if isinstance(self.inner, Prelude) and self.inner.asks != "nobody":
            raise ValueError(
                f"Accelerated needs a method with one exchange a round, got "
                f"{type(self.inner).__name__} with two; the first would be lost."
            )
        if not self.inner.starts_at_broadcast:
            raise ValueError(
                f"Accelerated needs a method whose clients start at the model they are sent, got "
                f"{self.inner!r}, whose clients do not; a look-ahead would be lost on them."
            )

    @property
    def starts_at_broadcast(self) -> bool:
        return self.inner.starts_at_broadcast

    @property
    def stall_cause(self) -> str:
        return self.inner.stall_cause

    def check(self, model: nn.Module) -> None:
        self.inner.check(model)

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads."""
        return self.inner.needs_mean

    def init(self, x0: Vector) -> AcceleratedServer:
        return AcceleratedServer(x0, torch.zeros_like(x0), self.inner.init(x0))

    def init_client(self, x0: Vector, down: Any) -> Any:
        return self.inner.init_client(x0, down)

    def _ahead(self, server: AcceleratedServer) -> Any:
        """Return X's own state with the look-ahead Phi as its model."""
        return server.inner._replace(x=server.x + self.lam * server.m)

    def broadcast(self, server: AcceleratedServer) -> Any:
        return self.inner.broadcast(self._ahead(server))

    def local(self, down: Any, client: Any, steps: Loop) -> tuple[Any, Any]:
        return self.inner.local(down, client, steps)

    def pack(self, up: Any, client: Any, steps: Loop) -> tuple[Any, Any]:
        return self.inner.pack(up, client, steps)

    def unpack(self, wire: Any) -> Any:
        return self.inner.unpack(wire)

    def enrol(self, server: AcceleratedServer, share: float) -> AcceleratedServer:
        inner = self.inner.enrol(server.inner, share)
        return server._replace(x=inner.x, inner=inner)

    def update(self, server: AcceleratedServer, mean: Any, cohort: Cohort) -> AcceleratedServer:
        inner = self.inner.update(self._ahead(server), mean, cohort)
        return AcceleratedServer(inner.x, inner.x - server.x, inner)
