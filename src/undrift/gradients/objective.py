"""An `Objective` of a task and a minibatch, and the wrappers that count, clip and decay it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from undrift.core import Objective, Outputs, Vector
from undrift.errors import UndriftError
from undrift.gradients.task import Batch, Task

Term = Callable[[Vector], Tensor]


class Minibatch(Protocol):
    """Holds the samples of one step of one client, which may be one of many in a stack."""

    @property
    def own(self) -> Batch:
        """Return the samples."""
        ...

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient of the loss on the samples."""
        ...

    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        """Return the gradient at x of another function of the samples."""
        ...


@dataclass(frozen=True)
class DataObjective:
    """Computes F_i on one minibatch, plus terms."""

    task: Task
    minibatch: Minibatch
    t: int
    k: int
    terms: tuple[Term, ...] = ()

    @property
    def level(self) -> Tensor:
        return self.task.level

    def __call__(self, x: Vector) -> Tensor:
        batch = self.minibatch.own
        value = self.task.value(x, batch)
        for term in self.terms:
            value = value + batch.mean(term(x))
        return value

    def grad(self, x: Vector) -> Vector:
        if not self.terms:
            return self.minibatch.gradient(x)
        return self.minibatch.slope(self.__call__, x)

    def grad_and_data_grad(self, x: Vector) -> tuple[Vector, Vector]:
        g = self.grad(x)
        return g, g

    def outputs(self, x: Vector) -> Outputs:
        batch = self.minibatch.own
        logits, features = self.task.logits_and_features(x, batch.inputs, batch.keys)
        return Outputs(logits, features, self.task.loss_of(logits, batch))

    def plus(self, term: Term) -> Objective:
        return replace(self, terms=(*self.terms, term))


@dataclass(frozen=True)
class Pooled:
    """Computes F_i on all local data as a mean over slices, in the memory of one minibatch."""

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

    def grad_and_data_grad(self, x: Vector) -> tuple[Vector, Vector]:
        g = self.grad(x)
        return g, g

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
class ObjectiveWrapper:
    """Passes every call on to another objective; subclasses change some of them."""

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

    def grad_and_data_grad(self, x: Vector) -> tuple[Vector, Vector]:
        return self.inner.grad_and_data_grad(x)

    def outputs(self, x: Vector) -> Outputs:
        return self.inner.outputs(x)

    def plus(self, term: Term) -> Objective:
        return replace(self, inner=self.inner.plus(term))


@dataclass(frozen=True)
class Counted(ObjectiveWrapper):
    """Reports every gradient before it is taken."""

    count: Callable[[], None]

    def grad(self, x: Vector) -> Vector:
        self.count()
        return self.inner.grad(x)

    def grad_and_data_grad(self, x: Vector) -> tuple[Vector, Vector]:
        self.count()
        return self.inner.grad_and_data_grad(x)


@dataclass(frozen=True)
class Clipped(ObjectiveWrapper):
    """Scales the gradient down to an L2 norm of at most `norm`."""

    norm: float

    def grad(self, x: Vector) -> Vector:
        return self._clip(self.inner.grad(x))

    def grad_and_data_grad(self, x: Vector) -> tuple[Vector, Vector]:
        g, data = self.inner.grad_and_data_grad(x)
        return self._clip(g), data

    def _clip(self, g: Vector) -> Vector:
        length = torch.linalg.vector_norm(g)
        return g * torch.where(length > self.norm, self.norm / length, torch.ones_like(length))


@dataclass(frozen=True)
class Decayed(ObjectiveWrapper):
    """Adds (weight_decay / 2) ||x||^2, which is not clipped, as in SGD's own weight decay."""

    weight_decay: float

    def __call__(self, x: Vector) -> Tensor:
        return self.inner(x) + 0.5 * self.weight_decay * x.dot(x)

    def grad(self, x: Vector) -> Vector:
        return self.inner.grad(x) + self.weight_decay * x

    def grad_and_data_grad(self, x: Vector) -> tuple[Vector, Vector]:
        g, data = self.inner.grad_and_data_grad(x)
        return g + self.weight_decay * x, data


def instrument(task: Task, objective: Objective, count: Callable[[], None]) -> Objective:
    """Return the objective as an algorithm sees it: counted, then clipped, then decayed."""
    wrapped: Objective = Counted(objective, count)
    if task.clip is not None:
        wrapped = Clipped(wrapped, task.clip)
    if task.weight_decay:
        wrapped = Decayed(wrapped, task.weight_decay)
    return wrapped
