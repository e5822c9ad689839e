"""The meter of a round: gradients, samples, and the bytes between clients and a server.

Bytes between peers are counted by `engine.collectives.traffic`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from undrift.engine.world import World


@dataclass
class Meter:
    """Counts what so many clients really compute and send."""

    clients: int
    gradients: int = 0
    samples: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    exchanges: int = 0  # of a message down and one up
    samples_of: NDArray[np.int64] = field(init=False)  # of each client

    def __post_init__(self) -> None:
        self.samples_of = np.zeros(self.clients, dtype=np.int64)

    def add(self, other: Meter, positions: NDArray[np.int64]) -> None:
        """Add what a group has counted; `positions` are its clients among those counted here."""
        self.gradients += other.gradients
        self.samples += other.samples
        self.bytes_up += other.bytes_up
        self.bytes_down += other.bytes_down
        self.samples_of[positions] += other.samples_of

    def add_up(self, world: World, *wishes: int) -> list[int]:
        """Replace the cost of this process by the cost of all processes.

        Return the largest of each wish that the processes have; this costs no further message.
        """
        if world.size == 1:
            return [int(wish) for wish in wishes]
        counted = [self.gradients, self.samples, self.bytes_up, self.bytes_down]
        rows = world.gather([*map(int, wishes), *counted, *self.samples_of.tolist()])
        total = rows[:, len(wishes) :].sum(0)
        self.gradients, self.samples, self.bytes_up, self.bytes_down = total[:4].tolist()
        self.samples_of = total[4:]
        largest: list[int] = rows[:, : len(wishes)].max(0).tolist() if wishes else []
        return largest
