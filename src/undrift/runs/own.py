"""Data and models of the user's own program, which an experiment names by their digest.

They live in this process alone: runs that need them are made here, one after the other, and a
folder of results goes on only where a program hands over the same objects again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from undrift.data import Clients, Dataset
from undrift.data.here import with_validation
from undrift.data.holdout import hold_out, owners_of
from undrift.engine.processes.rendezvous import join
from undrift.models.layout import raw_bytes
from undrift.usercode.names import OWN

if TYPE_CHECKING:
    from undrift.tasks import Loss

_objects: dict[str, Any] = {}  # digest -> OwnData or nn.Module


@dataclass(frozen=True)
class OwnData:
    """Holds a user's clients, the loss that is trained on them and the metrics of a test."""

    clients: Clients
    loss: Loss | str | None
    metrics: Any = None

    @property
    def dataset(self) -> Dataset:
        """Return all samples as a data set, of which experiments note counts and shapes."""
        inputs, targets = self.clients.inputs, self.clients.targets
        one = targets.ndim == 1 or targets.shape[1:] == (1,)
        labels = one and not targets.is_floating_point()
        classes = int(targets.max()) + 1 if labels else 1
        if labels and self.clients.rank_census is not None:
            classes = self.clients.rank_census.classes
        test = self.clients.test or (inputs[:0], targets[:0])
        fitted = self.clients.preprocessing
        names = () if fitted is None else fitted.target.classes
        return Dataset(
            (inputs, targets),
            test,
            max(classes, len(names)),
            "data of one's own",
            labels=names,
            preprocessing=fitted,
        )

    def split(self, validation: float | None, seed: int) -> Clients:
        """Return the clients, of which a share of the samples is split off unless some are."""
        clients = self.clients
        if validation is None or clients.validation is not None:
            return clients
        if clients.rank_census is not None:
            ends = np.cumsum(clients.sizes)
            everybody = np.split(np.arange(ends[-1]), ends[:-1])
            return with_validation(
                clients, *hold_out(everybody, validation, int(ends[-1]), seed=seed)
            )
        parts = [clients.of(i) for i in range(len(clients))]
        left, taken = hold_out(parts, validation, len(clients.targets), seed=seed)
        index = torch.from_numpy(taken)
        split = Clients.split(
            clients.inputs,
            clients.targets,
            left,
            test=clients.test,
            validation=(clients.inputs[index], clients.targets[index]),
            availability=clients.availability,
            prepare=clients.prepare,
            preprocessing=clients.preprocessing,
        )
        owners = owners_of(parts, len(clients.targets))[taken]
        split.names, split.fields = clients.names, clients.fields
        split.batch_size, split.note = clients.batch_size, clients.note
        for name, theirs in clients.owners.items():
            split = split.with_owners(name, theirs)
        return split.with_owners("validation", owners)


@contextmanager
def lent(*values: OwnData | nn.Module) -> Iterator[list[str]]:
    """Let experiments use these objects for a while, and give their names."""
    names = [f"{OWN}{_digest(value)}" for value in values]
    _objects.update(zip(names, values, strict=True))
    try:
        yield names
    finally:
        for name in names:
            _objects.pop(name, None)


def is_own(name: str) -> bool:
    """Return whether a data set or model is an object of the user's program."""
    return name.startswith(OWN)


def own(name: str) -> Any:
    """Return the object of this name, or raise if the program has not handed it over."""
    if name not in _objects:
        raise ValueError(
            f"{name!r} needs the data or model of the program that began this experiment; go on "
            "with undrift.compare(..., out=FOLDER, resume=True) and the same objects."
        )
    return _objects[name]


def _digest(value: OwnData | nn.Module) -> str:
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(value, nn.Module):
        tensors = list(value.state_dict().values())
        digest.update(repr(value).encode())
    else:
        clients = value.clients
        held = (*(clients.test or ()), *(clients.validation or ()))
        tensors = [clients.inputs, clients.targets, *held]
        digest.update(clients.index.tobytes() + clients.held.tobytes())
        digest.update(str(getattr(value.loss, "__qualname__", value.loss)).encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(raw_bytes(tensor))
    if isinstance(value, OwnData) and value.clients.rank_census is not None:
        # Every rank has data of its own, and the experiment one name for all of them.
        return hashlib.blake2b(
            "".join(join().texts(digest.hexdigest())).encode(), digest_size=8
        ).hexdigest()
    return digest.hexdigest()
