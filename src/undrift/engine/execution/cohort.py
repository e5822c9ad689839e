"""Running a cohort, by itself, side by side or stacked; uploads are summed as they come.

All modes run the same `Loop` over the same minibatches and masks and give the same result up to
the order of float sums. `loop` runs one client at a time and suits big models, `threads` several of
them, each on a core of its own; `stacked` replaces many small operations by few large ones under
`vmap` and suits models bound by overhead. Several stacks run side by side, too.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from undrift import tree
from undrift.core import Loop, Vector
from undrift.engine.execution.local import Group, LocalLoop, Meter, WatchedLoop
from undrift.engine.execution.threads import ordered_thread_map
from undrift.engine.plan import Plan, Planner
from undrift.engine.world import World
from undrift.gradients.task import Task

Mode = Literal["loop", "threads", "stacked"]
Call = Callable[[Any, Any, Loop], tuple[Any, Any]]  # (down, client, steps) -> (wire, client)
Unpack = Callable[[Any], Any]  # wire -> upload


class Upload(NamedTuple):
    """What a tap sees: one client's upload of one round, and the local models behind it.

    `start` and `y` are the first vector of the model's size in what the client gave to its first
    call of `steps` and got from its last: the iterate, in every method of this library.
    """

    round: int  # from 1
    client: int
    weight: float  # in the mean
    upload: Any
    x: Vector  # the server's model before the round; not to be changed
    start: Vector | None  # where the client took its first step; None without steps, as y
    y: Vector | None  # its model after the last, as it was before any compression


Tap = Callable[[Upload], None]
UploadObserver = Callable[
    [int, float, Any, tuple[Vector, ...]], None
]  # client, weight, upload, path


class Played(NamedTuple):
    """What a group of clients brings back."""

    group: Group
    uploads: Any  # every leaf with a leading axis over the clients
    states: list[Any]
    paths: tuple[Tensor, ...]


@dataclass(frozen=True)
class Executor:
    task: Task
    planner: Planner
    pool: tuple[Tensor, Tensor]
    mode: Mode
    chunk: int
    row_cost: float = 0.0  # of a client in a stacked step, see `groups_of_like_work`
    world: World = World()  # the processes that share the clients
    threads: int = 1  # clients, or stacks of them, that run at a time
    # By exchange: what nobody uploads, and the state in which a stand-in is after it.
    _empty: dict[int, tuple[Any, Any]] = field(default_factory=dict, init=False, compare=False)
    _tasks: list[Task] = field(default_factory=list, init=False, compare=False)  # of threads

    def numbers(self, clients: int, activations: int) -> int:
        """How many numbers a step of so many clients works on, those of each sample being given."""
        together = min(self.chunk, clients)
        return elements_per_step(self.mode, together, self.task, self.planner.width * activations)

    def exchange(
        self,
        call: Call,
        unpack: Unpack,
        down: Any,
        plan: Plan,
        state_of: Callable[[int], Any],
        meter: Meter,
        told: UploadObserver | None = None,
    ) -> tuple[Any, dict[int, Any]]:
        """Every client of the plan calls; returns the weighted mean and the new client states.

        Of several processes each runs its own clients and keeps their states; the mean is of all.
        """
        mine = self.world.positions(plan.ids)
        meter.bytes_down += tree.nbytes(down) * len(mine)
        meter.exchanges += 1
        total: Any = None
        states: dict[int, Any] = {}
        make = LocalLoop if told is None else WatchedLoop
        play = partial(self._play, call, unpack, down, plan, make)
        bad: list[int] = []
        with closing(self._played(play, plan, mine, state_of)) as played:
            for group, uploads, new, paths in played:
                meter.add(group.meter)
                bad = _not_finite(uploads, group)
                if bad:
                    break
                if told is not None:
                    for row, i in enumerate(group.ids):
                        seen = tree.row((uploads, paths), row)
                        told(int(i), float(group.weights[row]), *seen)
                total = _add(total, group.weights, uploads)
                states.update(zip(map(int, group.ids), new, strict=True))
                del group, uploads, new, paths  # before the next group makes its own
        self.world.agree(bad, plan.t + 1, "updates")
        if self.world.size > 1:
            if total is None:
                total = self._nothing(call, unpack, down, plan, state_of, meter.exchanges)
            total = self.world.sum(total)
        return total, states

    def _played(
        self,
        play: Callable[..., Played],
        plan: Plan,
        mine: NDArray[np.int64],
        state_of: Callable[[int], Any],
    ) -> Generator[Played, None, None]:
        """The groups of the plan as they come out, always in the same order."""

        def held(positions: NDArray[np.int64]) -> list[Any]:
            return [state_of(int(i)) for i in plan.ids[positions]]

        if self.mode == "stacked":
            stacks = max(1, math.ceil(len(mine) / self.chunk))
            alike = math.ceil(len(mine) / stacks)  # rather 30 and 30 clients than 50 and 10
            groups = list(plan.groups_of_like_work(max(1, alike), self.row_cost, mine))
        else:
            groups = list(plan.by_falling_work(mine))
        if self.mode != "loop" and self.threads > 1 and len(groups) > 1:
            jobs = (partial(self._borrowing, play, some, held(some)) for some in groups)
            yield from ordered_thread_map(jobs, self.threads)
            return
        for positions in groups:
            yield play(self.task, positions, held(positions))

    def _borrowing(
        self,
        play: Callable[..., Played],
        positions: NDArray[np.int64],
        held: list[Any],
        stop: threading.Event,
    ) -> Played:
        """With a model of its own: a forward pass puts the parameters into it for a while."""
        try:
            task = self._tasks.pop()
        except IndexError:
            copied, oracle = copy.deepcopy(self.task.model), self.task.oracle.on(1)
            task = replace(self.task, model=copied, oracle=oracle)
        try:
            return play(task, positions, held, stop)
        finally:
            self._tasks.append(task)

    def _play(
        self,
        call: Call,
        unpack: Unpack,
        down: Any,
        plan: Plan,
        make: type[LocalLoop],
        task: Task,
        positions: NDArray[np.int64],
        held: list[Any],
        stop: threading.Event | None = None,
    ) -> Played:
        stacked = self.mode == "stacked"
        meter = Meter(len(plan.ids))
        group = Group(task, self.planner, plan, positions, self.pool, meter, stacked=stacked)
        group.stop = stop
        run = self._stacked if stacked else self._alone
        return Played(group, *run(call, unpack, down, held, group, make))

    def _nothing(
        self,
        call: Call,
        unpack: Unpack,
        down: Any,
        plan: Plan,
        state_of: Callable[[int], Any],
        exchange: int,
    ) -> Any:
        """The sum of no uploads, whose form is seen on one step of a client that stays unused."""
        if exchange not in self._empty:
            client = int(plan.ids[0])
            one = replace(plan, ids=np.array([client]), weights=np.ones(1), counts=np.array([1]))
            position = np.zeros(1, dtype=np.int64)
            group = Group(
                self.task, self.planner, one, position, self.pool, Meter(1), stacked=False
            )
            before = self._empty[exchange - 1][1] if exchange > 1 else state_of(client)
            uploads, (after,), _ = self._alone(call, unpack, down, [before], group)
            zeros = tree.map(lambda leaf: torch.zeros_like(leaf[0]), uploads)
            self._empty[exchange] = zeros, after
        return tree.map(Tensor.clone, self._empty[exchange][0])

    def _alone(
        self,
        call: Call,
        unpack: Unpack,
        down: Any,
        held: list[Any],
        group: Group,
        make: type[LocalLoop] = LocalLoop,
    ) -> tuple[Any, list[Any], tuple[Tensor, ...]]:
        loop = make(group, torch.zeros(1, dtype=torch.int64, device=group.device))
        wire, state = call(down, held[0], loop)
        group.meter.bytes_up += tree.nbytes(wire)
        uploads, paths = tree.map(lambda leaf: leaf[None], (unpack(wire), loop.path))
        return uploads, [state], paths

    def _stacked(
        self,
        call: Call,
        unpack: Unpack,
        down: Any,
        held: list[Any],
        group: Group,
        make: type[LocalLoop] = LocalLoop,
    ) -> tuple[Any, list[Any], tuple[Tensor, ...]]:
        def one(client: Any, row: Tensor) -> tuple[Any, Any, tuple[Tensor, ...]]:
            loop = make(group, row)
            return *call(down, client, loop), loop.path

        rows = torch.arange(len(held), device=group.device)[:, None]
        wires, states, paths = vmap(one)(tree.stack(held), rows)
        group.meter.bytes_up += tree.nbytes(wires)
        return vmap(unpack)(wires), [tree.row(states, i) for i in range(len(held))], paths


def elements_per_step(mode: Mode, together: int, task: Task, activations: int) -> int:
    """That a step works on, which is worth intra-op threads if there are many.

    `together` clients are stacked, `activations` are those of a minibatch. None of them counts
    where clients are on threads or cores by themselves.
    """
    if mode == "threads" or task.oracle.schedules_clients:
        return 0
    return (together if mode == "stacked" else 1) * (activations + task.layout.size)


def _not_finite(uploads: Any, group: Group) -> list[int]:
    finite = torch.ones(len(group.ids), dtype=torch.bool, device=group.device)
    for leaf in tree.leaves(uploads):
        if leaf.is_floating_point():
            finite &= tree.finite_rows(leaf)
    return [int(i) for i, fine in zip(group.ids, finite, strict=True) if not fine]


def _add(total: Any, weights: Tensor, uploads: Any) -> Any:
    """total + sum_i w_i upload_i, leaf by leaf."""
    mean = tree.map(lambda leaf: torch.tensordot(weights.to(leaf.dtype), leaf, 1), uploads)
    return mean if total is None else tree.map(Tensor.add_, total, mean)
