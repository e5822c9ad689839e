"""The three laws that papers call Dirichlet; docs/partition.md says which paper uses which."""

from __future__ import annotations

from typing import Literal

import numpy as np

from undrift import keyed
from undrift.check import require_choice, require_positive
from undrift.data.assignment import (
    Floats,
    Labels,
    apportioned,
    assign,
    check_enough,
    check_minimum,
    codes_of,
    log_dirichlet,
    pools_of,
    shares_of,
)
from undrift.data.clients import Indices

Law = Literal["equal", "sequential", "per-class"]

LAWS = ("equal", "sequential", "per-class")
REDRAWS = 100  # of the law "per-class", before the best draw is repaired


def dirichlet(
    targets: Labels,
    clients: int,
    alpha: float,
    *,
    law: Law = "equal",
    minimum: int | None = None,
    seed: int = 0,
) -> list[Indices]:
    """Return parts with label skew by Dir(alpha); a smaller alpha makes more skew.

    "equal": each client draws its label mix, then the clients draw samples by their mixes in turns.
    Sizes are equal, and no sample is drawn twice. When a class is used up, the mixes are restricted
    to the other classes (FedDyn's law without its redraw loop, so that small alpha cannot hang).

    "sequential": one client after the other draws its mix and then all of its samples among those
    that are left, each weighted by the mix's share of its class (FedACG). Sizes are equal; the last
    clients get what is left.

    "per-class": each class is divided by shares from Dir(alpha) among the clients that hold less
    than n / clients samples (NIID-Bench, the thesis's DP1). Sizes differ and are at least
    `minimum`; every sample is used. The draw is repeated until the minimum is met; after `REDRAWS`
    draws, the largest clients of the best draw give samples to the smallest. `minimum` is by
    default the number of classes, or half of n / clients if that is less.
    """
    check_enough(len(targets), clients)
    require_positive("dirichlet", alpha=alpha)
    require_choice("dirichlet", "law", law, LAWS)
    codes, classes = codes_of("dirichlet", targets)
    if minimum is None:
        minimum = max(1, min(classes, len(codes) // (2 * clients)))
    check_minimum("dirichlet", minimum, len(codes), clients)
    rng = keyed.generator(seed, "partition")
    if law == "per-class":
        counts = _per_class(rng, np.bincount(codes), clients, alpha, minimum)
        return assign(pools_of(rng, codes), counts)
    pools = pools_of(rng, codes)
    size = len(codes) // clients
    log_mix = log_dirichlet(rng, clients, classes, alpha)
    if law == "equal":
        return _in_turns(rng, pools, log_mix, size)
    left = np.bincount(codes)
    counts = np.zeros((clients, classes), dtype=np.int64)
    for i in range(clients):
        counts[i] = _weighted(rng, left, log_mix[i], size)
        left -= counts[i]
    return assign(pools, counts)


def _in_turns(
    rng: np.random.Generator, pools: list[Indices], log_mix: Floats, size: int
) -> list[Indices]:
    """Return parts of equal sizes, drawn one sample after the other."""
    clients, classes = log_mix.shape
    left = np.array([len(pool) for pool in pools])
    parts: list[list[int]] = [[] for _ in range(clients)]
    for _ in range(size):
        for i in rng.permutation(clients):
            # The Gumbel-max trick draws a label from the client's mix over the classes left.
            scores = np.where(left > 0, log_mix[i] + rng.gumbel(size=classes), -np.inf)
            label = int(scores.argmax())
            left[label] -= 1
            parts[i].append(int(pools[label][left[label]]))
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]


def _weighted(rng: np.random.Generator, left: Indices, log_mix: Floats, size: int) -> Indices:
    """Return how many samples of each class a client gets, if `size` are drawn by weight.

    To draw by weight without replacement, let each sample arrive after an exponential time divided
    by its weight, and take the first ones. Within a class the gaps between arrivals are exponential
    times divided by the number of samples still to arrive, so that only classes need to be drawn.
    """
    width = min(size, int(left.max()))
    coming = left[:, None] - np.arange(width)  # (classes, width)
    draws = rng.standard_exponential(coming.shape)
    gaps = np.where(coming > 0, draws / np.maximum(coming, 1), np.inf)
    arrivals = np.log(np.cumsum(gaps, axis=1)) - log_mix[:, None]
    first = np.argpartition(arrivals, size - 1, axis=None)[:size]
    return np.bincount(first // width, minlength=len(left))


def _per_class(
    rng: np.random.Generator, supply: Indices, clients: int, alpha: float, minimum: int
) -> Indices:
    """Return how many samples of each class each client gets, as (clients, classes)."""
    best, least = np.zeros((clients, len(supply)), dtype=np.int64), clients * minimum + 1
    for _ in range(REDRAWS):
        counts = _divided(log_dirichlet(rng, len(supply), clients, alpha), supply)
        missing = int(np.maximum(minimum - counts.sum(axis=1), 0).sum())
        if missing == 0:
            return counts
        if missing < least:
            best, least = counts, missing
    return _repaired(best, minimum)


def _divided(log_mix: Floats, supply: Indices) -> Indices:
    """Return one draw of the law "per-class", as (clients, classes)."""
    classes, clients = log_mix.shape
    counts = np.zeros((clients, classes), dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    for label in range(classes):
        # Some client is open, because before the last class they hold less than n / clients on
        # average.
        open_ = np.flatnonzero(sizes * clients < supply.sum())
        counts[open_, label] = apportioned(shares_of(log_mix[label, open_]), int(supply[label]))
        sizes += counts[:, label]
    return counts


def _repaired(counts: Indices, minimum: int) -> Indices:
    """Move samples of the largest clients' most frequent classes until all have the minimum."""
    counts, sizes = counts.copy(), counts.sum(axis=1)
    for poor in map(int, np.flatnonzero(sizes < minimum)):
        while sizes[poor] < minimum:
            rich = int(sizes.argmax())
            label = int(counts[rich].argmax())
            counts[[rich, poor], label] += (-1, 1)
            sizes[[rich, poor]] += (-1, 1)
    return counts
