"""One round of a method without a server: nodes run stacked, in groups, on threads or in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from undrift import tree
from undrift.core import Comm, Objective, Peer, Vector
from undrift.engine.collectives.base import Collective, Exchange, PeerComm, carry_out_at_once
from undrift.engine.execution.executor import BaseExecutor
from undrift.engine.execution.local import Group, LocalLoop
from undrift.engine.execution.lockstep import run_lockstep
from undrift.engine.execution.meter import Meter
from undrift.engine.plan import Plan
from undrift.errors import UndriftError

Nodes = Any  # a tree of stacked leaves, (m, ...)


@dataclass(frozen=True)
class PeerExecutor(BaseExecutor):
    """Runs nodes `chunk` at a time: all of them at once, in groups that take turns, or one by one.

    In the mode "threads" so many single nodes run at the same time.
    """

    trim: bool = field(default=True, kw_only=True)  # whether to return freed memory to the system

    def init(self, algorithm: Peer[Any], plan: Plan, x0: Vector, meter: Meter) -> Nodes:
        """Return every node of this process at x0; `plan` has one step each, for `init` to see."""

        def init_node(node: Any, steps: LocalLoop) -> Any:
            def step(carry: Any, f: Objective) -> Any:
                return algorithm.init(x0.clone(), f)

            return steps(step, ())

        positions, groups = self._groups(plan)
        nodes = [self._run(init_node, (), group) for group in groups]
        self._count(meter, positions, groups)
        return tree.map(lambda *leaves: torch.cat(leaves), *nodes)

    def peer_round(
        self,
        algorithm: Peer[Any],
        plan: Plan,
        nodes: Nodes,
        exchange: Exchange,
        meter: Meter,
    ) -> Nodes:
        """Return the next states of this process's nodes; `nodes` is not changed."""
        positions, groups = self._groups(plan)

        def run(group: Group, states: Nodes, comm: Comm) -> Nodes:
            return self._run(lambda node, steps: algorithm.round(node, steps, comm), states, group)

        if len(groups) == 1:
            comm = PeerComm(exchange, carry_out_at_once)
            new = run(groups[0], nodes, comm)
        else:
            new = self._in_turns(run, groups, nodes, exchange)
        self._count(meter, positions, groups)
        # A bad message spoils its receivers' models, so senders are named before models.
        self.world.agree(sorted(exchange.not_finite), plan.t + 1, "messages")
        own = self.placement.nodes_among(plan.ids)
        self.world.agree(not_finite(own, new), plan.t + 1, "models")
        return new

    def _in_turns(
        self,
        run: Callable[[Group, Nodes, Comm], Nodes],
        groups: list[Group],
        nodes: Nodes,
        exchange: Exchange,
    ) -> Nodes:
        """Run groups one after the other between two collectives."""
        sizes = [len(group.assignment.ids) for group in groups]
        bounds = np.cumsum([0, *sizes]).tolist()
        new = tree.map(torch.empty_like, nodes)

        def function(i: int) -> Callable[[Any], Nodes]:
            states = tree.map(lambda leaf: leaf[bounds[i] : bounds[i + 1]], nodes)

            def turn(ask: Callable[[Any], list[Tensor]]) -> Nodes:
                comm = PeerComm(exchange, lambda collective, rows: ask((collective, rows)))
                return run(groups[i], states, comm)

            return turn

        def meet(requests: list[tuple[Collective, list[Tensor]]]) -> list[list[Tensor]]:
            collective = requests[0][0]
            _require_same(requests)
            leaves = [list(rows) for rows in zip(*(rows for _, rows in requests), strict=True)]
            requests.clear()  # so that memory holds the rows no longer than the collective does
            answers = collective(leaves)
            return [list(rows) for rows in zip(*answers, strict=True)]

        def finished(i: int, result: Nodes) -> None:
            for rows, leaf in zip(tree.leaves(result), tree.leaves(new), strict=True):
                leaf[bounds[i] : bounds[i + 1]] = rows

        run_lockstep(
            [function(i) for i in range(len(groups))],
            meet,
            finished,
            at_once=self.groups_at_once,
            trim=self.trim,
        )
        return new

    @property
    def groups_at_once(self) -> int:
        """Return how many nodes may run at the same time; stacks of them take turns."""
        return self.threads if self.mode == "threads" else 1

    def _groups(self, plan: Plan) -> tuple[list[NDArray[np.int64]], list[Group]]:
        """Return the positions of this process's groups, and the groups."""
        stacked = self.mode == "stacked"
        own = self.placement.nodes_among(plan.ids)
        # Group i and group i + at_once never run at the same time, see `run_lockstep`.
        tasks = self._copies.several(self.groups_at_once)
        positions = list(plan.groups(self.chunk if stacked else 1, own))
        groups = []
        for i, some in enumerate(positions):
            assignment = self.planner.assign(plan, some)
            samples = self.pool.samples(assignment.ids)
            groups.append(Group(tasks[i % len(tasks)], samples, assignment, stacked=stacked))
        return positions, groups

    def _count(self, meter: Meter, positions: list[NDArray[np.int64]], groups: list[Group]) -> None:
        """Add what the groups have counted."""
        for some, group in zip(positions, groups, strict=True):
            meter.add(group.meter, some)

    def _run(self, function: Callable[[Any, LocalLoop], Any], states: Nodes, group: Group) -> Nodes:
        """Return function(node, steps) of every node of a group, stacked."""
        rows = torch.arange(len(group.assignment.ids), device=group.device)[:, None]
        if not group.stacked:
            node = tree.map(lambda leaf: leaf[0], states)
            return tree.map(lambda leaf: leaf[None], function(node, LocalLoop(group, rows[0])))
        if not tree.leaves(states):  # At the start nodes have no states, and vmap needs a tensor.
            return vmap(lambda row: function((), LocalLoop(group, row)))(rows)
        return vmap(lambda node, row: function(node, LocalLoop(group, row)))(states, rows)


def _require_same(requests: list[tuple[Collective, list[Tensor]]]) -> None:
    """Raise unless all nodes ask for the same collective of the same shapes."""
    kinds = {
        (collective.__name__, *(leaf.shape[1:] for leaf in rows)) for collective, rows in requests
    }
    if len(kinds) > 1:
        raise UndriftError(
            f"Peers need to ask each other for the same thing at the same time, got {kinds}; "
            "do not let a node's data decide what it asks."
        )


def not_finite(ids: Iterable[int], rows: Any) -> list[int]:
    """Return those of `ids` whose rows in a stacked tree are not finite."""
    floating = [leaf for leaf in tree.leaves(rows) if leaf.is_floating_point()]
    if not floating:
        return []
    finite = tree.finite_rows(floating[0])
    for leaf in floating[1:]:
        finite = finite & tree.finite_rows(leaf)
    return [int(i) for i, fine in zip(ids, finite.tolist(), strict=True) if not fine]
