"""Checks of what `Outer` is given on one rank, before ranks meet; the model is taken over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from undrift.check import is_whole, require, require_positive
from undrift.comm.routes import Route
from undrift.core import Federated, Peer
from undrift.engine import participation as laws
from undrift.engine.participation import AnyParticipation, Participation
from undrift.engine.validate import connections
from undrift.optim.schedules import resolve
from undrift.outer.inner import InnerOptimizer
from undrift.outer.parameters import Parameters
from undrift.outer.rehearsal import Habits, rehearse
from undrift.outer.rounds import Method
from undrift.outer.steps import Seconds, check_counts, first_counts
from undrift.topology import Links


class Wishes(NamedTuple):
    """Holds what the script wants of `Outer`, as it was given."""

    model: nn.Module
    method: Method
    every: int | Sequence[int] | Seconds
    inner: torch.optim.Optimizer | None
    participation: AnyParticipation | None
    patience: float | None
    topology: Links | None
    allreduce: str | Route | None
    seed: int
    timeout: float


class RankSetup(NamedTuple):
    """Holds what becomes of it on this rank."""

    parameters: Parameters
    counts: tuple[int, ...]  # local steps of each rank in the first round
    links: tuple[Links | None, Route | None]
    habits: Habits
    participation: Participation | None
    inner: InnerOptimizer | None


def prepare(wishes: Wishes, size: int) -> RankSetup:
    """Return the setup of one of `size` ranks, or raise a ValueError for what does not fit."""
    method, model = wishes.method, wishes.model
    known = isinstance(method, Federated | Peer)
    require(known, "Outer", "a method object such as FedAvg(lr=0.1)", method)
    require_positive("Outer", timeout=wishes.timeout)
    require(is_whole(wishes.seed), "Outer", "a whole number as seed", wishes.seed)
    counts = first_counts(wishes.every, size, method)
    check_counts(method, counts)
    participation = _participation(method, wishes.participation, wishes.patience, size)
    links: tuple[Links | None, Route | None] = (None, None)
    if isinstance(method, Peer):
        links = connections(method, wishes.topology, wishes.allreduce, size, "rank")
    else:
        name = type(method).__name__
        require(wishes.topology is None, name, "no topology, it has a server", wishes.topology)
        require(wishes.allreduce is None, name, "no allreduce, it has a server", wishes.allreduce)
    parameters = Parameters(model)
    if size > 1:
        parameters.refuse_averaging()
    # What Outer cannot run is refused before the method asks for another model.
    habits = rehearse(resolve(method, 0), parameters.point)
    method.check(model)
    inner = None
    if wishes.inner is not None:
        inner = InnerOptimizer(wishes.inner, method, parameters)
    return RankSetup(parameters, counts, links, habits, participation, inner)


def _participation(
    method: Method, participation: Any, patience: Any, size: int
) -> Participation | None:
    """Return who takes part; raise if ranks may be absent and the method does not allow it."""
    law = None if participation is None else laws.parse(participation)
    if law is not None:
        law.check(size, 0)
    if patience is not None:
        require_positive("Outer", patience=patience)
    if isinstance(method, Peer) and not (participation is None and patience is None):
        raise ValueError(
            f"{type(method).__name__} needs all ranks in every round, as it has no server; leave "
            "participation and patience out."
        )
    return law
