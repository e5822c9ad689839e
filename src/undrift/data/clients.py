"""The clients' data: one pool of tensors, and for each client the indices it holds."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.check import refuse_unknown, require
from undrift.data.availability import Availability
from undrift.data.here import RankCensus, declare, ranks_of_run
from undrift.data.prepare import Prepare
from undrift.data.sources.fields import Field
from undrift.data.sources.make import Gathered, gather, refuse_files
from undrift.data.sources.samples import whole_as_int64
from undrift.data.tables.files import is_frame
from undrift.data.tables.preprocessing import Preprocessing
from undrift.errors import UndriftError

Pair = tuple[Tensor, Tensor]
Indices = NDArray[np.int64]


class Clients:
    """Holds the training data of all clients, the test set and the validation set.

    Construct it from a list with the data of each client: pairs of tensors or numpy arrays
    `(inputs, targets)`, torch `Dataset`s, `DataLoader`s (of which the samples, the collate function
    and the batch size count; undrift draws minibatches itself) or pandas frames with `target=`;
    from one frame, or one `Dataset` of dictionaries, with `client=` the column of clients; or by
    `Clients.split(...)`. `test` is like the data of a client, or a list
    with a pair for each client; of frames a part is held out where none is given. Frames take the
    options of `data.read_table`, too, such as `task="classification"`, `drop=["id"]`,
    `missing="impute"` or `transformer=` a scikit-learn transformer.

    Samples of a `Dataset` are read into memory, unless they do not fit into half of what is free or
    random transforms change them: then they are read whenever they are drawn (`lazy`; the repr says
    what that costs). Dictionaries with several inputs are given to the model by name.

    `validation` is evaluated as `test` is, to choose hyper-parameters by. `availability` decides
    which clients are present in a round, by default all. `prepare` converts stored samples to
    inputs of the model, batch by batch, for example `data.Images(mean, std, crop=4)` for bytes. All
    samples lie in one pool of inputs and one of targets; a minibatch is gathered by index.
    """

    def __init__(
        self,
        data: Any = None,
        *others: Any,
        test: Any = None,
        validation: Any = None,
        target: str | None = None,
        client: str | None = None,
        lazy: bool | None = None,
        availability: Availability | None = None,
        prepare: Prepare | None = None,
        **table: Any,
    ) -> None:
        if others:
            raise TypeError(
                "Clients needs one list with the data of each client, such as [(inputs, targets), "
                "...], got several arguments; deal one data set with undrift.Clients.split(inputs, "
                "targets, parts)."
            )
        if data is None:
            for name in table:
                raise refuse_unknown("Clients", _keywords(), name)
        refuse_files(data)
        if _has_frames(data):
            from undrift.data.tables.frames import from_frames

            own = from_frames(data, target, client, test=test, **table)
            self.__dict__.update(vars(own.split("natural", availability=availability)))
            return
        for name in table:
            raise refuse_unknown("Clients", _keywords(), name)
        owners = None
        if isinstance(test, list) and all(isinstance(each, tuple) for each in test):
            test, owners = _joined_tests(test, len(data))
        gathered = gather(
            data,
            {"test": test, "validation": validation},
            target=target,
            client=client,
            lazy=lazy,
            prepare=prepare,
        )
        pairs = gathered.pairs
        for i, pair in enumerate(pairs):
            _check_pair(pair, f"client {i}")
            pair = pairs[i] = (pair[0], whole_as_int64(pair[1]))
            if i and (_kind(pair) != _kind(pairs[0])):
                raise ValueError(
                    f"Clients needs samples of one shape and dtype, got {_kind(pair)} for client "
                    f"{i} and {_kind(pairs[0])} for client 0; convert them to the same."
                )
        sizes = [len(targets) for _, targets in pairs]
        self._fill(
            torch.cat([inputs for inputs, _ in pairs]),
            torch.cat([targets for _, targets in pairs]),
            np.arange(sum(sizes), dtype=np.int64),
            np.asarray(sizes, dtype=np.int64),
            gathered.held,
            availability,
            gathered.prepare,
        )
        if owners is not None:
            self.owners["test"] = owners
        self._describe(gathered)

    @classmethod
    def split(
        cls,
        inputs: Tensor,
        targets: Tensor,
        parts: Sequence[Sequence[int] | Indices],
        *,
        test: Pair | None = None,
        validation: Pair | None = None,
        availability: Availability | None = None,
        prepare: Prepare | None = None,
        preprocessing: Preprocessing | None = None,
    ) -> Clients:
        """Return clients that share one data set without a copy, each with its part of it."""
        _check_pair((inputs, targets), "the data set")
        if len(parts) == 0:
            raise ValueError("Clients needs at least one part, got none.")
        index, sizes = _joined(parts)
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= len(targets):
            place = int(np.argmax((index < 0) | (index >= len(targets))))
            i = int(np.searchsorted(np.cumsum(sizes), place, side="right"))
            part = index[sizes[:i].sum() : sizes[: i + 1].sum()]
            raise ValueError(
                f"Clients needs indices below {len(targets)}, got {part.min()}...{part.max()} for "
                f"client {i}."
            )
        self = cls.__new__(cls)
        held = {"test": test, "validation": validation}
        self._fill(inputs, targets, index, sizes, held, availability, prepare)
        self.preprocessing = preprocessing
        return self

    @classmethod
    def here(
        cls,
        data: Any,
        *,
        numbers: Sequence[int] | None = None,
        availability: Availability | None = None,
        **options: Any,
    ) -> Clients:
        """Return the clients of all ranks of torchrun, of whom this rank has these and their data.

        Every rank calls it at the same place with what `Clients` takes, or with `Clients`; they
        exchange counts and shapes, never samples (docs/distributed.md). The clients of rank 0 come
        first, then those of rank 1, unless `numbers` says which of all clients these are.
        """

        def make() -> Clients:
            if isinstance(data, Clients):
                require(not options, "Clients.here", "no options beside Clients", tuple(options))
                return data
            some = not isinstance(data, list | tuple) or len(data) > 0
            remedy = "start fewer processes, or give it one"
            require(some, "Clients.here", "at least one client on every rank", "none", remedy)
            if _has_frames(data):
                from undrift.data.tables.frames import read_frames
                from undrift.data.tables.ranks import clients_of_table

                columns = {"target": None, "client": None, **options}
                return clients_of_table(ranks, lambda: read_frames(data, **columns))
            return cls(data, **options)

        ranks = ranks_of_run()
        with ranks.failure_scope():
            return declare(make, ranks, numbers, availability)

    def _fill(
        self,
        inputs: Tensor,
        targets: Tensor,
        index: Indices,
        sizes: Indices,
        held: dict[str, Pair | None],
        availability: Availability | None,
        prepare: Prepare | None,
    ) -> None:
        """Set all fields, or raise `ValueError`."""
        targets, held = whole_as_int64(targets), dict(held)
        for name, pair in held.items():
            if pair is None:
                continue
            _check_pair(pair, f"the {name} set")
            labels = whole_as_int64(pair[1])
            if labels is not pair[1]:
                pair = held[name] = (pair[0], labels)
            if _kind(pair) != _kind((inputs, targets)):
                raise ValueError(
                    f"The {name} set needs samples like the clients', {_kind((inputs, targets))}, "
                    f"got {_kind(pair)}."
                )
        self.inputs, self.targets = inputs, targets
        self.test, self.validation = held["test"], held["validation"]
        self.index, self.sizes = index, sizes
        self.held = sizes  # the samples that this process has of each client
        self.rank_census: RankCensus | None = None  # where every rank has data of its own
        self.owners: dict[str, Indices] = {}  # of the samples of "test" or "validation", if known
        self.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.availability = availability
        if prepare is not None and (isinstance(prepare, type) or not isinstance(prepare, Prepare)):
            raise ValueError(
                f"prepare needs an object such as data.Images(mean, std), got {prepare!r}."
            )
        self.prepare = prepare
        self.preprocessing: Preprocessing | None = None  # of the table that the samples are from
        self.fields: tuple[Field, ...] = ()  # inputs that the model takes by name
        self.batch_size: int | None = None  # of the loaders that the samples came in
        self.names: tuple[str, ...] = ()  # of natural clients; the others have numbers alone
        self.note = ""  # what reading a sample costs, where it is read when it is drawn
        if availability is not None:
            availability.check(len(self))
        self._check_finite()

    def with_flipped_labels(self, attackers: Indices) -> Clients:
        """Return clients of which the attackers have label classes - 1 - y for y."""
        labels = self.targets.ndim == 1 and not self.targets.is_floating_point()
        if not labels:
            raise ValueError("Flipped labels need targets that are classes, got other targets.")
        mine = np.concatenate([self.index[:0], *(self.of(int(i)) for i in attackers)])
        honest = np.setdiff1d(np.arange(len(self)), attackers)
        others = np.concatenate([self.index[:0], *(self.of(int(i)) for i in honest)])
        if np.isin(mine, others).any():
            raise ValueError(
                "Flipped labels need samples that one client alone holds, got samples of several; "
                "use another partition."
            )
        changed = copy.copy(self)
        changed.targets = self.targets.clone()
        rows = torch.from_numpy(np.unique(mine))
        changed.targets[rows] = self.targets.max() - self.targets[rows]
        return changed

    def _describe(self, gathered: Gathered) -> None:
        """Set how samples are read and named."""
        self.fields, self.note = gathered.fields, gathered.note
        self.batch_size = gathered.batch_size

    def _check_finite(self) -> None:
        """Raise `ValueError` that names the first client with NaN or Inf."""
        for name, tensor in (("inputs", self.inputs), ("targets", self.targets)):
            if not _finite(tensor):
                bad = (
                    set((~tensor.isfinite()).flatten(1).any(1).nonzero()[:, 0].tolist())
                    if (tensor.ndim > 1)
                    else set((~tensor.isfinite()).nonzero()[:, 0].tolist())
                )
                holders = [i for i in range(len(self)) if bad.intersection(self.of(i).tolist())]
                if holders:
                    raise ValueError(
                        f"Clients needs finite data, got NaN or Inf in the {name} of client "
                        f"{holders[0]}; clean or drop those samples."
                    )
        for name, pair in (("test", self.test), ("validation", self.validation)):
            if not all(map(_finite, pair or ())):
                raise ValueError(f"The {name} set needs finite data, got NaN or Inf; clean it.")

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> Pair:
        index = torch.from_numpy(self.of(i))
        return self.inputs[index], self.targets[index]

    def __repr__(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        sizes = f"{low}" if low == high else f"{low} to {high}"
        tested = "no test set" if self.test is None else f"{sum(self.counts('test'))} test samples"
        if self.validation is not None:
            tested += f", {sum(self.counts('validation'))} validation samples"
        read = f", {self.note}" if self.note else ""
        here = "" if self.rank_census is None else f" ({len(self.mine)} of them here)"
        return f"Clients({len(self)} clients{here}, {sizes} samples each, {tested}{read})"

    @property
    def mine(self) -> Indices:
        """Return the clients whose samples this process has."""
        return np.flatnonzero(self.held)

    def counts(self, name: str) -> tuple[int, ...]:
        """Return how many samples of "test" or "validation" every rank has, or this process."""
        if self.rank_census is not None:
            return self.rank_census.held_out[name]
        pair = getattr(self, name)
        return (0 if pair is None else len(pair[1]),)

    def with_targets(self, convert: Callable[[Tensor], Tensor]) -> Clients:
        """Return the same clients with all targets in another form."""
        other = copy.copy(self)
        other.targets = convert(self.targets)
        for name in ("test", "validation"):
            pair = getattr(self, name)
            setattr(other, name, None if pair is None else (pair[0], convert(pair[1])))
        return other

    def with_owners(self, name: str, owners: Indices) -> Clients:
        """Return the same clients, who own these samples of the test or the validation set."""
        other = copy.copy(self)
        other.owners = {**self.owners, name: owners}
        return other

    @property
    def samples_for_clients(self) -> str:
        """Return "test", "validation" or "training": the set that clients can be measured on."""
        names = ("test", "validation")
        owned = [n for n in names if getattr(self, n) is not None and n in self.owners]
        return [*owned, "training"][0]

    def samples_of_clients(self) -> tuple[str, Pair, Indices]:
        """Return samples on which each client can be measured, and who owns which of them.

        They are the clients' own samples of the test, else of the validation, else of the training
        set, which is the first word.
        """
        name = self.samples_for_clients
        if name != "training":
            return name, getattr(self, name), self.owners[name]
        owners = np.repeat(np.arange(len(self)), self.held)
        rows = torch.from_numpy(self.index)
        return "training", (self.inputs[rows], self.targets[rows]), owners

    def tested_on(self, device: torch.device) -> Clients:
        """Return the same clients with the samples of tests on a device."""
        if device == self.targets.device:
            return self
        other = copy.copy(self)
        for name in ("test", "validation"):
            pair = getattr(self, name)
            held = None if pair is None else (pair[0].to(device), pair[1].to(device))
            setattr(other, name, held)
        return other

    def of(self, i: int) -> Indices:
        """Return the indices of client i's samples in the pool."""
        if self.rank_census is not None and not self.held[i]:
            raise UndriftError(
                f"Client {i} needs to be asked for on rank {self.rank_census.ranks[i]}, which has "
                f"its samples, got a question on rank {self.rank_census.rank}."
            )
        return self.index[self.offsets[i] : self.offsets[i + 1]]


