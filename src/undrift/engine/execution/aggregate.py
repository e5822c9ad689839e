"""The sum of a cohort's uploads: the one place that sees every upload before the server does.

Uploads arrive group by group in the order of the plan and are added at once, so memory holds one
sum and one group. Clipping, robust rules, noise and masks would enter here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from undrift import tree
from undrift.engine.world import World


class UploadSum:
    """Adds up weighted uploads and refuses those that are not finite."""

    def __init__(self) -> None:
        self._total: Any = None
        self._refused: list[int] = []

    def add(self, ids: Iterable[int], weights: Tensor, uploads: Any) -> bool:
        """Add sum_i w_i upload_i and return True, or return False if an upload is not finite.

        `uploads` is a tree whose leaves have a leading axis over the clients `ids`.
        """
        self._refused = not_finite(ids, uploads)
        if self._refused:
            return False
        part = tree.map(lambda leaf: torch.tensordot(weights.to(leaf.dtype), leaf, 1), uploads)
        self._total = part if self._total is None else tree.map(Tensor.add_, self._total, part)
        return True

    def sum_over(self, world: World, round: int, form: Callable[[], Any]) -> Any:
        """Return the sum over all processes, or raise on all of them if one has refused an upload.

        `form` makes the zeros that a process without an upload contributes.
        """
        world.agree(self._refused, round, "updates")
        if world.size == 1:
            return self._total
        return world.sum(form() if self._total is None else self._total)


def not_finite(ids: Iterable[int], rows: Any) -> list[int]:
    """Return those of `ids` whose rows in a stacked tree are not finite."""
    floating = [leaf for leaf in tree.leaves(rows) if leaf.is_floating_point()]
    if not floating:
        return []
    finite = tree.finite_rows(floating[0])
    for leaf in floating[1:]:
        finite = finite & tree.finite_rows(leaf)
    return [int(i) for i, fine in zip(ids, finite.tolist(), strict=True) if not fine]
