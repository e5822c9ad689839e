"""Samples that nobody trains on: test rows of a table, and each client's validation samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from undrift import keyed
from undrift.check import is_finite, require
from undrift.data.clients import Indices


def hold_out(
    parts: Sequence[Sequence[int] | Indices], share: float, samples: int, *, seed: int
) -> tuple[list[Indices], Indices]:
    """Return the parts without a share of each, and the indices of all that was taken.

    A client gives the nearest whole number of its samples, and keeps one. Which ones it gives
    depends on the seed and on the samples alone, so clients with the same samples give the same.
    """
    require(is_finite(share) and 0 < share < 1, "validation", "a share in (0, 1)", share)
    arrays = [np.asarray(part, dtype=np.int64) for part in parts]
    rank = keyed.generator(seed, "validation").permutation(samples)
    taken = np.zeros(samples, dtype=bool)
    for part in arrays:
        count = min(math.floor(share * len(part) + 0.5), len(part) - 1)
        taken[part[np.argsort(rank[part], kind="stable")[:count]]] = True
    sizes = f"{min(map(len, arrays))} to {max(map(len, arrays))} samples each"
    expected = f"a share that takes a sample of some client, with {sizes}"
    require(bool(taken.any()), "validation", expected, share, "raise it")
    left = [part[~taken[part]] for part in arrays]  # samples that others gave are out as well
    empty = next((i for i, part in enumerate(left) if len(part) == 0), None)
    if empty is not None:
        raise ValueError(
            "validation needs a sample for every client that no other client gives away, got none "
            f"for client {empty}; lower the share, or let clients have samples of their own."
        )
    return left, np.flatnonzero(taken)


def owners_of(parts: Sequence[Sequence[int] | Indices], samples: int) -> Indices:
    """Return the first client that has each of so many samples, -1 where none has."""
    owners = np.full(samples, -1, dtype=np.int64)
    for i in reversed(range(len(parts))):
        owners[np.asarray(parts[i], dtype=np.int64)] = i
    return owners


def check_fraction(who: str, test_fraction: float) -> None:
    """Raise `ValueError` unless the fraction is in (0, 1)."""
    require(0 < test_fraction < 1, who, "test_fraction in (0, 1)", test_fraction)


def train_and_test(size: int, test_fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Return the rows of the training and of the test part, at least one each, in order."""
    order = keyed.generator(seed, "table").permutation(size)
    cut = min(max(1, round(size * test_fraction)), size - 1)
    return np.sort(order[cut:]), np.sort(order[:cut])
