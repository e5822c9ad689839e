"""The oracle: an `Objective` from model, loss and minibatch, and what goes around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from undrift.core import Objective, Outputs, Vector
from undrift.data.prepare import Prepare
from undrift.dropout import KeyedDropout, seeded
from undrift.errors import UndriftError
from undrift.models import classifier
from undrift.vector import Layout

Loss = Callable[[Tensor, Tensor], Tensor]
Term = Callable[[Vector], Tensor]


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
    level: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", self.layout.level())

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
        with self.masks(keys):
            return functional_call(self.model, self.layout.views(x), (inputs,))  # type: ignore[no-any-return]

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


@dataclass(frozen=True)
class Batch:
    """A client's minibatch; `valid` marks the samples in front of the padding, None for all."""

    inputs: Tensor
    targets: Tensor
    valid: Tensor | None = None  # (B,) 1.0 or 0.0
    keys: Tensor | None = None  # dropout key, a scalar

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the samples of one value each; a scalar stays as it is."""
        if values.ndim == 0:
            return values
        if self.valid is None:
            return values.mean()
        return (values * self.valid).sum() / self.valid.sum().clamp(min=1)


@dataclass(frozen=True)
class DataObjective:
    """F_i on one minibatch, plus terms."""

    task: Task
    batch: Batch
    t: int
    k: int
    stacked: bool  # whether this runs under vmap
    terms: tuple[Term, ...] = ()

    @property
    def level(self) -> Tensor:
        return self.task.level

    def __call__(self, x: Vector) -> Tensor:
        value = self._loss(self.task.forward(x, self.batch.inputs, self.batch.keys))
        for term in self.terms:
            value = value + self.batch.mean(term(x))
        return value

    def _loss(self, outputs: Tensor) -> Tensor:
        if self.batch.valid is None:
            return self.task.loss(outputs, self.batch.targets)
        return self.batch.mean(per_sample(self.task.loss, outputs, self.batch.targets))

    def grad(self, x: Vector) -> Vector:
        if self.stacked:
            return torch.func.grad(self.__call__)(x)  # type: ignore[no-any-return]
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(self(leaf), leaf)[0]

    def outputs(self, x: Vector) -> Outputs:
        batch = self.batch
        logits, features = self.task.logits_and_features(x, batch.inputs, batch.keys)
        return Outputs(logits, features, self._loss(logits))

    def plus(self, term: Term) -> Objective:
        return replace(self, terms=(*self.terms, term))


@dataclass(frozen=True)
class Pooled:
    """The whole local data as a mean over slices, so that memory is that of one minibatch."""

    parts: Sequence[DataObjective]
    shares: Sequence[Tensor]  # of the client's samples, per slice

    @property
    def t(self) -> int:
        return self.parts[0].t

    @property
    def k(self) -> int:
        return 0

    @property
    def level(self) -> Tensor:
        return self.parts[0].level

    def __call__(self, x: Vector) -> Tensor:
        return self._mean(lambda part: part(x))

    def grad(self, x: Vector) -> Vector:
        return self._mean(lambda part: part.grad(x))

    def _mean(self, of: Callable[[DataObjective], Tensor]) -> Tensor:
        total = self.shares[0] * of(self.parts[0])
        for share, part in zip(self.shares[1:], self.parts[1:], strict=True):
            total = total + share * of(part)
        return total

    def outputs(self, x: Vector) -> Outputs:
        raise UndriftError("The whole local data is visited in slices and has no single outputs.")

    def plus(self, term: Term) -> Objective:
        raise UndriftError("A term needs a minibatch; add it inside the local loop.")


@dataclass(frozen=True)
class _Around:
    """An objective around another; subclasses change what they are about."""

    inner: Objective

    @property
    def t(self) -> int:
        return self.inner.t

    @property
    def k(self) -> int:
        return self.inner.k

    @property
    def level(self) -> Tensor:
        return self.inner.level

    def __call__(self, x: Vector) -> Tensor:
        return self.inner(x)

    def grad(self, x: Vector) -> Vector:
        return self.inner.grad(x)

    def outputs(self, x: Vector) -> Outputs:
        return self.inner.outputs(x)

    def plus(self, term: Term) -> Objective:
        return replace(self, inner=self.inner.plus(term))


@dataclass(frozen=True)
class Counted(_Around):
    """Reports every gradient before it is taken."""

    count: Callable[[], None]

    def grad(self, x: Vector) -> Vector:
        self.count()
        return self.inner.grad(x)


@dataclass(frozen=True)
class Clipped(_Around):
    """Scales the data gradient down to a global L2 norm of at most `norm`."""

    norm: float

    def grad(self, x: Vector) -> Vector:
        g = self.inner.grad(x)
        length = torch.linalg.vector_norm(g)
        return g * torch.where(length > self.norm, self.norm / length, torch.ones_like(length))


@dataclass(frozen=True)
class Decayed(_Around):
    """F_i + (weight_decay / 2) ||x||^2; outside the clip, as in SGD's own weight decay."""

    weight_decay: float

    def __call__(self, x: Vector) -> Tensor:
        return self.inner(x) + 0.5 * self.weight_decay * x.dot(x)

    def grad(self, x: Vector) -> Vector:
        return self.inner.grad(x) + self.weight_decay * x


def dress(task: Task, objective: Objective, count: Callable[[], None]) -> Objective:
    """The objective as an algorithm sees it: counted, then clipped, then decayed."""
    dressed: Objective = Counted(objective, count)
    if task.clip is not None:
        dressed = Clipped(dressed, task.clip)
    if task.weight_decay:
        dressed = Decayed(dressed, task.weight_decay)
    return dressed


def per_sample(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """(B,) the loss of each sample alone; asks torch's own losses for it, others under vmap."""
    if getattr(loss, "__module__", "") == F.__name__:
        values = loss(outputs, targets, reduction="none")  # type: ignore[call-arg]
        return values.flatten(1).mean(1) if values.ndim > 1 else values
    return vmap(lambda o, y: loss(o.unsqueeze(0), y.unsqueeze(0)))(outputs, targets)
