"""Clients of several ranks, each of which holds the samples of its own clients alone.

Every rank declares its clients. Ranks tell each other counts, shapes and dtypes, and no samples, so
that all know how many clients there are, how large each is and who has it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from undrift.check import is_whole, require
from undrift.errors import UndriftError

if TYPE_CHECKING:
    from undrift.data.availability import Availability
    from undrift.data.clients import Clients

T = TypeVar("T")
Indices = NDArray[np.int64]
HELD_OUT = ("test", "validation")
# What must be the same on all ranks, by the name under which it is told, and its remedy.
ALIKE = {
    "samples": ("samples of one shape and dtype", "convert them to the same"),
    "fields": ("samples with inputs of the same names", "name them alike"),
    "columns": ("tables whose columns are prepared alike", "declare them, or let ranks agree"),
    "availability": ("one law of availability", "give all ranks the same"),
    "batch_size": ("loaders of one batch size", "give all ranks the same"),
}


class Ranks(Protocol):
    """Declares what clients need of the processes that share a run."""

    rank: int
    size: int

    def texts(self, text: str) -> list[str]:
        """Return the text of every rank."""
        ...

    def rows(self, values: T) -> T:
        """Return the rows of all ranks' trees, in their order."""
        ...


class RanksError(ValueError):
    """Is raised by all ranks alike if what they hold does not fit together."""

    everywhere = True


@dataclass(frozen=True, eq=False)
class RankCensus:
    """Says what each rank holds, in counts."""

    rank: int  # of this process
    ranks: Indices  # of every client
    held_out: dict[str, tuple[int, ...]]  # samples of each rank for tests and for validation
    classes: int  # labels of all ranks, 0 where targets are no labels

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.held_out["test"])


def ranks_of_run() -> Any:
    """Return the ranks that torchrun has started, which meet here unless they have already."""
    from undrift.engine.processes.rendezvous import join, launched

    remedy = "start the script with torchrun, or pass all data to undrift.Clients"
    require(launched(), "Clients.here", "several processes, each with its data", "one", remedy)
    return join()


def declare(
    make: Callable[[], Clients],
    ranks: Ranks,
    numbers: Sequence[int] | None = None,
    availability: Availability | None = None,
) -> Clients:
    """Return the clients of all ranks, of which this one holds those that `make` returns.

    Every rank calls this, and what does not fit is raised by all of them in the same words.
    """
    own, every = exchanged(
        ranks, "clients here", make, lambda own: _told(own, numbers, availability)
    )
    _require_alike(every)
    sizes = ranks.rows(torch.from_numpy(own.sizes)).numpy()
    holders = np.repeat(np.arange(ranks.size), [each["clients"] for each in every])
    numbered = np.arange(len(sizes))
    if numbers is not None:
        numbered = ranks.rows(torch.tensor(numbers, dtype=torch.int64)).numpy()
        _require_each_once(numbered, holders)
    census = RankCensus(
        rank=ranks.rank,
        ranks=holders[np.argsort(numbered)],
        held_out={name: tuple(each[name] for each in every) for name in HELD_OUT},
        classes=max(each["classes"] for each in every),
    )
    owned = {name for name in HELD_OUT if all(each["owned"][name] for each in every)}
    mine = numbered[holders == ranks.rank]
    placed = _placed(own, census, sizes[np.argsort(numbered)], mine, owned)
    if availability is not None:
        try:
            availability.check(len(placed))
        except ValueError as error:
            raise RanksError(str(error)) from error
        placed.availability = availability
    return placed


def _told(
    own: Clients, numbers: Sequence[int] | None, availability: Availability | None
) -> dict[str, Any]:
    """Return what this rank tells the others of its clients: counts and forms."""
    who = "Clients.here"
    remedy = "pass availability= to Clients.here, by the numbers of all ranks' clients"
    require(own.availability is None, who, "clients without availability", "some", remedy)
    require(own.rank_census is None, who, "the clients of this rank", "those of all ranks")
    if numbers is not None:
        fits = len(numbers) == len(own) and all(map(is_whole, numbers))
        require(fits, who, f"a whole number for each of {len(own)} clients", list(numbers))
    labels = own.targets.ndim == 1 and not own.targets.is_floating_point()
    held = {name: getattr(own, name) for name in HELD_OUT}
    targets = [own.targets, *(pair[1] for pair in held.values() if pair is not None)]
    kinds = [f"{tuple(each.shape[1:])} {each.dtype}" for each in (own.inputs, own.targets)]
    return {
        "clients": len(own),
        "numbers": numbers is not None,
        "samples": f"inputs {kinds[0]}, targets {kinds[1]}",
        "fields": repr(own.fields),
        "columns": "" if own.preprocessing is None else own.preprocessing.digest,
        "availability": repr(availability),
        "batch_size": repr(own.batch_size),
        "classes": max(int(each.max()) for each in targets if len(each)) + 1 if labels else 0,
        **{name: 0 if pair is None else len(pair[1]) for name, pair in held.items()},
        # What is held out on a rank with one client can only be its own.
        "owned": {n: held[n] is None or n in own.owners or len(own) == 1 for n in HELD_OUT},
    }


