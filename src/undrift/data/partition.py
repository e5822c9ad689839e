"""Partitions of a data set among clients, as lists of index arrays for `Clients.split`.

docs/partition.md has the laws, the papers that use them, and what each of them guarantees.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from undrift import keyed
from undrift.check import require, require_choice, require_positive
from undrift.data.assignment import (
    Labels,
    apportioned,
    check_clients,
    check_enough,
    check_minimum,
    codes_of,
    grouped,
    log_dirichlet,
    require_count,
    shares_of,
)
from undrift.data.clients import Indices
from undrift.data.label_mixes import Law, dirichlet
from undrift.data.label_sets import classes_per_client

__all__ = [
    "classes_per_client",
    "dirichlet",
    "iid",
    "natural",
    "parse",
    "quantity",
    "replicated",
    "shards",
    "validate_shorthand",
]


def iid(targets: Labels, clients: int, *, seed: int = 0) -> list[Indices]:
    """Return a random split into sizes that differ by at most one."""
    check_enough(len(targets), clients)
    order = keyed.generator(seed, "partition").permutation(len(targets))
    return [np.sort(part) for part in np.array_split(order, clients)]


def replicated(targets: Labels, clients: int) -> list[Indices]:
    """Return all samples for every client (NET-FLEET's "iid"); all share one array."""
    check_clients(clients)
    require(len(targets) >= 1, "replicated", "at least one sample", len(targets))
    return [np.arange(len(targets), dtype=np.int64)] * clients


def shards(
    targets: Labels,
    clients: int,
    *,
    per_client: int = 2,
    size: int | None = None,
    seed: int = 0,
) -> list[Indices]:
    """Sort samples by label, cut them into shards, and return `per_client` shards for each client.

    A shard holds `size` samples, or as many as use up the data, so a client has few labels. With a
    size, some shards may be left out (NET-FLEET: 2 shards of 200 samples for 50 clients).
    """
    check_enough(len(targets), clients)
    order = np.argsort(codes_of("shards", targets)[0], kind="stable")
    require_count("shards", "per_client", per_client)
    total = clients * per_client
    if size is None:
        enough = len(order) >= total
        expected = f"at least {total} samples, one for each shard"
        require(enough, "shards", expected, len(order), "use fewer clients or shards")
        cut = np.array_split(order, total)
    else:
        require_count("shards", "size", size)
        cut = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
        expected = f"{total} shards of {size} samples"
        require(len(cut) >= total, "shards", expected, len(cut), "lower size")
    chosen = keyed.generator(seed, "partition").permutation(len(cut))[:total]
    assigned = chosen.reshape(clients, per_client)
    return [np.sort(np.concatenate([cut[shard] for shard in own])) for own in assigned]


def natural(
    owners: Labels, clients: int | None = None, *, minimum: int = 1, seed: int = 0
) -> list[Indices]:
    """Return one part per natural id (writer, role), in the order of the ids.

    `clients` limits them to a random choice of so many. Ids with fewer than `minimum` samples are
    left out.
    """
    require_count("natural", "minimum", minimum)
    codes, ids = codes_of("natural", owners, "id", "number the ids")
    enough = np.flatnonzero(np.bincount(codes) >= minimum)
    count = max(1, len(enough)) if clients is None else clients
    check_clients(count)
    require(
        len(enough) >= count,
        "natural",
        f"{count} ids with at least {minimum} samples",
        len(enough),
        "use fewer clients" if clients is not None and minimum == 1 else "lower minimum",
    )
    rng = keyed.generator(seed, "partition")
    chosen = np.sort(rng.permutation(enough)[:count])
    client = np.full(ids, -1, dtype=np.int64)
    client[chosen] = np.arange(count)
    return grouped(client[codes], count)


def quantity(
    targets_or_count: Labels | int,
    clients: int,
    alpha: float,
    *,
    minimum: int = 1,
    seed: int = 0,
) -> list[Indices]:
    """Return iid parts whose sizes are minimum + Dir(alpha) * the rest; every sample is used."""
    if isinstance(targets_or_count, int | np.integer):
        count = int(targets_or_count)
    else:
        count = len(targets_or_count)
    check_enough(count, clients)
    require_positive("quantity", alpha=alpha)
    check_minimum("quantity", minimum, count, clients)
    rng = keyed.generator(seed, "partition")
    shares = shares_of(log_dirichlet(rng, 1, clients, alpha)[0])
    sizes = minimum + apportioned(shares, count - clients * minimum)
    order = rng.permutation(count)
    return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]


