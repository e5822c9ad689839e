"""The samples of an evaluation, in batches that each have a weight in the sum.

Where every rank has data of its own, a rank makes the batches of its own samples, and weighs them
among the samples of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.data.clients import Clients, Pair
from undrift.data.here import rows_here
from undrift.engine.participation import Floats


class WeightedPart(NamedTuple):
    """Holds samples that a model is scored on in one pass, each with its weight in the sum."""

    pool: Pair  # of samples as they are stored
    rows: Tensor | slice  # of the pool, which are gathered when they are needed
    weights: Tensor | float  # (samples,), or the weight of all together where they weigh the same

    @property
    def samples(self) -> Pair:
        """Return inputs and targets."""
        return self.pool[0][self.rows], self.pool[1][self.rows]


def held_out_parts(clients: Clients, name: str, most: int | None, batch: int) -> list[WeightedPart]:
    """Return the batches of "test" or "validation", of at most so many samples of all ranks."""
    counts, census = clients.counts(name), clients.rank_census
    rank = 0 if census is None else census.rank
    start, total = sum(counts[:rank]), sum(counts)
    places = _evenly(total, most)
    if places is not None:
        total = len(places)
        places = places[(places >= start) & (places < start + counts[rank])] - start
    return in_batches(getattr(clients, name), places, batch, total)


def training_parts(
    clients: Clients, population: Floats, most: int | None, batch: int
) -> list[WeightedPart]:
    """Return the training data as the objective weighs it, or some of it, in batches."""
    each = np.repeat(population / np.maximum(1, clients.sizes), clients.sizes)
    held = np.flatnonzero(each > 0)
    some = _evenly(len(held), most)
    held = held if some is None else held[some.numpy()]
    weights = each[held] * (population.sum() / each[held].sum())
    own, here = rows_here(clients, held)
    rows, shares = torch.from_numpy(own), torch.from_numpy(weights[here])
    pool = clients.inputs, clients.targets
    slices = (slice(start, start + batch) for start in range(0, len(rows), batch))
    return [WeightedPart(pool, rows[few], shares[few]) for few in slices]


def client_parts(clients: Clients, population: Floats) -> list[WeightedPart]:
    """Return the training data of each client whole, for a loss that needs it so."""
    owners = np.flatnonzero((population > 0) & (clients.held > 0))
    pairs = ((clients[int(i)], float(population[i])) for i in owners)
    return [WeightedPart(pair, slice(None), weight) for pair, weight in pairs]


def in_batches(
    pool: Pair, rows: Tensor | None, batch: int, total: int | None = None
) -> list[WeightedPart]:
    """Return batches of rows of a pool, or of all, each with its share of them as its weight.

    `total` is of how many samples they have a share, by default of these.
    """
    count = len(pool[1]) if rows is None else len(rows)
    total = count if total is None else total
    parts = []
    for start in range(0, count, batch):
        some = slice(start, min(start + batch, count))
        own = some if rows is None else rows[some]
        parts.append(WeightedPart(pool, own, (some.stop - start) / total))
    return parts


def shares(pair: Pair, batch: int) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Yield batches, each behind its share of the samples."""
    inputs, targets = pair
    for start in range(0, len(targets), batch):
        some = slice(start, start + batch)
        yield len(targets[some]) / len(targets), inputs[some], targets[some]


def _evenly(count: int, most: int | None) -> Tensor | None:
    """Return the places of at most `most` of so many samples, evenly spread; None for all."""
    if most is None or most >= count:
        return None
    return torch.arange(most) * count // most
