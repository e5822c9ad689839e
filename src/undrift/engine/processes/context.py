"""The context says what this process knows of the others; no other state outlives a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.distributed.distributed_c10d import Store

from undrift.engine.processes.group import Processes
from undrift.engine.world import World

if TYPE_CHECKING:
    from undrift.engine.processes.workers import WorkerPool


@dataclass
class ProcessContext:
    """Holds the connections of this process to others; there is one, `CONTEXT`."""

    joined: Processes | None = None  # the group that this process has joined last
    pool: WorkerPool | None = None  # the processes that this one started for its last run
    worker_world: World | None = None  # in a process of such a pool: the world it was started for
    stores: dict[int, Store] = field(default_factory=dict)  # that this process has opened, by port


CONTEXT = ProcessContext()
