"""One client's part of an exchange: the function that every engine calls for a single client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift import dry, tree
from undrift.core import Federated, Loop, Prelude, Vector
from undrift.engine.execution.local import Group, LocalLoop, ObservedLoop
from undrift.engine.execution.meter import Meter
from undrift.engine.execution.pool import ClientSamples
from undrift.engine.plan import Assignment
from undrift.gradients.task import Task


@dataclass(frozen=True)
class Stage:
    """Describes an exchange of a round: each client gets a message and sends one back."""

    down: Any
    call: Callable[[Any, Any, Loop], tuple[Any, Any]]  # (down, client, steps) -> (wire, client)
    unpack: Callable[[Any], Any]  # wire -> upload
    form: Callable[[], Any]  # -> zeros in the form of an upload
    name: str  # of the exchange in a round
    wire_form: Callable[[], Any] | None = None  # likewise of a packed one, where that was wanted

    @classmethod
    def answers(cls, algorithm: Prelude[Any, Any, Any, Any], down: Any, x0: Vector) -> Stage:
        """Return the exchange before the broadcast, in which clients answer the server."""
        form = partial(dry.answer_form, algorithm, x0)
        return cls(down, algorithm.answer, lambda wire: wire, form, "answer")

    @classmethod
    def uploads(
        cls,
        algorithm: Federated[Any, Any, Any, Any],
        down: Any,
        x0: Vector,
        sizes: tuple[int, ...] = (),
    ) -> Stage:
        """Return the exchange in which clients take their local steps and upload.

        `sizes` are those of the model's tensors, for one who wants the form of packed uploads.
        """

        def call(down: Any, client: Any, steps: Loop) -> tuple[Any, Any]:
            upload, client = algorithm.local(down, client, steps)
            return algorithm.pack(upload, client, steps)

        packed = bool(sizes) and dry.packs(algorithm, x0)
        wire_form = partial(dry.wire_form, algorithm, x0, sizes) if packed else None
        form = partial(dry.upload_form, algorithm, x0)
        return cls(down, call, algorithm.unpack, form, "upload", wire_form)


class ClientResult(NamedTuple):
    """Holds what one client sends and keeps."""

    wire: Any  # as it travels; `Stage.unpack` makes the upload of it
    state: Any
    cost: Meter
    path: tuple[Tensor, ...]  # models before the first step and after the last, if observed


def client_exchange(
    stage: Stage,
    state: Any,
    task: Task,
    samples: ClientSamples,
    assignment: Assignment,
    *,
    observed: bool = False,
    stop: threading.Event | None = None,
) -> ClientResult:
    """Run one client's part of an exchange and return what it sends, its new state and its cost.

    `samples` and `assignment` are of this client alone. The result is the same wherever the client
    runs: draws are keyed by the assignment's seed, round and client. `stop` ends it with `Stopped`.
    """
    group = Group(task, samples, assignment, stacked=False, stop=stop)
    row = torch.zeros(1, dtype=torch.int64, device=group.device)
    loop = ObservedLoop(group, row) if observed else LocalLoop(group, row)
    wire, state = stage.call(stage.down, state, loop)
    group.meter.bytes_down += tree.nbytes(stage.down)
    group.meter.bytes_up += tree.nbytes(wire)
    return ClientResult(wire, state, group.meter, loop.path)
