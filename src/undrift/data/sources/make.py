"""Pairs of tensors, and how they are read, from whatever a user hands over as clients."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from undrift.check import require
from undrift.data.prepare import Prepare
from undrift.data.sources.fields import Field, pack
from undrift.data.sources.lazy import LazySamples, Look, packed
from undrift.data.sources.samples import CLASSES_REMEDY, Source, as_tensor, is_source, pair_of
from undrift.data.tables.files import is_table

Pair = tuple[Tensor, Tensor]
WHO = "Clients"
_SPREAD = 8  # samples whose targets are compared with those that a data set lists


@dataclass
class Gathered:
    """Holds the clients' samples as pairs of tensors, the test set's, and how they are read."""

    pairs: list[Pair]
    held: dict[str, Pair | None]
    prepare: Prepare | None = None
    fields: tuple[Field, ...] = ()
    batch_size: int | None = None
    note: str = ""  # what reading costs, where samples are read when they are drawn
    _kinds: set[tuple[Field, ...]] = field(default_factory=set)


def gather(
    data: Any,
    held: dict[str, Any],
    *,
    target: str | None,
    client: str | None,
    lazy: bool | None,
    prepare: Prepare | None,
) -> Gathered:
    """Return the samples of clients: pairs of arrays, or data sets and loaders of torch."""
    if is_source(data):
        if client is None:
            kind = type(data).__name__
            raise ValueError(
                f'{WHO} needs a list with one {kind} for each client, or client="field" that '
                f"tells whose a sample is, got one {kind}; pass undrift.Clients([first, second])."
            )
        data = _by_client(data, target, client)
    listed = isinstance(data, Sequence)
    expected = "a list with the data of each client, or a table and client="
    require(listed, WHO, expected, data, _list_remedy(data))
    arrays = len(data) == 2 and all(hasattr(each, "shape") for each in data)
    remedy = (
        "for one client pass [(inputs, targets)], for several deal them: undrift.Clients.split("
        "inputs, targets, undrift.data.partition.iid(targets, 20))"
    )
    require(not arrays, WHO, "a list with the data of each client", tuple(data), remedy)
    require(len(data) > 0, WHO, "at least one client", data, "pass a list of pairs")
    everything = [*data, *(each for each in held.values() if each is not None)]
    if not any(map(is_source, everything)):
        pairs = [_arrays(pair, f"client {i}") for i, pair in enumerate(data)]
        return Gathered(pairs, {n: _arrays(p, f"the {n} set") for n, p in held.items()}, prepare)
    everyone = all(map(is_source, everything))
    kinds = ", ".join(sorted({type(each).__name__ for each in everything}))
    require(everyone, WHO, "Datasets or DataLoaders for all, tests too", kinds)
    return _from_sources(list(data), held, target, client, lazy, prepare)


def _list_remedy(data: Any) -> str:
    """Return how the data of each client become a list."""
    if isinstance(data, Mapping):
        return "for clients by name pass list(data.values())"
    if isinstance(data, Iterator | Set):
        return "pass list(data)"
    if hasattr(data, "to_frame"):  # a column of pandas
        return 'pass the frame: undrift.Clients(frame, target="column", client="column")'
    if hasattr(data, "shape"):
        return "pass [(inputs, targets), ...] with a pair for each client"
    return "pass [(inputs, targets), ...]"


def refuse_files(data: Any) -> None:
    """Raise `ValueError` for the name of a file in the place of data."""
    parts = data if isinstance(data, list | tuple) else [data]
    file = next((str(each) for each in parts if isinstance(each, str | Path)), None)
    remedy = "read it first"
    if file is not None and is_table(file):
        reader = "read_parquet" if file.lower().endswith(".parquet") else "read_csv"
        remedy = f"say undrift.Clients(pandas.{reader}({file!r}), target=..., client=...)"
    require(file is None, WHO, "data in memory, not a file", file, remedy)


def _arrays(pair: Any, who: str) -> Any:
    """Return arrays or lists as tensors; what is no pair is refused later, with its name."""
    samples = isinstance(pair, tuple | list) and any(isinstance(each, dict) for each in pair)
    remedy = "wrap the list: torch.utils.data.DataLoader(samples)"
    require(not samples, f"{WHO}, {who},", "inputs and targets", "a list of dictionaries", remedy)
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        return pair
    inputs, targets = pair
    who = f"{WHO}, {who},"
    return as_tensor(inputs, who), as_tensor(targets, who, CLASSES_REMEDY)


def _from_sources(
    data: list[Any],
    held: dict[str, Any],
    target: str | None,
    client: str | None,
    lazy: bool | None,
    prepare: Prepare | None,
) -> Gathered:
    names = [f"client {i}" for i in range(len(data))] + [
        f"the {n} set" for n, d in held.items() if d
    ]
    whole = [*data, *(each for each in held.values() if each is not None)]
    sources = [
        s if isinstance(s, Source) else Source.of(s, w) for s, w in zip(whole, names, strict=True)
    ]
    look = Look.at(sources[0], target, client, WHO)
    count = sum(len(source.indices) for source in sources)
    if lazy is None:
        lazy = look.random or look.bytes * count > _free_memory() / 2
    if lazy:
        result = _lazy(sources, names, look, target, client)
    else:
        result = _eager(sources, target, client)
    if prepare is not None:
        require(not lazy, WHO, "no prepare beside lazy samples", prepare, "prepare them yourself")
        result.prepare = prepare
    pairs, rest = result.pairs[: len(data)], result.pairs[len(data) :]
    result.pairs = pairs
    present = [name for name, each in held.items() if each is not None]
    result.held = dict.fromkeys(held) | dict(zip(present, rest, strict=True))
    result.batch_size = next((s.batch_size for s in sources[: len(data)] if s.batch_size), None)
    return result


def _eager(sources: list[Source], target: str | None, client: str | None) -> Gathered:
    """Return all samples in memory."""
    gathered = Gathered([], {})
    for i, source in enumerate(sources):
        who = f"{WHO}, source {i},"
        batch = source.batch(range(len(source.indices)), who)
        inputs, targets, _ = pair_of(batch, who, target, client)
        if isinstance(inputs, dict):
            inputs, fields = pack(inputs)
            gathered._kinds.add(fields)
        gathered.pairs.append((inputs, targets))
    require(len(gathered._kinds) < 2, WHO, "the same fields for all clients", "others")
    gathered.fields = gathered._kinds.pop() if gathered._kinds else ()
    return gathered


def _lazy(
    sources: list[Source], names: list[str], look: Look, target: str | None, client: str | None
) -> Gathered:
    """Return the numbers of samples; targets are read once."""
    sizes = [len(source.indices) for source in sources]
    starts = (0, *accumulate(sizes[:-1]))
    _, form = packed(sources[0].batch([0], WHO), WHO, target, client)
    samples = LazySamples(
        tuple(sources), tuple(names), starts, form, target, client, look.random, look.seconds
    )
    fields = tuple(each for each in form if isinstance(each, Field))
    pairs = [
        (torch.arange(start, start + size), _targets(source, target, client))
        for source, start, size in zip(sources, starts, sizes, strict=True)
    ]
    note = f"read when drawn, about {1000 * look.seconds:.2g} ms a sample"
    return Gathered(pairs, {}, samples, fields, note=note)


def _targets(source: Source, target: str | None, client: str | None) -> Tensor:
    """Return all targets: those that a data set lists as torchvision's do, or read one by one."""

    def read(i: int) -> Tensor:
        return pair_of(source.batch([i], WHO), WHO, target, client)[1]

    listed, count = _listed_targets(source), len(source.indices)
    if listed is not None:
        spread = {round(k * (count - 1) / (_SPREAD - 1)) for k in range(_SPREAD)}
        if all(torch.equal(read(i), listed[i : i + 1]) for i in spread):
            return listed
    return torch.cat([read(i) for i in range(count)])


