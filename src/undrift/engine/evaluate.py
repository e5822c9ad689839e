"""Loss and top-1 accuracy of a model vector, in batches and without dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    with _evaluating(task), torch.no_grad():
        for weight, pair in weighted:
            for share, inputs, targets in _batches(task, pair, batch):
                outputs = task.forward(x, inputs)
                loss += weight * share * float(task.loss(outputs, targets))
                labelled = not targets.is_floating_point() and outputs.ndim == targets.ndim + 1
                if labelled:
                    right = (outputs.argmax(1) == targets).double().mean()
                    accuracy += weight * share * float(right)
    return Score(loss, accuracy if labelled else None)


@contextmanager
def _evaluating(task: Task) -> Iterator[None]:
    """The model in eval mode; afterwards every part is as it was."""
    modes = [(module, module.training) for module in task.model.modules()]
    task.model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _batches(task: Task, pair: Pair, batch: int) -> Iterator[tuple[float, Tensor, Tensor]]:
    inputs, targets = pair
    for start in range(0, len(targets), batch):
        some = slice(start, start + batch)
        share = len(targets[some]) / len(targets)
        yield share, task.prepared(inputs[some]), task.cast(targets[some])


def gradient(task: Task, x: Vector, clients: Clients, population: Floats, batch: int) -> Vector:
    """Gradient at x of sum_i w_i F_i over all training data, without dropout."""
    total = task.weight_decay * x
    with _evaluating(task), torch.enable_grad():
        for i in range(len(clients)):
            for share, inputs, targets in _batches(task, clients[i], batch):
                leaf = x.detach().requires_grad_()
                loss = task.loss(task.forward(leaf, inputs), targets)
                total = total + population[i] * share * torch.autograd.grad(loss, leaf)[0]
    return total
