"""An `Objective` from a task and a minibatch, and what goes around it."""

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
    """The samples of one step of one client, which may be one of many that run side by side."""

    @property
    def mine(self) -> Batch: ...
    def gradient(self, x: Vector) -> Vector: ...
    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        """The gradient of whatever else is made of these samples."""
        ...


@dataclass(frozen=True)
class DataObjective:
    """F_i on one minibatch, plus terms."""

    task: Task
    minibatch: Minibatch
    t: int
    k: int
    terms: tuple[Term, ...] = ()

    @property
    def level(self) -> Tensor:
        return self.task.level

    def __call__(self, x: Vector) -> Tensor:
        batch = self.minibatch.mine
        value = self.task.value(x, batch)
        for term in self.terms:
            value = value + batch.mean(term(x))
        return value

    def grad(self, x: Vector) -> Vector:
        if not self.terms:
            return self.minibatch.gradient(x)
        return self.minibatch.slope(self.__call__, x)

    def outputs(self, x: Vector) -> Outputs:
        batch = self.minibatch.mine
        logits, features = self.task.logits_and_features(x, batch.inputs, batch.keys)
        return Outputs(logits, features, self.task.loss_of(logits, batch))

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
class ObjectiveWrapper:
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
class Counted(ObjectiveWrapper):
    """Reports every gradient before it is taken."""

    count: Callable[[], None]

    def grad(self, x: Vector) -> Vector:
        self.count()
        return self.inner.grad(x)


@dataclass(frozen=True)
class Clipped(ObjectiveWrapper):
    """Scales the data gradient down to a global L2 norm of at most `norm`."""

    norm: float

    def grad(self, x: Vector) -> Vector:
        g = self.inner.grad(x)
        length = torch.linalg.vector_norm(g)
        return g * torch.where(length > self.norm, self.norm / length, torch.ones_like(length))


@dataclass(frozen=True)
class Decayed(ObjectiveWrapper):
    """F_i + (weight_decay / 2) ||x||^2; outside the clip, as in SGD's own weight decay."""

    weight_decay: float

    def __call__(self, x: Vector) -> Tensor:
        return self.inner(x) + 0.5 * self.weight_decay * x.dot(x)

    def grad(self, x: Vector) -> Vector:
        return self.inner.grad(x) + self.weight_decay * x


def instrument(task: Task, objective: Objective, count: Callable[[], None]) -> Objective:
    """The objective as an algorithm sees it: counted, then clipped, then decayed."""
    dressed: Objective = Counted(objective, count)
    if task.clip is not None:
        dressed = Clipped(dressed, task.clip)
    if task.weight_decay:
        dressed = Decayed(dressed, task.weight_decay)
    return dressed
