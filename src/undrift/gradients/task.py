"""The task that all clients share: the loss on a minibatch, and the oracle of its gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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
from undrift.tasks import Loss

if TYPE_CHECKING:
    from undrift.gradients.loops import CompiledLoops


class Oracle(Protocol):
    """Computes gradients of a task's loss; each implementation is faster on some models.

    Engines and algorithms know only `Task.gradient` and `Task.gradients`. An oracle gets the task
    with each call because clients on threads have copies of the task, with models of their own.
    """

    @property
    def pads_batches(self) -> bool:
        """Return whether short minibatches should be padded, so that all have one shape."""
        ...

    @property
    def schedules_clients(self) -> bool:
        """Return whether `gradients` takes clients one by one, on as many cores as it likes."""
        ...

    def with_threads(self, threads: int) -> Oracle:
        """Return the oracle on at most so many cores; a caller that is one of several wants one."""
        ...

    def gradient(self, task: Task, x: Vector, batch: Batch) -> Vector:
        """Return the gradient of one client's loss at x."""
        ...

    def gradients(self, task: Task, x: Tensor, batch: Batch) -> Tensor:
        """Return (clients, D) the gradients of many clients at the rows of x.

        Every tensor of the batch has a leading axis over the clients, too.
        """
        ...

    def gradients_at(self, x: Tensor, indices: BatchIndices) -> Tensor | None:
        """Return what `gradients` does without gathered samples, or None if it needs them."""
        ...

    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        """Return the gradient at x of another function of one client's samples."""
        ...


@dataclass(frozen=True, eq=False)
class BatchIndices:
    """Holds the minibatches of many clients as indices of samples that are not yet gathered."""

    inputs: Tensor  # of the pool, as the model sees them
    targets: Tensor
    index: Tensor  # (clients, B)
    counts: Tensor | None  # (clients,) how many of them are in front of the padding, None for all
    keys: Tensor | None  # (clients,)


