"""The samples of all clients on the model's device, and the part of them that a group holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from undrift.data.clients import Clients
from undrift.engine.participation import Ids
from undrift.gradients.task import Task


class ClientSamples(NamedTuple):
    """Holds the samples of some clients as rows of two tensors, which may hold others' rows, too.

    A client that runs elsewhere passes its own samples and `held = [arange(n)]`.
    """

    inputs: Tensor
    targets: Tensor
    held: Sequence[Ids]  # rows of each client


@dataclass(frozen=True, eq=False)
class Pool:
    """Holds the samples of all clients, and the clients, who know which rows are theirs."""

    inputs: Tensor
    targets: Tensor
    clients: Clients

    @classmethod
    def of(cls, clients: Clients, task: Task) -> Pool:
        """Return the clients' samples on the device and in the dtype of the task's model."""
        return cls(task.cast(clients.inputs), task.cast(clients.targets), clients)

    def samples(self, ids: Ids) -> ClientSamples:
        """Return the samples of these clients; nothing is copied."""
        return ClientSamples(self.inputs, self.targets, [self.clients.of(int(i)) for i in ids])
