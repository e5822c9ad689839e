"""A rank's part in a method with a server: every rank keeps the server's state and is a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift import dry, tree
from undrift.core import Comm, Federated, Loop, Vector
from undrift.engine.world import World
from undrift.outer.local_round import Program
from undrift.outer.meeting import Meeting, RoundPlan
from undrift.outer.messages import Alone
from undrift.outer.saving import leaves_of, tree_of


class _Outcome(NamedTuple):
    wire: Any
    client: Any


class ServerRole:
    """Holds the server's state, which is the same on all ranks, and this rank's as a client."""

    def __init__(
        self,
        method: Federated[Any, Any, Any, Any],
        x0: Vector,
        world: World,
    ) -> None:
        self._x0, self._method, self._world = x0, method, world
        self._packed = dry.packs(method, x0)
        self.state = method.init(x0)
        self._client = method.init_client(x0, method.broadcast(self.state))

    started = True  # a client's state needs no gradient

    @property
    def x(self) -> Vector:
        """Return the model after the last meeting."""
        return self.state.x  # type: ignore[no-any-return]

    def comm(self, t: int) -> Comm:
        """Return what clients may ask each other: nothing."""
        return Alone()

    def program(self, now: Federated[Any, Any, Any, Any]) -> Program:
        """Return the client's round, up to what it sends; `now` is the method of this round."""
        down, client = now.broadcast(self.state), self._client

        def program(steps: Loop, comm: Comm) -> _Outcome:
            upload, state = now.local(down, client, steps)
            wire, state = now.pack(upload, state, steps)
            return _Outcome(wire, state)

        return program

    def is_finite(self, now: Federated[Any, Any, Any, Any], outcome: _Outcome) -> bool:
        """Return whether what this rank sends is finite."""
        return all_finite(now.unpack(outcome.wire))

    def conclude(
        self,
        now: Federated[Any, Any, Any, Any],
        outcome: _Outcome | None,
        meeting: Meeting,
        plan: RoundPlan,
    ) -> None:
        """Add up the uploads of the ranks that take part and update the server's state.

        `outcome` is None on a rank that takes no part in this round.
        """
        weights = plan.weights(meeting.present)
        if weights:
            mean = self._mean(now, outcome, meeting, weights, plan.t)
            self.state = now.update(self.state, mean, plan.cohort(meeting.present))
        if outcome is not None:
            self._client = outcome.client

    def _mean(
        self,
        now: Federated[Any, Any, Any, Any],
        outcome: _Outcome | None,
        meeting: Meeting,
        weights: dict[int, float],
        t: int,
    ) -> Any:
        if self._packed or not meeting.complete:
            wire = dry.wire_form(now, self._x0) if outcome is None else outcome.wire
            wires = meeting.trees(wire, f"uploads of round {t + 1}", list(weights))
            return tree.weighted_sum([now.unpack(each) for each in wires], list(weights.values()))
        if outcome is None:
            own = dry.upload_form(now, self._x0)
        else:
            share = weights[self._world.rank]
            own = tree.weighted_sum([now.unpack(outcome.wire)], [share])
        return self._world.sum(own)

    def leave_round(self) -> None:
        """Do nothing, since a client keeps nothing of a round that has failed."""

    def saved(self) -> dict[str, Any]:
        """Return the states as lists of tensors."""
        return {"server": leaves_of(self.state), "client": leaves_of(self._client)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over what `saved` returned."""
        server = tree_of("server", self._method.init(self._x0), saved["server"])
        client = tree_of("client", dry.client_form(self._method, self._x0), saved["client"])
        self.state, self._client = server, client


def all_finite(values: Any) -> bool:
    """Return whether every number of a tree is finite."""
    floating = [leaf for leaf in tree.leaves(values) if leaf.is_floating_point()]
    return all(tree.is_finite(leaf) for leaf in floating)


def mean_over_ranks(world: World, x: Vector) -> Tensor:
    """Return the plain mean of the ranks' vectors."""
    with torch.no_grad():
        return world.sum(x.clone()) / world.size