def _listed_targets(source: Source) -> Tensor | None:
    """Return what a data set has in `targets`, where no function of the user changes them."""
    dataset = source.dataset
    listed = getattr(dataset, "targets", None)
    both = getattr(dataset, "transforms", None)  # torchvision's, of inputs and targets
    changes = getattr(dataset, "target_transform", None) or (
        both is not None and getattr(both, "target_transform", both) is not None
    )
    if listed is None or changes or source.collate is not default_collate:
        return None
    try:
        every = as_tensor(listed, WHO)
    except ValueError:  # of text, or of other things than numbers
        return None
    same = every.ndim > 0 and len(every) == len(dataset)
    return every[torch.as_tensor(list(source.indices))] if same else None


def _by_client(data: Any, target: str | None, client: str) -> list[Source]:
    """Return a source for each client that a field of one data set names, in sorted order."""
    whole = Source.of(data, WHO)
    owners = []
    for i in range(len(whole.indices)):
        (sample,) = whole.samples([i], WHO)
        known = isinstance(sample, dict) and client in sample
        got = ", ".join(map(str, sample)) if isinstance(sample, dict) else type(sample).__name__
        require(known, WHO, f"samples that are dictionaries with {client!r}", got)
        value = sample[client]
        owners.append(value.item() if isinstance(value, Tensor | np.generic) else value)
    names = sorted(set(owners), key=str)
    return [
        Source(
            whole.dataset,
            [i for i, owner in zip(whole.indices, owners, strict=True) if owner == name],
            whole.collate,
            whole.batch_size,
        )
        for name in names
    ]


def _free_memory() -> float:
    """Return the bytes of memory that are free, or infinity where the system does not say."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