class Autograd:
    """Computes gradients by torch's autograd."""

    pads_batches = schedules_clients = False

    def with_threads(self, threads: int) -> Oracle:
        """Return itself, as torch has its own setting of threads."""
        return self

    def gradient(self, task: Task, x: Vector, batch: Batch) -> Vector:
        """Return the gradient of one client's loss at x."""
        return self.slope(lambda y: task.value(y, batch), x)

    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        """Return the gradient of f at x, outside of any vmap."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(f(leaf), leaf)[0]

    def gradients(self, task: Task, x: Tensor, batch: Batch) -> Tensor:
        """Return (clients, D) the gradients of many clients at the rows of x."""

        def gradient(x: Vector, tensors: dict[str, Tensor]) -> Vector:
            batch = Batch(**tensors)
            return torch.func.grad(lambda y: task.value(y, batch))(x)  # type: ignore[no-any-return]

        return vmap(gradient)(x, batch.present())

    def gradients_at(self, x: Tensor, indices: BatchIndices) -> Tensor | None:
        """Return None, as torch needs gathered samples."""
        return None


@dataclass(frozen=True)
class Task:
    """Holds what all clients share: the model's shape, the loss and how gradients are treated."""

    model: nn.Module
    layout: Layout
    loss: Loss
    weight_decay: float = 0.0
    clip: float | None = None
    randomness: str = "none"  # "dropout": keyed masks; "other": torch's generator, keyed
    prepare: Prepare | None = None  # stored samples to the model's inputs
    channels_last: bool = False  # whether images go through the model with channels innermost
    precision: torch.dtype | None = None  # of forward passes; None for that of the parameters
    oracle: Oracle = Autograd()
    loops: CompiledLoops | None = None  # of local steps; None where they run one by one
    tied: bool = field(init=False, repr=False, compare=False)  # whether tensors have several names

    def __post_init__(self) -> None:
        parameters = self.model.named_parameters(remove_duplicate=False)
        buffers = self.model.named_buffers(remove_duplicate=False)
        tensors = [id(tensor) for _, tensor in chain(parameters, buffers)]
        object.__setattr__(self, "tied", len(set(tensors)) < len(tensors))

    @property
    def level(self) -> Tensor:
        """Return (D,) the index of the model's block that each coordinate belongs to."""
        return self.layout.level

    def cast(self, data: Tensor) -> Tensor:
        """Return data on the model's device, and of its dtype if it is floating."""
        dtype = self.layout.dtype if data.is_floating_point() else data.dtype
        return data.to(device=self.layout.device, dtype=dtype)

    def prepared(self, stored: Tensor, key: Tensor | None = None) -> Tensor:
        """Return stored samples as the model sees them, augmented only when there is a key."""
        stored = self.cast(stored)
        return stored if self.prepare is None else self.prepare(stored, self.layout.dtype, key)

    def prepared_stack(self, stored: Tensor, keys: Tensor) -> Tensor:
        """Return samples (clients, ...) as the model sees them, augmented by each client's key."""
        stacked = getattr(self.prepare, "stacked", None)
        if stacked is None:
            return vmap(self.prepared)(stored, keys)
        return stacked(self.cast(stored), self.layout.dtype, keys)  # type: ignore[no-any-return]

    def masks(self, keys: Tensor | None) -> AbstractContextManager[Any]:
        """Return a context in which the model's randomness is a function of the keys."""
        if keys is None or self.randomness == "none":
            return nullcontext()
        return KeyedDropout(keys) if self.randomness == "dropout" else seeded(keys)

    def forward(self, x: Vector, inputs: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return the outputs of the model with parameters x."""
        if self.channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        # torch would look for tied tensors in every call, a sixth of a small net's gradient.
        with self.masks(keys), self._autocast():
            outputs: Tensor = functional_call(
                self.model, self.layout.views(x), (inputs,), tie_weights=self.tied
            )
        return outputs if self.precision is None else outputs.to(self.layout.dtype)

    def _autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which torch computes in the precision that was asked for."""
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.layout.device.type, dtype=self.precision)

    def value(self, x: Vector, batch: Batch) -> Tensor:
        """Return the loss on a minibatch."""
        return self.loss_of(self.forward(x, batch.inputs, batch.keys), batch)

    def loss_of(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of outputs on a minibatch, whose padding does not count."""
        if batch.valid is None:
            return self.loss(outputs, batch.targets)
        return batch.mean(per_sample(self.loss, outputs, batch.targets))

    def gradient(self, x: Vector, batch: Batch) -> Vector:
        """Return the gradient of one client's loss at x."""
        return self.oracle.gradient(self, x, batch)

    def gradients(self, x: Tensor, batch: Batch) -> Tensor:
        """Return the gradients of many clients at once, a row each."""
        return self.oracle.gradients(self, x, batch)

    def logits_and_features(
        self, x: Vector, inputs: Tensor, keys: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the model's outputs and what enters its classifier."""
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
    """Holds a minibatch; `valid` marks the samples in front of the padding, None for all."""

    inputs: Tensor
    targets: Tensor
    valid: Tensor | None = None  # (B,) 1.0 or 0.0
    keys: Tensor | None = None  # dropout key, a scalar

    def present(self) -> dict[str, Tensor]:
        """Return the fields that are not None, by name."""
        return {name: leaf for name, leaf in self._asdict().items() if leaf is not None}

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the samples of one value each; a scalar stays as it is."""
        if values.ndim == 0:
            return values
        if self.valid is None:
            return values.mean()
        return (values * self.valid).sum() / self.valid.sum().clamp(min=1)


def per_sample(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (B,) the loss of each sample, by the option of torch's own losses, else by vmap."""
    if getattr(loss, "__module__", "") == F.__name__:
        values = loss(outputs, targets, reduction="none")  # type: ignore[call-arg]
        return values.flatten(1).mean(1) if values.ndim > 1 else values
    return vmap(lambda o, y: loss(o.unsqueeze(0), y.unsqueeze(0)))(outputs, targets)
