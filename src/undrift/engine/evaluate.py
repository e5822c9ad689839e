"""Loss and top-1 accuracy of a model vector, in batches and without dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.core import Vector
from undrift.data.clients import Clients, Pair
from undrift.objective import Task
from undrift.participation import Floats


class Score(NamedTuple):
    loss: float
    accuracy: float | None  # None when the targets are not class labels


def evaluate(task: Task, x: Vector, clients: Clients, population: Floats, batch: int) -> Score:
    """On the test set, or without one on the training data as the objective weighs it."""
    if clients.test is not None:
        return _mean(task, x, [(1.0, clients.test)], batch)
    held = ((float(population[i]), clients[i]) for i in range(len(clients)) if population[i] > 0)
    return _mean(task, x, held, batch)


def _mean(
    task: Task,
    x: Vector,
    weighted: Iterator[tuple[float, Pair]] | list[tuple[float, Pair]],
    batch: int,
) -> Score:
    loss = accuracy = 0.0
    labelled = True
    modes = [(module, module.training) for module in task.model.modules()]
    task.model.eval()
    try:
        with torch.no_grad():
            for weight, pair in weighted:
                for share, inputs, targets in _batches(task, pair, batch):
                    outputs = task.forward(x, inputs)
                    loss += weight * share * float(task.loss(outputs, targets))
                    labelled = not targets.is_floating_point() and outputs.ndim == targets.ndim + 1
                    if labelled:
                        right = (outputs.argmax(1) == targets).double().mean()
                        accuracy += weight * share * float(right)
    finally:
        for module, training in modes:
            module.training = training
    return Score(loss, accuracy if labelled else None)


def _batches(task: Task, pair: Pair, batch: int) -> Iterator[tuple[float, Tensor, Tensor]]:
    inputs, targets = pair
    for start in range(0, len(targets), batch):
        some = slice(start, start + batch)
        share = len(targets[some]) / len(targets)
        yield share, task.cast(inputs[some]), task.cast(targets[some])
