"""How one data set is dealt to clients: lists of index arrays for `Clients.split`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from undrift import keyed
from undrift.check import require, require_positive
from undrift.data.clients import Indices


def _check(samples: int, clients: int) -> None:
    require(clients >= 1, "A partition", "clients >= 1", clients)
    require(
        samples >= clients,
        "A partition",
        f"at least one sample for each of {clients} clients",
        samples,
        "use fewer clients",
    )


def iid(targets: Tensor, clients: int, *, seed: int = 0) -> list[Indices]:
    """A random split into sizes that differ by at most one."""
    _check(len(targets), clients)
    order = keyed.generator(seed, "partition").permutation(len(targets))
    return [np.sort(part) for part in np.array_split(order, clients)]


def dirichlet(targets: Tensor, clients: int, alpha: float, *, seed: int = 0) -> list[Indices]:
    """Each client draws its label mix from Dir(alpha) and floor(n / clients) samples by it.

    Equal sizes, no sample twice. When a class runs out, the client's mix goes on over the classes
    that are left (FedDyn's law, without its redraw loop, so that small alpha cannot hang).
    """
    _check(len(targets), clients)
    require_positive("dirichlet", alpha=alpha)
    if targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(
            f"dirichlet needs one integer label per sample, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}; use iid for regression."
        )
    rng = keyed.generator(seed, "partition")
    labels, inverse = torch.unique(targets.cpu(), return_inverse=True)
    pools = [rng.permutation(np.flatnonzero(inverse.numpy() == c)) for c in range(len(labels))]
    left = np.array([len(pool) for pool in pools])
    size = len(targets) // clients
    # log-gammas instead of rng.dirichlet: for small alpha every gamma underflows to zero.
    log_mix = _log_dirichlet(rng, clients, len(labels), alpha)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for _ in range(size):
        for i in rng.permutation(clients):
            # Gumbel-max: one label from the client's mix over the classes that are left.
            scores = np.where(left > 0, log_mix[i] + rng.gumbel(size=len(labels)), -np.inf)
            label = int(scores.argmax())
            left[label] -= 1
            parts[i].append(int(pools[label][left[label]]))
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]


def _log_dirichlet(
    rng: np.random.Generator, clients: int, classes: int, alpha: float
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """log of gamma(alpha) draws: log G(alpha + 1) + log(U) / alpha stays finite for tiny alpha."""
    boosted = np.log(rng.gamma(alpha + 1, size=(clients, classes)))
    uniforms = 1.0 - rng.random(size=(clients, classes))
    return boosted + np.log(uniforms) / alpha
