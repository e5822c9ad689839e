"""The three laws that papers call Dirichlet; docs/partition.md says who means which."""

from __future__ import annotations

from typing import Literal

import numpy as np

from undrift import keyed
from undrift.check import require_choice, require_positive
from undrift.data.clients import Indices
from undrift.data.dealing import (
    Floats,
    Labels,
    apportioned,
    check_enough,
    check_minimum,
    codes_of,
    deal,
    log_dirichlet,
    pools_of,
    shares_of,
)

Law = Literal["equal", "sequential", "per-class"]

LAWS = ("equal", "sequential", "per-class")
REDRAWS = 100  # of the law per class, before the best of them is repaired


def dirichlet(
    targets: Labels,
    clients: int,
    alpha: float,
    *,
    law: Law = "equal",
    minimum: int | None = None,
    seed: int = 0,
) -> list[Indices]:
    """Label skew by Dir(alpha), smaller being worse, in one of the three published laws.

    "equal": each client draws its label mix, then in turns one sample after the other by it, equal
    sizes, no sample twice. When a class runs out, the mix goes on over the classes that are left
    (FedDyn's law, without its redraw loop, so that small alpha cannot hang).

    "sequential": client after client draws its mix, then all of its samples from those that are
    left, each weighted by the mix's share of its class (FedACG). Equal sizes; the last clients get
    what is left.

    "per-class": each class is divided over the clients by shares from Dir(alpha), without those
    that hold n / clients samples already (NIID-Bench, the thesis's DP1). Unequal sizes of at least
    `minimum`, every sample used. Redrawn until the minimum is met; when `REDRAWS` draws do not, the
    largest clients of the best draw pass samples on. `minimum` is the number of classes by
    default, or half of n / clients if that is less.
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
        return deal(pools_of(rng, codes), counts)
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
    return deal(pools, counts)


def _in_turns(
    rng: np.random.Generator, pools: list[Indices], log_mix: Floats, size: int
) -> list[Indices]:
    clients, classes = log_mix.shape
    left = np.array([len(pool) for pool in pools])
    parts: list[list[int]] = [[] for _ in range(clients)]
    for _ in range(size):
        for i in rng.permutation(clients):
            # Gumbel-max: one label from the client's mix over the classes that are left.
            scores = np.where(left > 0, log_mix[i] + rng.gumbel(size=classes), -np.inf)
            label = int(scores.argmax())
            left[label] -= 1
            parts[i].append(int(pools[label][left[label]]))
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]


def _weighted(rng: np.random.Generator, left: Indices, log_mix: Floats, size: int) -> Indices:
    """How many of each class, when `size` of the samples left are drawn by their class's weight.

    Drawing by weight without replacement is a race: each sample arrives after an exponential time
    over its weight, and the first ones are taken. Of a class only the order of arrival matters,
    whose gaps are exponential over the number still to come; so classes, not samples, are drawn.
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
    """(clients, classes): how many samples of each class a client gets."""
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
    classes, clients = log_mix.shape
    counts = np.zeros((clients, classes), dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    for label in range(classes):
        # Somebody is open: before the last class the clients hold less than n / clients on average.
        open_ = np.flatnonzero(sizes * clients < supply.sum())
        counts[open_, label] = apportioned(shares_of(log_mix[label, open_]), int(supply[label]))
        sizes += counts[:, label]
    return counts


def _repaired(counts: Indices, minimum: int) -> Indices:
    """The largest client gives one of its most frequent class, until all have the minimum."""
    counts, sizes = counts.copy(), counts.sum(axis=1)
    for poor in map(int, np.flatnonzero(sizes < minimum)):
        while sizes[poor] < minimum:
            rich = int(sizes.argmax())
            label = int(counts[rich].argmax())
            counts[[rich, poor], label] += (-1, 1)
            sizes[[rich, poor]] += (-1, 1)
    return counts