class _Form(NamedTuple):
    """Describes a form of text: its example, and how many numbers follow the colon."""

    example: str
    kind: type[int] | type[float] = int
    least: int = 0  # numbers after the colon
    most: int = 0


_FORMS = {
    "iid": _Form("iid"),
    "dirichlet": _Form("dirichlet:0.3", float, 0, 1),
    "dirichlet-sequential": _Form("dirichlet-sequential:0.3", float, 0, 1),
    "dirichlet-per-class": _Form("dirichlet-per-class:0.3", float, 0, 1),
    "shards": _Form("shards:2 or shards:2x200", int, 0, 2),
    "classes": _Form("classes:5", int, 1, 1),
    "classes-uneven": _Form("classes-uneven:5", int, 1, 1),
    "natural": _Form("natural"),
    "quantity": _Form("quantity:0.5", float, 1, 1),
    "replicated": _Form("replicated"),
}
_LAW_OF: dict[str, Law] = {
    "dirichlet": "equal",
    "dirichlet-sequential": "sequential",
    "dirichlet-per-class": "per-class",
}


def parse(
    text: str,
    targets: Labels,
    clients: int | None,
    *,
    alpha: float = 0.3,
    owners: Labels | None = None,
    seed: int = 0,
) -> list[Indices]:
    """Return a partition by its text, such as `iid`, `dirichlet:0.3`, `shards:2x200`, `natural`.

    `alpha` is used by a Dirichlet form without a number; `shards` without one means two per client.
    `clients=None` selects all ids of `natural`.
    """
    name, numbers = _form(text)
    if owners is not None and len(owners) != len(targets):
        raise ValueError(
            f"A partition needs one owner per sample, {len(targets)}, got {len(owners)}; give both "
            "of the same samples."
        )
    if name == "natural":
        if owners is None:
            raise ValueError(
                "partition natural needs data with natural clients such as mnist, femnist, celeba "
                "or shakespeare, got data without; choose another such as dirichlet:0.3."
            )
        return natural(owners, clients, seed=seed)
    if clients is None:
        raise ValueError(f"partition {name} needs a number of clients, got none; set clients.")
    match name, numbers:
        case "iid", _:
            return iid(targets, clients, seed=seed)
        case "replicated", _:
            return replicated(targets, clients)
        case "shards", [*counts]:
            per_client = int(counts[0]) if counts else 2
            size = int(counts[1]) if counts[1:] else None
            return shards(targets, clients, per_client=per_client, size=size, seed=seed)
        case "classes", [classes]:
            return classes_per_client(targets, clients, int(classes), seed=seed)
        case "classes-uneven", [classes]:
            return classes_per_client(targets, clients, int(classes), law="uneven", seed=seed)
        case "quantity", [skew]:
            return quantity(targets, clients, skew, seed=seed)
    skew = numbers[0] if numbers else alpha
    return dirichlet(targets, clients, skew, law=_LAW_OF[name], seed=seed)


def validate_shorthand(text: str) -> None:
    """Raise `ValueError` for a text that `parse` would refuse whatever the data."""
    _form(text)


def _form(text: str) -> tuple[str, list[float]]:
    """Return the name of a partition and its numbers, or raise `ValueError`."""
    name, colon, rest = text.strip().partition(":")
    require_choice("partition", "its name", name, _FORMS)
    form = _FORMS[name]
    try:
        numbers = [form.kind(number) for number in rest.split("x")] if colon else []
    except ValueError:
        numbers = [math.nan]
    fits = form.least <= len(numbers) <= form.most and all(0 < n < math.inf for n in numbers)
    kind = " with alpha > 0" if form.kind is float else " with whole numbers >= 1"
    expected = f"a form such as {form.example}{kind if form.most else ''}"
    require(fits, "partition", expected, text)
    return name, numbers
