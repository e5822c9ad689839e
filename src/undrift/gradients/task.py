"""What all clients share, the loss on a minibatch, and who computes its gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from undrift.core import Vector
from undrift.data.prepare import Prepare
from undrift.errors import UndriftError
from undrift.gradients.dropout import KeyedDropout, seeded
from undrift.models import classifier
from undrift.models.layout import Layout

Loss = Callable[[Tensor, Tensor], Tensor]


class Oracle(Protocol):
    """Computes gradients of a task's loss; whatever is faster on some models goes in here.

    Engines and algorithms know only `Task.gradient` and `Task.gradients`.
    """

    @property
    def pads_batches(self) -> bool:
        """Whether minibatches should have one shape, short ones being padded."""
        ...

    @property
    def schedules_clients(self) -> bool:
        """Whether `many` takes clients one by one, on as many cores as it likes."""
        ...

    def on(self, threads: int) -> Oracle:
        """Itself with so many cores at most; one for a caller that is one of several."""
        ...

    def at(self, x: Tensor, places: BatchIndices) -> Tensor | None:
        """As `many`, without gathering the samples; None if it cannot do without."""
        ...

    def one(self, task: Task, x: Vector, batch: Batch) -> Vector: ...

    def many(self, task: Task, x: Tensor, batch: Batch) -> Tensor:
        """(clients, D) at the rows of x; every tensor of the batch has that leading axis, too."""
        ...


@dataclass(frozen=True, eq=False)
class BatchIndices:
    """Minibatches of many clients as places in the pool of all samples, not yet gathered."""

    inputs: Tensor  # of the pool, as the model sees them
    targets: Tensor
    index: Tensor  # (clients, B)
    counts: Tensor | None  # (clients,) how many of them are in front of the padding, None for all
    keys: Tensor | None  # (clients,)


def slope(f: Callable[[Vector], Tensor], x: Vector) -> Vector:
    """The gradient of f at x, of a client that runs by itself."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(f(leaf), leaf)[0]


class Autograd:
    """torch's own gradients."""

    pads_batches = schedules_clients = False

    def on(self, threads: int) -> Oracle:
        return self

    def at(self, x: Tensor, places: BatchIndices) -> Tensor | None:
        return None

    def one(self, task: Task, x: Vector, batch: Batch) -> Vector:
        return slope(lambda y: task.value(y, batch), x)

    def many(self, task: Task, x: Tensor, batch: Batch) -> Tensor:
        def of_one(x: Vector, given: dict[str, Tensor]) -> Vector:
            batch = Batch(**given)
            return torch.func.grad(lambda y: task.value(y, batch))(x)  # type: ignore[no-any-return]

        return vmap(of_one)(x, batch.given())


@dataclass(frozen=True)
class Task:
    """What all clients share: the model's shape, the loss and how gradients are treated."""

    model: nn.Module
    layout: Layout
    loss: Loss
    weight_decay: float = 0.0
    clip: float | None = None
    randomness: str = "none"  # "dropout": keyed masks; "other": torch's generator, keyed
    prepare: Prepare | None = None  # stored samples to the model's inputs
    channels_last: bool = False  # whether images go through the model with channels innermost
    oracle: Oracle = Autograd()

    @property
    def level(self) -> Tensor:
        return self.layout.level

    def cast(self, data: Tensor) -> Tensor:
        """Data on the model's device, and of its dtype if it is floating."""
        dtype = self.layout.dtype if data.is_floating_point() else data.dtype
        return data.to(device=self.layout.device, dtype=dtype)

    def prepared(self, stored: Tensor, key: Tensor | None = None) -> Tensor:
        """What the model sees of samples of the pool; augmented only when there is a key."""
        stored = self.cast(stored)
        return stored if self.prepare is None else self.prepare(stored, self.layout.dtype, key)

    def masks(self, keys: Tensor | None) -> AbstractContextManager[Any]:
        if keys is None or self.randomness == "none":
            return nullcontext()
        return KeyedDropout(keys) if self.randomness == "dropout" else seeded(keys)

    def forward(self, x: Vector, inputs: Tensor, keys: Tensor | None = None) -> Tensor:
        if self.channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with self.masks(keys):
            return functional_call(self.model, self.layout.views(x), (inputs,))  # type: ignore[no-any-return]

    def value(self, x: Vector, batch: Batch) -> Tensor:
        """The loss on a minibatch."""
        return self.loss_of(self.forward(x, batch.inputs, batch.keys), batch)

    def loss_of(self, outputs: Tensor, batch: Batch) -> Tensor:
        if batch.valid is None:
            return self.loss(outputs, batch.targets)
        return batch.mean(per_sample(self.loss, outputs, batch.targets))

    def gradient(self, x: Vector, batch: Batch) -> Vector:
        return self.oracle.one(self, x, batch)

    def gradients(self, x: Tensor, batch: Batch) -> Tensor:
        """Of many clients at once, a row each."""
        return self.oracle.many(self, x, batch)

    def logits_and_features(
        self, x: Vector, inputs: Tensor, keys: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        head = classifier(self.model)
        if head is None:
            raise UndriftError("The model needs a linear layer as its classifier to show features.")
        seen: list[Tensor] = []
        hook = head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            logits = self.forward(x, inputs, keys)
            return logits, seen[-1]
        finally:
            hook.remove()


class Batch(NamedTuple):
    """A client's minibatch; `valid` marks the samples in front of the padding, None for all."""

    inputs: Tensor
    targets: Tensor
    valid: Tensor | None = None  # (B,) 1.0 or 0.0
    keys: Tensor | None = None  # dropout key, a scalar

    def given(self) -> dict[str, Tensor]:
        """Those of its tensors that are there."""
        return {name: leaf for name, leaf in self._asdict().items() if leaf is not None}

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the samples of one value each; a scalar stays as it is."""
        if values.ndim == 0:
            return values
        if self.valid is None:
            return values.mean()
        return (values * self.valid).sum() / self.valid.sum().clamp(min=1)


def per_sample(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """(B,) the loss of each sample alone; asks torch's own losses for it, others under vmap."""
    if getattr(loss, "__module__", "") == F.__name__:
        values = loss(outputs, targets, reduction="none")  # type: ignore[call-arg]
        return values.flatten(1).mean(1) if values.ndim > 1 else values
    return vmap(lambda o, y: loss(o.unsqueeze(0), y.unsqueeze(0)))(outputs, targets)
