"""The checks of an upload before it is summed.

One pass over an upload gives the norms of its leaves, which also tell whether its numbers are
finite. Norms are judged when all uploads have come: a norm per local step beyond `FACTOR` times the
median of this cohort and of every one before is bad if it also exceeds the norm of the model.
Honest clients differ by far less, also with few classes each and unequal numbers of steps
(docs/robustness.md has the figures).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift import tree

FACTOR = 100.0  # of the cohort's median norm per local step
FEWEST = 5  # uploads below which no median says what is usual
LARGEST = 1e300  # of what is remembered; squares of finite numbers may overflow

Norms = NDArray[np.float64]  # (leaves, uploads)


class Fault(IntEnum):
    """Says what is wrong with an upload; the numbers travel between processes."""

    NONE = 0
    MISSING = 1
    NOT_FINITE = 2
    FORM = 3
    NORM = 4

    @property
    def reason(self) -> str:
        """Return what is wrong, as a record has it."""
        return _REASONS[self]


_REASONS = {
    Fault.NONE: "",
    Fault.MISSING: "it did not come",
    Fault.NOT_FINITE: "NaN or Inf",
    Fault.FORM: "another shape or type than the others",
    Fault.NORM: "far larger than the others",
}


def signature(uploads: Any, *, stacked: bool = True) -> tuple[Any, ...]:
    """Return structure, shapes and types of an upload, to be compared with another's."""
    leaves = tree.leaves(uploads)
    shapes = [tuple(leaf.shape[1:] if stacked else leaf.shape) for leaf in leaves]
    return (tree.form(uploads), *zip(shapes, (leaf.dtype for leaf in leaves), strict=True))


def norms_of_rows(uploads: Any) -> Norms:
    """Return (leaves, rows) the norms of a stacked tree; NaN where a row is not finite.

    The norm of finite numbers may be infinite, as squares overflow early.
    """
    floating = [leaf for leaf in tree.leaves(uploads) if leaf.is_floating_point()]
    if not floating:
        return np.zeros((0, 0))
    norms = torch.stack([_norms(leaf) for leaf in floating]).to(torch.float64).cpu().numpy()
    for row in np.flatnonzero(~np.isfinite(norms).all(0)):
        if not all(bool(leaf[row].isfinite().all()) for leaf in floating):
            norms[:, row] = np.nan
    return np.asarray(norms)


def _norms(leaf: Tensor) -> Tensor:
    rows = leaf.reshape(len(leaf), -1)
    if len(rows) == 1:  # A product of two vectors is faster than a norm, which is not threaded.
        return torch.dot(rows[0], rows[0]).sqrt()[None]
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms


class UsualSizes:
    """Judges the norms of uploads, and remembers the largest median of any cohort.

    Clients with duals upload increments, which become small where a run converges. One that comes
    for the first time, or after a long while, uploads as much as all did at the start.
    """

    def __init__(self) -> None:
        self.largest: dict[str, list[float]] = {}  # exchange -> of each leaf, per local step

    def oversized(
        self,
        exchange: str,
        norms: Norms,
        steps: Sequence[int] | NDArray[np.int64],
        scale: float,
    ) -> list[int]:
        """Return the uploads whose norm per local step is far beyond the usual, NaN being nobody.

        `scale` is the norm of the model: a smaller upload can do no harm by its size.
        """
        came = ~np.isnan(norms).any(0)
        if len(norms) == 0 or came.sum() < FEWEST:
            return []
        rates = norms / np.maximum(np.asarray(steps), 1)
        # The lower of two middle values, so that half of the cohort cannot raise the median.
        medians = np.quantile(rates[:, came], 0.5, axis=1, method="lower")
        before = self.largest.get(exchange, [])
        if len(before) == len(medians):
            medians = np.maximum(medians, before)
        # A round that is run again finds the same medians, so nothing has to be taken back.
        self.largest[exchange] = np.minimum(medians, LARGEST).tolist()
        usual = medians[:, None]
        large = (rates > FACTOR * usual) & (usual > 0) & (norms > scale)
        return [int(i) for i in np.flatnonzero(large.any(0) & came)]


def sizes_of(values: Any) -> dict[str, list[float]]:
    """Return what `UsualSizes.largest` was when it was saved, or raise `ValueError`."""
    sound = isinstance(values, dict) and all(
        isinstance(sizes, list)
        and all(type(size) in (int, float) and 0 <= size <= LARGEST for size in sizes)
        for sizes in values.values()
    )
    if not sound:
        raise ValueError("its usual sizes of uploads are no numbers >= 0 by exchange")
    return {name: [float(size) for size in sizes] for name, sizes in values.items()}
