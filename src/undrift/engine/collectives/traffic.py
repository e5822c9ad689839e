"""The bytes that peers send each other in a round; `engine.execution.meter` counts a server's."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from undrift.engine.world import World


class Traffic:
    """Counts the bytes of the messages of a round, link by link."""

    def __init__(self, workers: int) -> None:
        # (senders, receivers); the last row and column belong to a server.
        self.links: NDArray[np.int64] = np.zeros((workers + 1, workers + 1), dtype=np.int64)
        self.hops = 0  # one after the other
        self.coordinates = 0  # numbers that the bytes stand for, summed over the messages
        self.matching: list[float] = []  # for each lossy all-reduce, see `sign_matching`

    def sum_over_ranks(self, world: World) -> Traffic:
        """Return the traffic of all processes, each of which counts what its own workers send."""
        if world.size == 1:
            return self
        total = Traffic(len(self.links) - 1)
        total.links = world.sum(torch.from_numpy(self.links)).numpy()
        total.coordinates = int(world.gather([self.coordinates]).sum())
        total.hops = self.hops
        return total

    def add(self, sender: int, receiver: int, nbytes: int, coordinates: int) -> None:
        """Count one message."""
        self.links[sender, receiver] += nbytes
        self.coordinates += coordinates

    @property
    def up(self) -> int:
        """Return the bytes that the workers sent."""
        return int(self.links[:-1].sum())

    @property
    def down(self) -> int:
        """Return the bytes that the server sent, where there is one."""
        return int(self.links[-1].sum())

    @property
    def per_worker(self) -> int:
        """Return the bytes that the busiest worker sent."""
        return int(self.links[:-1].sum(1).max())

    @property
    def per_link(self) -> int:
        """Return the bytes that the busiest link carried, one way."""
        return int(self.links.max())

    @property
    def bits(self) -> float | None:
        """Return the bits per coordinate and hop, or None if nothing was sent."""
        return 8 * (self.up + self.down) / self.coordinates if self.coordinates else None
