"""One round of a method without a server: nodes stacked, in groups, side by side or in turns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from undrift import tree
from undrift.core import Comm, Objective, Peer, Vector
from undrift.engine.collectives.base import Collective, Exchange, PeerComm
from undrift.engine.execution.cohort import Mode, elements_per_step
from undrift.engine.execution.local import Group, LocalLoop, Meter
from undrift.engine.execution.lockstep import run_lockstep
from undrift.engine.plan import Plan, Planner
from undrift.engine.world import World
from undrift.errors import UndriftError
from undrift.gradients.task import Task

Nodes = Any  # a tree of stacked leaves, (m, ...)


@dataclass(frozen=True)
class PeerExecutor:
    """Runs nodes `chunk` at a time: all of them at once, groups taking turns, or single ones.

    Of single ones `threads` run side by side in the mode of that name.
    """

    task: Task
    planner: Planner
    pool: tuple[Tensor, Tensor]
    mode: Mode
    chunk: int
    world: World = World()  # the processes that share the nodes
    threads: int = 1
    trim: bool = True  # give freed memory back to the system, worth it if there is much of it
    _tasks: list[Task] = field(default_factory=list, init=False, compare=False)  # of threads

    def numbers(self, nodes: int, activations: int) -> int:
        """How many numbers a step of so many nodes works on, those of each sample being given."""
        together = min(self.chunk, nodes)
        return elements_per_step(self.mode, together, self.task, self.planner.width * activations)

    def init(self, algorithm: Peer[Any], plan: Plan, x0: Vector, meter: Meter) -> Nodes:
        """Every node of this process at x0; `plan` has one step each, whose batch `init` sees."""

        def one(node: Any, steps: LocalLoop) -> Any:
            def step(carry: Any, f: Objective) -> Any:
                return algorithm.init(x0.clone(), f)

            return steps(step, ())

        groups = self._groups(plan)
        made = [self._run(one, (), group) for group in groups]
        for group in groups:
            meter.add(group.meter)
        return tree.map(lambda *leaves: torch.cat(leaves), *made)

    def play(
        self,
        algorithm: Peer[Any],
        plan: Plan,
        nodes: Nodes,
        exchange: Exchange,
        meter: Meter,
    ) -> Nodes:
        """The next states of this process's nodes; nothing given is changed."""
        groups = self._groups(plan)

        def run(group: Group, held: Nodes, comm: Comm) -> Nodes:
            return self._run(lambda node, steps: algorithm.round(node, steps, comm), held, group)

        if len(groups) == 1:
            comm = PeerComm(exchange, _alone)
            new = run(groups[0], nodes, comm)
        else:
            new = self._in_turns(run, groups, nodes, exchange)
        for group in groups:
            meter.add(group.meter)
        # Who sent it first: what it has spread to is not at fault.
        self.world.agree(sorted(exchange.not_finite), plan.t + 1, "messages")
        bad = _not_finite(new, self.world.nodes(exchange.size))
        self.world.agree(sorted(bad), plan.t + 1, "models")
        return new

    def _in_turns(
        self,
        run: Callable[[Group, Nodes, Comm], Nodes],
        groups: list[Group],
        nodes: Nodes,
        exchange: Exchange,
    ) -> Nodes:
        bounds = np.cumsum([0, *(len(group.ids) for group in groups)]).tolist()
        new = tree.map(torch.empty_like, nodes)

        def function(i: int) -> Callable[[Any], Nodes]:
            held = tree.map(lambda leaf: leaf[bounds[i] : bounds[i + 1]], nodes)

            def turn(ask: Callable[[Any], list[Tensor]]) -> Nodes:
                comm = PeerComm(exchange, lambda what, rows: ask((what, rows)))
                return run(groups[i], held, comm)

            return turn

        def meet(asked: list[tuple[Collective, list[Tensor]]]) -> list[list[Tensor]]:
            collective = asked[0][0]
            _require_same(asked)
            leaves = [list(rows) for rows in zip(*(rows for _, rows in asked), strict=True)]
            asked.clear()
            answers = collective(leaves)
            return [list(rows) for rows in zip(*answers, strict=True)]

        def finished(i: int, result: Nodes) -> None:
            for row, leaf in zip(tree.leaves(result), tree.leaves(new), strict=True):
                leaf[bounds[i] : bounds[i + 1]] = row

        run_lockstep(
            [function(i) for i in range(len(groups))],
            meet,
            finished,
            at_once=self._at_once,
            trim=self.trim,
        )
        return new

    @property
    def _at_once(self) -> int:
        return self.threads if self.mode == "threads" else 1

    def _groups(self, plan: Plan) -> list[Group]:
        stacked = self.mode == "stacked"
        mine = np.array(self.world.nodes(len(plan.ids)), dtype=np.int64)
        # Nodes that run at the same time need models of their own, see `run_lockstep`.
        while len(self._tasks) < self._at_once:
            copied = copy.deepcopy(self.task.model) if self._tasks else self.task.model
            self._tasks.append(replace(self.task, model=copied))
        return [
            Group(
                self._tasks[i % self._at_once],
                self.planner,
                plan,
                positions,
                self.pool,
                Meter(len(plan.ids)),
                stacked=stacked,
            )
            for i, positions in enumerate(plan.groups(self.chunk if stacked else 1, mine))
        ]

    def _run(self, one: Callable[[Any, LocalLoop], Any], held: Nodes, group: Group) -> Nodes:
        rows = torch.arange(len(group.ids), device=group.device)[:, None]
        if not group.stacked:
            node = tree.map(lambda leaf: leaf[0], held)
            return tree.map(lambda leaf: leaf[None], one(node, LocalLoop(group, rows[0])))
        if not tree.leaves(held):  # at the start there is nothing to stack but the rows
            return vmap(lambda row: one((), LocalLoop(group, row)))(rows)
        return vmap(lambda node, row: one(node, LocalLoop(group, row)))(held, rows)


def _require_same(asked: list[tuple[Collective, list[Tensor]]]) -> None:
    """All nodes must ask for the same thing at the same time."""
    kinds = {(what.__name__, *(leaf.shape[1:] for leaf in rows)) for what, rows in asked}
    if len(kinds) > 1:
        raise UndriftError(
            f"Peers need to ask each other for the same thing at the same time, got {kinds}; "
            "do not let a node's data decide what it asks."
        )


def _alone(collective: Collective, rows: list[Tensor]) -> list[Tensor]:
    """A group that is everybody asks nobody else."""
    return [some for (some,) in collective([[leaf] for leaf in rows])]


def _not_finite(nodes: Nodes, numbers: range) -> set[int]:
    floating = [leaf for leaf in tree.leaves(nodes) if leaf.is_floating_point()]
    finite = torch.stack([tree.finite_rows(leaf) for leaf in floating]).all(0)
    return {i for i, fine in zip(numbers, finite.tolist(), strict=True) if not fine}
