"""Tools of partitions: checks, draws of proportions, and assignment of samples to clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from undrift.check import is_whole, require
from undrift.data.clients import Indices

Labels = Tensor | NDArray[Any]
Floats = NDArray[np.float64]


def check_clients(clients: int) -> None:
    """Raise `ValueError` unless there is at least one client."""
    sound = is_whole(clients) and clients >= 1
    require(sound, "A partition", "clients >= 1, a whole number", clients)


def check_enough(samples: int, clients: int) -> None:
    """Raise `ValueError` unless there is a sample for each client."""
    check_clients(clients)
    require(
        samples >= clients,
        "A partition",
        f"at least one sample for each of {clients} clients",
        samples,
        "use fewer clients",
    )


def require_count(who: str, name: str, value: Any) -> None:
    """Raise `ValueError` unless a value is a whole number of at least 1."""
    require(is_whole(value) and value >= 1, who, f"{name} >= 1, a whole number", value)


def check_minimum(who: str, minimum: int, samples: int, clients: int) -> None:
    """Raise `ValueError` unless the samples suffice for the minimum of each client."""
    require_count(who, "minimum", minimum)
    require(
        clients * minimum <= samples,
        who,
        f"{clients * minimum} samples for {clients} clients of at least minimum = {minimum}",
        samples,
        "use fewer clients or lower minimum",
    )


def codes_of(
    who: str, values: Labels, what: str = "label", remedy: str = "use iid for regression"
) -> tuple[Indices, int]:
    """Return labels as 0, 1, ... in their order, and how many there are."""
    array = values if isinstance(values, Tensor) else np.asarray(values)
    if isinstance(array, Tensor):
        integral = not (array.is_floating_point() or array.is_complex())
    else:
        integral = array.dtype.kind in "iub"
    if array.ndim != 1 or not integral:
        raise ValueError(
            f"{who} needs one integer {what} per sample, got {array.dtype} of shape "
            f"{tuple(array.shape)}; {remedy}."
        )
    plain = array.cpu().numpy() if isinstance(array, Tensor) else array
    distinct, codes = np.unique(plain, return_inverse=True)
    return codes.astype(np.int64), len(distinct)


def pools_of(rng: np.random.Generator, codes: Indices) -> list[Indices]:
    """Return the samples of each class in random order."""
    order = np.argsort(codes, kind="stable")
    cuts = np.cumsum(np.bincount(codes))[:-1]
    return [rng.permutation(pool) for pool in np.split(order, cuts)]


def assign(pools: list[Indices], counts: Indices) -> list[Indices]:
    """Return parts that have counts[i, c] samples of pool c for client i."""
    clients = np.arange(len(counts))
    owner = np.full(sum(map(len, pools)), -1, dtype=np.int64)
    for label, pool in enumerate(pools):
        holders = np.repeat(clients, counts[:, label])
        owner[pool[: len(holders)]] = holders
    return grouped(owner, len(counts))


def grouped(owner: Indices, clients: int) -> list[Indices]:
    """Return the samples of each client in their order; those of owner -1 are left out."""
    held = np.flatnonzero(owner >= 0)
    order = held[np.argsort(owner[held], kind="stable")]
    cuts = np.cumsum(np.bincount(owner[held], minlength=clients))[:-1]
    return np.split(order, cuts)


def log_dirichlet(rng: np.random.Generator, rows: int, columns: int, alpha: float) -> Floats:
    """Return logarithms of gamma(alpha) draws as log G(alpha + 1) + log(U) / alpha.

    They stay finite for tiny alpha, where rng.dirichlet divides by zero as every gamma underflows.
    """
    alpha = min(max(alpha, 1e-300), 1e300)  # beyond these alphas draws are one-hot or uniform
    boosted = np.log(rng.gamma(alpha + 1, size=(rows, columns)))
    uniforms = 1.0 - rng.random(size=(rows, columns))
    return boosted + np.log(uniforms) / alpha


def shares_of(log_weights: Floats) -> Floats:
    """Return shares that sum to 1 from logarithms of weights."""
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def apportioned(shares: Floats, count: int) -> Indices:
    """Return whole numbers that sum to count, as differences of floor(cumulated shares * count)."""
    cuts = np.minimum((np.cumsum(shares)[:-1] * count).astype(np.int64), count)
    return np.diff(cuts, prepend=0, append=count)
