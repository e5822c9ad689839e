"""A rank's part in a method without a server: one node, linked to the other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from undrift.comm.routes import Route
from undrift.core import Comm, Loop, Objective, Peer, Vector
from undrift.dry import ZeroObjective
from undrift.engine.collectives.base import Collective, Exchange, PeerComm, carry_out_at_once
from undrift.engine.collectives.inprocess import InProcessExchange
from undrift.engine.collectives.network import NetworkExchange
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.processes.group import Processes
from undrift.engine.world import World
from undrift.outer.local_round import Program
from undrift.outer.meeting import Meeting, RoundPlan
from undrift.outer.saving import leaves_of, tree_of
from undrift.outer.servers import all_finite
from undrift.topology import Links


class PeerRole:
    """Holds a node's state, which is this rank's own."""

    def __init__(
        self,
        method: Peer[Any],
        x0: Vector,
        world: World,
        links: Links | None,
        route: Route | None,
        seed: int,
    ) -> None:
        self._method, self._x0, self._world = method, x0, world
        self._links, self._route, self._seed = links, route, seed
        self.state: Any = None
        self._exchange: Exchange | None = None
        self._calls = (0, 0)  # of the saved round, in the middle of which it goes on

    @property
    def started(self) -> bool:
        """Return whether the node has its first state, which may need a gradient."""
        return self.state is not None

    def start(self, f: Objective) -> None:
        """Make the node's first state."""
        self.state = self._method.init(self._x0, f)

    @property
    def x(self) -> Vector:
        """Return this rank's model after the last round."""
        return self.state.x if self.started else self._x0

    def comm(self, t: int) -> Comm:
        """Return the way to the other ranks in round t."""
        settings: dict[str, Any] = {
            "size": self._world.size,
            "topology": None if self._links is None else self._links.at(t),
            "route": self._route,
            "t": t,
            "seed": self._seed,
            "traffic": Traffic(self._world.size),
        }
        if isinstance(self._world, Processes):
            self._exchange = NetworkExchange(world=self._world, **settings)
        else:
            self._exchange = InProcessExchange(**settings)
        self._exchange.reductions, self._exchange.mixes = self._calls
        self._calls = (0, 0)

        def ask(collective: Collective, rows: list[Tensor]) -> list[Tensor]:
            with self._world.failure_scope():
                return carry_out_at_once(collective, rows)

        return PeerComm(self._exchange, ask)

    def program(self, now: Peer[Any]) -> Program:
        """Return the node's round; `now` is the method of this round."""
        node = self.state

        def program(steps: Loop, comm: Comm) -> Any:
            return now.round(node, steps, comm)

        return program

    def is_finite(self, now: Peer[Any], outcome: Any) -> bool:
        """Return whether this rank has sent and computed finite numbers only."""
        sent = self._exchange is None or not self._exchange.not_finite
        return sent and all_finite(outcome)

    def conclude(self, now: Peer[Any], outcome: Any, meeting: Meeting, plan: RoundPlan) -> None:
        """Keep the node's new state."""
        self.state = outcome

    def leave_round(self) -> None:
        """Drop the exchanges of a round that has ended or failed."""
        self._exchange = None

    def saved(self) -> dict[str, Any]:
        """Return the node's state as a list of tensors, and how often it has met others."""
        exchange = self._exchange
        calls = [0, 0] if exchange is None else [exchange.reductions, exchange.mixes]
        return {"node": leaves_of(self.state) if self.started else None, "calls": calls}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over what `saved` returned."""
        self.state = None
        if saved["node"] is not None:
            form = self._method.init(self._x0, ZeroObjective(self._x0))
            self.state = tree_of("node", form, saved["node"])
        self._calls = tuple(saved["calls"])
