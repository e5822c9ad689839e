"""Packed uploads between processes: what travels is what clients send, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undrift import tree
from undrift.engine.plan import Plan
from undrift.engine.world import Placement, World

Positions = NDArray[np.int64]


class PackedUploads:
    """Holds the packed uploads of this process's clients, and sends them to all other processes.

    Every process plays the server, so each unpacks the uploads of all clients, in the same order.
    `form` makes zeros in the form of a packed upload.
    """

    def __init__(
        self,
        world: World,
        placement: Placement,
        form: Callable[[], Any],
        unpack: Callable[[Any], Any],
    ) -> None:
        self._world, self._placement, self._form, self._unpack = world, placement, form, unpack
        self._own: dict[int, Any] = {}

    def add(self, positions: Positions, wires: Any) -> None:
        """Take the packed uploads at these positions of the plan, leaves with a leading axis."""
        for row, position in enumerate(positions):
            self._own[int(position)] = tree.map(lambda leaf, row=row: leaf[row], wires)

    def exchange(self, plan: Plan, kept: Positions) -> Iterator[Any]:
        """Yield the uploads of all processes' clients at the positions `kept`, in their order."""
        ranks = self._placement.owners(plan.ids[kept])
        own = [tree.to_bytes(self._own[int(i)]) for i in kept[ranks == self._world.rank]]
        blob = torch.cat(own) if own else torch.empty(0, dtype=torch.uint8)
        blobs = self._world.blobs(blob, f"packed uploads of round {plan.t + 1}")
        form = self._form()
        parts = {rank: iter(torch.split(b, tree.nbytes(form))) for rank, b in enumerate(blobs)}
        return (self._unpack(tree.from_bytes(next(parts[rank]), form)) for rank in ranks.tolist())
