"""Loss and top-1 accuracy of a model vector, in batches and without dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.core import Vector
from undrift.data.clients import Clients, Pair
from undrift.engine.participation import Floats
from undrift.engine.world import World
from undrift.gradients.task import Task
from undrift.models.layout import eval_mode


class Score(NamedTuple):
    loss: float
    accuracy: float | None  # None when the targets are not class labels


def evaluate(
    task: Task,
    x: Vector,
    clients: Clients,
    population: Floats,
    batch: int,
    world: World = World(),
    *,
    trained: bool = False,
) -> Score:
    """On the test set; without one, or if `trained`, on the training data as the loss weighs it.

    Processes share the batches; the sum is over all of them in order, whoever had which.
    """
    weighted: Iterator[tuple[float, Pair]] = (
        (float(population[i]), clients[i]) for i in range(len(clients)) if population[i] > 0
    )
    if clients.test is not None and not trained:
        weighted = iter([(1.0, clients.test)])
    with eval_mode(task.model), torch.no_grad():
        scored = [
            _score(task, x, weight * share, inputs, targets, number % world.size == world.rank)
            for number, (weight, share, inputs, targets) in enumerate(
                (weight, *slice_) for weight, pair in weighted for slice_ in _slices(pair, batch)
            )
        ]
    losses, rights, unlabelled = world.sum(torch.tensor(scored, dtype=torch.float64)).T.tolist()
    return Score(sum(losses), None if any(unlabelled) else sum(rights))


def _score(
    task: Task, x: Vector, weight: float, inputs: Tensor, targets: Tensor, mine: bool
) -> tuple[float, float, float]:
    """Weighted loss and accuracy of a batch, and whether its targets are no class labels."""
    if not mine:
        return 0.0, 0.0, 0.0
    inputs, targets = task.prepared(inputs), task.cast(targets)
    outputs = task.forward(x, inputs)
    loss = weight * float(task.loss(outputs, targets))
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return loss, 0.0, 1.0
    return loss, weight * float((outputs.argmax(1) == targets).double().mean()), 0.0


def _slices(pair: Pair, batch: int) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Each with its share of the samples."""
    inputs, targets = pair
    for start in range(0, len(targets), batch):
        some = slice(start, start + batch)
        yield len(targets[some]) / len(targets), inputs[some], targets[some]


def gradient(
    task: Task,
    x: Vector,
    clients: Clients,
    population: Floats,
    batch: int,
    world: World = World(),
) -> Vector:
    """Gradient at x of sum_i w_i F_i over all training data, without dropout."""
    total = torch.zeros_like(x)
    with eval_mode(task.model), torch.enable_grad():
        for i in world.nodes(len(clients)):
            for share, inputs, targets in _slices(clients[i], batch):
                leaf = x.detach().requires_grad_()
                outputs = task.forward(leaf, task.prepared(inputs))
                loss = task.loss(outputs, task.cast(targets))
                total = total + population[i] * share * torch.autograd.grad(loss, leaf)[0]
    return world.sum(total) + task.weight_decay * x