def _has_frames(data: Any) -> bool:
    """Return whether the data are a pandas frame, or a list with one."""
    return is_frame(data) or (isinstance(data, list | tuple) and any(map(is_frame, data)))


def _keywords() -> list[str]:
    """Return the keywords of `Clients` for what is no frame."""
    return [
        name
        for name in inspect.signature(Clients).parameters
        if name not in ("data", "others", "table")
    ]


def _joined(parts: Sequence[Sequence[int] | Indices]) -> tuple[Indices, Indices]:
    """Return all indices one after another, and how many each client has.

    There may be a million parts, so each of them is looked at as little as possible.
    """
    arrays = [part if isinstance(part, np.ndarray) else np.asarray(part) for part in parts]
    sizes = np.fromiter((array.size for array in arrays), np.int64, len(arrays))
    if not sizes.all():
        i = int(np.argmin(sizes))
        raise ValueError(f"Clients needs at least one sample each, got none for client {i}.")
    for dtype in {array.dtype for array in arrays}:
        if not np.issubdtype(dtype, np.integer):
            i = next(i for i, array in enumerate(arrays) if array.dtype == dtype)
            raise ValueError(
                f"Clients needs integer indices, got {dtype} for client {i}; "
                "turn a mask into indices with numpy.flatnonzero."
            )
    for ndim in {array.ndim for array in arrays} - {1}:
        i = next(i for i, array in enumerate(arrays) if array.ndim == ndim)
        raise ValueError(f"Clients needs a list of indices, got {ndim} axes for client {i}.")
    return np.concatenate(arrays).astype(np.int64, copy=False), sizes