def exchanged(
    ranks: Ranks, purpose: str, make: Callable[[], T], tell: Callable[[T], dict[str, Any]]
) -> tuple[T, list[dict[str, Any]]]:
    """Return what this rank makes, and what every rank tells of its own.

    A rank that cannot make it tells why, and all of them raise that.
    """
    try:
        own = make()
        told = {"purpose": purpose, **tell(own)}
    except RanksError:  # which all ranks raise
        raise
    except (ValueError, TypeError, UndriftError, OSError) as error:
        told = {"purpose": purpose, "wrong": str(error)}
    every = [json.loads(text) for text in ranks.texts(json.dumps(told))]
    for rank, each in enumerate(every):
        if not isinstance(each, dict) or each.get("purpose") != purpose:
            raise UndriftError(
                "Clients.here needs a call on every rank at the same place with data of one kind, "
                f"got none on rank {rank}; let all ranks declare their clients."
            )
    for rank, each in enumerate(every):
        if "wrong" in each:
            raise RanksError(f"Rank {rank}: {each['wrong']}")
    return own, every


def _require_alike(every: Sequence[dict[str, Any]]) -> None:
    """Raise unless all ranks have told the same of what must be the same."""
    for name, (expected, remedy) in ALIKE.items():
        for rank, each in enumerate(every):
            if each[name] != every[0][name]:
                raise RanksError(
                    f"Clients.here needs {expected} on all ranks, got {each[name]} on rank {rank} "
                    f"and {every[0][name]} on rank 0; {remedy}."
                )
    numbered = [rank for rank, each in enumerate(every) if each["numbers"]]
    if numbered and len(numbered) < len(every):
        without = next(rank for rank in range(len(every)) if rank not in numbered)
        raise RanksError(
            f"Clients.here needs numbers on all ranks or on none, got some on rank {numbered[0]} "
            f"and none on rank {without}."
        )


def _require_each_once(numbers: Indices, holders: Indices) -> None:
    """Raise unless every client has a number of its own in 0...N - 1."""
    first: dict[int, int] = {}
    for number, rank in zip(numbers.tolist(), holders.tolist(), strict=True):
        if not 0 <= number < len(numbers):
            raise RanksError(
                f"Clients.here needs numbers in 0...{len(numbers) - 1} for {len(numbers)} clients "
                f"of all ranks, got {number} on rank {rank}."
            )
        if number in first:
            raise RanksError(
                f"Clients.here needs a number of its own for every client, got {number} on rank "
                f"{first[number]} and on rank {rank}; number them once over all ranks."
            )
        first[number] = rank


def _placed(
    own: Clients, census: RankCensus, sizes: Indices, mine: Indices, owned: set[str]
) -> Clients:
    """Return a rank's clients as those of the whole run whose numbers are `mine`."""
    index = np.concatenate([own.of(int(i)) for i in np.argsort(mine)])
    placed = _holding(own, census, sizes, index)
    placed.owners = {}
    for name in HELD_OUT:
        pair = getattr(own, name)
        if pair is None and any(census.held_out[name]):  # others have some
            setattr(placed, name, (own.inputs[:0], own.targets[:0]))
        if name in owned and any(census.held_out[name]):
            count = census.held_out[name][census.rank]
            theirs = own.owners.get(name, np.zeros(count, dtype=np.int64))
            placed.owners[name] = np.where(theirs < 0, -1, mine[theirs])
    return placed


def _holding(clients: Clients, census: RankCensus, sizes: Indices, index: Indices) -> Clients:
    """Return the clients with these sizes, of whom those of this rank hold the rows `index`."""
    other = copy.copy(clients)
    other.rank_census, other.sizes, other.index = census, sizes, index
    other.held = np.where(census.ranks == census.rank, sizes, 0)
    other.offsets = np.concatenate([[0], np.cumsum(other.held)]).astype(np.int64)
    return other


def with_validation(clients: Clients, left: Sequence[Indices], taken: Indices) -> Clients:
    """Return the clients without the samples that are taken for validation.

    `left` are the positions that each client keeps, and `taken` the others, of all ranks' samples;
    sizes decide about them, so every rank knows them all and sends none.
    """
    census = clients.rank_census
    assert census is not None
    starts = np.concatenate([[0], np.cumsum(clients.sizes)])
    owners = np.searchsorted(starts, taken, side="right") - 1
    counts = np.bincount(census.ranks[owners], minlength=census.size)
    held_out = {**census.held_out, "validation": tuple(counts.tolist())}
    kept = np.concatenate([rows_here(clients, left[i])[0] for i in clients.mine])
    sizes = np.array([len(part) for part in left], dtype=np.int64)
    split = _holding(clients, replace(census, held_out=held_out), sizes, kept)
    rows, here = rows_here(clients, taken)
    index = torch.from_numpy(rows)
    split.validation = clients.inputs[index], clients.targets[index]
    split.owners = {**clients.owners, "validation": owners[here]}
    return split


def rows_here(clients: Clients, positions: Indices) -> tuple[Indices, NDArray[np.bool_]]:
    """Return the rows of the pool that are at positions of all samples, and which are here.

    Samples of all clients count one after another; rows are of those that are here.
    """
    if clients.rank_census is None:
        return clients.index[positions], np.ones(len(positions), dtype=np.bool_)
    starts = np.concatenate([[0], np.cumsum(clients.sizes)])
    holders = np.searchsorted(starts, positions, side="right") - 1
    here = clients.held[holders] > 0
    own = holders[here]
    return clients.index[clients.offsets[own] + positions[here] - starts[own]], here
