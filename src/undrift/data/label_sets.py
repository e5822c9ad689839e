"""Partitions by sets of labels: each client holds samples of exactly so many of them."""

from __future__ import annotations

import heapq
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import require, require_choice
from undrift.data.assignment import (
    Labels,
    assign,
    check_enough,
    codes_of,
    pools_of,
    require_count,
)
from undrift.data.clients import Indices

SetLaw = Literal["equal", "uneven"]
Held = NDArray[np.bool_]  # (clients, labels)


def classes_per_client(
    targets: Labels, clients: int, classes: int, *, law: SetLaw = "equal", seed: int = 0
) -> list[Indices]:
    """Return parts of exactly `classes` labels each, drawn at random.

    "equal": sizes differ by at most one (the thesis's DP2, where clients "carry the same volume of
    data"). A label has holders in proportion to its samples, and the clients are filled up in turns
    as far as their labels allow. What then is left is left out, and so is a label too rare for a
    holder.

    "uneven": the samples of a label are divided evenly among its holders, so that sizes differ.
    Every label has a holder if clients * classes is large enough; samples of labels without a
    holder are left out.
    """
    who = "classes_per_client"
    check_enough(len(targets), clients)
    require_choice(who, "law", law, ("equal", "uneven"))
    codes, labels = codes_of(who, targets)
    require_count(who, "classes", classes)
    expected = f"at most the {labels} classes there are"
    require(classes <= labels, who, expected, classes, "lower classes")
    supply = np.bincount(codes)
    places = int(np.minimum(supply, clients).sum())
    require(
        places >= clients * classes,
        who,
        f"samples for {clients * classes} pairs of a client and one of its labels",
        places,
        "use fewer clients or classes",
    )
    rng = keyed.generator(seed, "partition")
    pools = pools_of(rng, codes)
    make = _equal_counts if law == "equal" else _uneven_counts
    return assign(pools, make(rng, supply, clients, classes))


def _uneven_counts(
    rng: np.random.Generator, supply: Indices, clients: int, classes: int
) -> Indices:
    """Return how many samples of each label a client gets if holders share a label evenly."""
    held = _held_labels(rng, supply, clients, classes)
    counts = np.zeros(held.shape, dtype=np.int64)
    for label in np.flatnonzero(held.any(axis=0)):
        holders = rng.permutation(np.flatnonzero(held[:, label]))
        each, over = divmod(int(supply[label]), len(holders))
        counts[holders, label] = each
        counts[holders[:over], label] += 1
    return counts


def _equal_counts(rng: np.random.Generator, supply: Indices, clients: int, classes: int) -> Indices:
    """Return how many samples of each label a client gets if all clients get equally many."""
    holders = _holders(rng, supply, clients, clients * classes)
    held = _held_labels(rng, holders, clients, classes)
    shared = holders > 0
    each = int((supply[shared] // holders[shared]).min())
    counts = held * np.int64(each)
    _fill_up(rng, counts, supply - holders * each)
    return counts


def _holders(rng: np.random.Generator, supply: Indices, clients: int, places: int) -> Indices:
    """Return how many holders each label has: as many in all as places, by the d'Hondt method.

    The next place goes to the label that would then have the most samples a holder, so that the
    fewest samples a holder are as many as can be. A label has no more holders than samples.
    """
    holders = np.zeros(len(supply), dtype=np.int64)
    rank = rng.permutation(len(supply))  # of equal labels the one of the lower rank is first
    heap = [(-int(n), int(rank[label]), label) for label, n in enumerate(supply)]
    heapq.heapify(heap)
    for _ in range(places):
        _, order, label = heapq.heappop(heap)
        holders[label] += 1
        if holders[label] < min(clients, supply[label]):
            heapq.heappush(heap, (-supply[label] / (holders[label] + 1), order, label))
    return holders


def _fill_up(rng: np.random.Generator, counts: Indices, left: Indices) -> None:
    """Give samples that are left to the clients in turns, until a turn finds one without any.

    A client takes the label of which most is left for each holder. Where its labels are used up,
    others hand over to it and take another of their labels instead.
    """
    own = [np.flatnonzero(row) for row in counts]
    holders = np.maximum(1, (counts > 0).sum(axis=0))
    everybody = True
    while everybody and left.any():
        for i in rng.permutation(len(counts)):
            label = own[i][(left[own[i]] / holders[own[i]]).argmax()]
            if left[label] > 0:
                counts[i, label] += 1
                left[label] -= 1
            elif not _hand_over(int(i), own[i], counts, left):
                everybody = False  # the others may still take one in this turn


def _hand_over(client: int, labels: Indices, counts: Indices, left: Indices) -> bool:
    """Give a client one sample by a shortest chain of others that change theirs, if there is one.

    A client in the chain gives one sample of a label, keeps at least one of it, and takes one of
    another of its labels, of which the next in the chain gives one or some are left.
    """
    giver: dict[int, tuple[int, int]] = {}  # label -> (who takes it instead, of which label)
    queue = [int(label) for label in labels]
    seen = set(queue)
    for label in queue:
        if left[label] > 0:
            left[label] -= 1
            while label in giver:
                other, given = giver[label]
                counts[other, label] += 1
                counts[other, given] -= 1
                label = given
            counts[client, label] += 1
            return True
        can_give = np.flatnonzero(counts[:, label] > 1)
        for instead in np.flatnonzero((counts[can_give] > 0).any(axis=0)):
            if int(instead) not in seen:
                seen.add(int(instead))
                queue.append(int(instead))
                other = can_give[counts[can_give, instead] > 0][0]
                giver[int(instead)] = (int(other), label)
    return False


def _held_labels(rng: np.random.Generator, supply: Indices, clients: int, classes: int) -> Held:
    """Return which client holds which label, as (clients, labels).

    Labels without a holder go first. A label has no more holders than samples. A label with fewer
    samples than remaining clients is `scarce`: each client takes only so many scarce labels that
    the others suffice for the remaining clients.
    """
    held = np.zeros((clients, len(supply)), dtype=np.bool_)
    left, fresh = supply.copy(), np.ones(len(supply), dtype=np.bool_)
    for i in range(clients):
        others = clients - i - 1
        spare = np.minimum(left, others).sum() - others * classes
        order = rng.permutation(len(left))
        order = np.concatenate([order[fresh[order]], order[~fresh[order]]])
        order = order[left[order] > 0]
        scarce = left[order] <= others
        own = order[~scarce | (np.cumsum(scarce) <= spare)][:classes]
        held[i, own], fresh[own] = True, False
        left[own] -= 1
    return held
