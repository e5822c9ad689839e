"""`BaseExecutor` holds what executors of clients and of nodes have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch

from undrift.engine.execution.pool import Pool
from undrift.engine.execution.threads import SHARED_ELEMENTS, TaskCopies
from undrift.engine.plan import Planner
from undrift.engine.world import Placement, World
from undrift.gradients.task import Task

Mode = Literal["loop", "threads", "stacked"]


@dataclass(frozen=True)
class BaseExecutor:
    """Holds what is run and how: one at a time, on threads, or `chunk` of them in a stack."""

    task: Task
    planner: Planner
    pool: Pool
    mode: Mode
    chunk: int
    world: World = field(default=World(), kw_only=True)  # the processes that share the work
    threads: int = field(default=1, kw_only=True)  # clients, or stacks of them, that run at a time
    _copies: TaskCopies = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_copies", TaskCopies(self.task))

    @property
    def placement(self) -> Placement:
        """Return which clients this process runs."""
        return Placement.of(self.pool.clients, self.world)

    def threads_at_once(self, clients: int, activations: int) -> int:
        """Return how many threads compute at the same time in a round of so many clients."""
        groups = math.ceil(clients / (self.chunk if self.mode == "stacked" else 1))
        if self.groups_at_once > 1 and groups > 1:
            return min(self.groups_at_once, groups)
        shared = self.elements_per_step(clients, activations) >= SHARED_ELEMENTS
        return torch.get_num_threads() if shared else 1

    @property
    def groups_at_once(self) -> int:
        """Return how many groups of clients may run at the same time."""
        return 1 if self.mode == "loop" else self.threads

    def elements_per_step(self, clients: int, activations: int) -> int:
        """Return how many numbers a step of so many clients works on in one call.

        Many are worth intra-op threads. `activations` are those of one sample. Nothing counts where
        clients are on threads or cores of their own.
        """
        if self.mode == "threads" or self.task.oracle.schedules_clients:
            return 0
        stacked = min(self.chunk, clients) if self.mode == "stacked" else 1
        return stacked * (self.planner.width * activations + self.task.layout.size)