def _joined_tests(
    test: Pair | Sequence[Pair] | None, clients: int
) -> tuple[Pair | None, Indices | None]:
    """Return the test set, and who owns which of its samples if each client has its own."""
    if test is None or (len(test) == 2 and torch.is_tensor(test[0])):
        return test, None  # type: ignore[return-value]
    own: Any = list(test)
    if len(own) != clients:
        raise ValueError(
            f"Clients needs one test set for all, or one for each of {clients} clients, got "
            f"{len(own)}; a client without one has (inputs[:0], targets[:0])."
        )
    for i, pair in enumerate(own):
        if len(pair[1]):
            _check_pair(pair, f"the test set of client {i}")
    owners = np.repeat(np.arange(clients), [len(targets) for _, targets in own])
    joined = torch.cat([inputs for inputs, _ in own]), torch.cat([targets for _, targets in own])
    return joined, owners


def _kind(pair: Pair) -> str:
    """Describe the shape and type of samples."""
    inputs, targets = pair
    return (
        f"inputs {tuple(inputs.shape[1:])} {inputs.dtype}, "
        f"targets {tuple(targets.shape[1:])} {targets.dtype}"
    )


def _check_pair(pair: Pair, who: str) -> None:
    """Raise `ValueError` unless both are tensors with equally many samples."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(map(torch.is_tensor, pair))):
        expected = f"a pair of inputs and targets, arrays or tensors, for {who}"
        require(False, "Clients", expected, pair, "pass undrift.Clients([(inputs, targets), ...])")
    inputs, targets = pair
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        raise ValueError(
            f"Clients needs as many targets as inputs, got inputs {tuple(inputs.shape)} and "
            f"targets {tuple(targets.shape)} for {who}."
        )
    if len(targets) == 0:
        raise ValueError(f"Clients needs at least one sample each, got none for {who}; drop it.")


def _finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite, by the extremes, which are NaN if any number is."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    return all(bool(end.isfinite()) for end in tensor.aminmax())
