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


def shards(
    targets: Tensor,
    clients: int,
    *,
    per_client: int = 2,
    size: int | None = None,
    seed: int = 0,
) -> list[Indices]:
    """Samples sorted by label and cut into shards, of which each client gets `per_client`.

    A shard holds `size` samples, or as many as use up the data; so a client sees few labels. With
    a size, shards that nobody gets are left out (NET-FLEET: 2 of 200 for 50 clients).
    """
    _check(len(targets), clients)
    _require_labels("shards", targets)
    require(per_client >= 1, "shards", "per_client >= 1", per_client)
    order = torch.argsort(targets.cpu(), stable=True).numpy()
    dealt = clients * per_client
    if size is None:
        enough = len(order) >= dealt
        expected = f"at least {dealt} samples, one for each shard"
        require(enough, "shards", expected, len(order), "use fewer clients or shards")
        cut = np.array_split(order, dealt)
    else:
        require(size >= 1, "shards", "size >= 1", size)
        cut = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
        expected = f"{dealt} shards of {size} samples"
        require(len(cut) >= dealt, "shards", expected, len(cut), "lower size")
    chosen = keyed.generator(seed, "partition").permutation(len(cut))[:dealt]
    hands = chosen.reshape(clients, per_client)
    return [np.sort(np.concatenate([cut[shard] for shard in hand])) for hand in hands]


def _require_labels(who: str, targets: Tensor) -> None:
    if targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(
            f"{who} needs one integer label per sample, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}; use iid for regression."
        )


def dirichlet(targets: Tensor, clients: int, alpha: float, *, seed: int = 0) -> list[Indices]:
    """Each client draws its label mix from Dir(alpha) and floor(n / clients) samples by it.

    Equal sizes, no sample twice. When a class runs out, the client's mix goes on over the classes
    that are left (FedDyn's law, without its redraw loop, so that small alpha cannot hang).
    """
    _check(len(targets), clients)
    require_positive("dirichlet", alpha=alpha)
    _require_labels("dirichlet", targets)
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
