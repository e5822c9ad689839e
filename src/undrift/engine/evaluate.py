"""Loss and top-1 accuracy of a model vector, in batches and without dropout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core import Vector
from undrift.data.clients import Clients, Pair
from undrift.engine.participation import Floats
from undrift.engine.world import World
from undrift.gradients.task import Task
from undrift.models.layout import eval_mode

ALL_AT_ONCE = 2**62  # the size of batches for a loss that is not a mean over samples


class Score(NamedTuple):
    """Holds what an evaluation found."""

    loss: float
    accuracy: float | None  # None when the targets are not class labels


@dataclass(frozen=True)
class Evaluator:
    """Evaluates vectors of parameters on the data of a run, in batches; processes share them."""

    task: Task
    clients: Clients
    population: Floats
    batch: int
    world: World = World()

    def score(
        self, x: Vector, *, on_training_data: bool = False, samples: Pair | None = None
    ) -> Score:
        """Return loss and accuracy on the test set, or on these samples.

        Without a test set, or `on_training_data`, they are those of the training data as the
        objective weighs it. The sum is over all batches in order, whichever process had which.
        """
        world, clients, population = self.world, self.clients, self.population
        weighted: Iterator[tuple[float, Pair]] = (
            (float(population[i]), clients[i]) for i in range(len(clients)) if population[i] > 0
        )
        samples = clients.test if samples is None else samples
        if samples is not None and not on_training_data:
            weighted = iter([(1.0, samples)])
        batches = (
            (weight * share, inputs, targets)
            for weight, pair in weighted
            for share, inputs, targets in _slices(pair, self.batch)
        )
        with eval_mode(self.task.model), torch.no_grad():
            scores = [
                _score(self.task, x, *batch) if number % world.size == world.rank else _NOT_HERE
                for number, batch in enumerate(batches)
            ]
        sums = world.sum(torch.tensor(scores, dtype=torch.float64))
        losses, accuracies, unlabelled = sums.T.tolist()
        return Score(sum(losses), None if any(unlabelled) else sum(accuracies))

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient at x of sum_i w_i F_i over all training data, without dropout."""
        task, total = self.task, torch.zeros_like(x)
        with eval_mode(task.model), torch.enable_grad():
            for i in self.world.nodes(len(self.clients)):
                for share, inputs, targets in _slices(self.clients[i], self.batch):
                    leaf = x.detach().requires_grad_()
                    outputs = task.forward(leaf, task.prepared(inputs))
                    loss = task.loss(outputs, task.cast(targets))
                    gradient = torch.autograd.grad(loss, leaf)[0]
                    total = total + self.population[i] * share * gradient
        return self.world.sum(total) + task.weight_decay * x

    def training_batches(self, batch: int) -> Iterator[tuple[float, Tensor, Tensor]]:
        """Yield all training data in batches, each behind its weight in the objective."""
        for i in np.flatnonzero(self.population > 0):
            for share, inputs, targets in _slices(self.clients[int(i)], batch):
                yield float(self.population[i]) * share, inputs, targets


_NOT_HERE = (0.0, 0.0, 0.0)  # the score of a batch that another process evaluates


def _score(
    task: Task, x: Vector, weight: float, inputs: Tensor, targets: Tensor
) -> tuple[float, float, float]:
    """Return weighted loss and accuracy of a batch, and whether its targets are no labels."""
    inputs, targets = task.prepared(inputs), task.cast(targets)
    outputs = task.forward(x, inputs)
    loss = weight * float(task.loss(outputs, targets))
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return loss, 0.0, 1.0
    return loss, weight * float((outputs.argmax(1) == targets).double().mean()), 0.0


def _slices(pair: Pair, batch: int) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Yield batches, each behind its share of the samples."""
    inputs, targets = pair
    for start in range(0, len(targets), batch):
        some = slice(start, start + batch)
        yield len(targets[some]) / len(targets), inputs[some], targets[some]
