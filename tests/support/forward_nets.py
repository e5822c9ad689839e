"""Small nets that have every kind of layer a compiled forward pass knows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from undrift.gradients.task import Task
from undrift.models.layout import Layout

SIDE, CLASSES = 9, 7


def net(*parts: nn.Module) -> nn.Sequential:
    """The parts on images of two channels, and a classifier behind them."""
    torch.manual_seed(0)
    for part in parts:
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.reset_parameters()
    with torch.no_grad():
        wide = nn.Sequential(*parts, nn.Flatten())(torch.zeros(1, 2, SIDE, SIDE)).shape[1]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(wide, CLASSES))


# Between them every kind of layer, in company and before a flat layer.
NETS = {
    "logistic": [],
    "perceptron": [nn.Flatten(), nn.Linear(162, 33), nn.Tanh(), nn.Dropout(0.5), nn.Linear(33, 5)],
    "pooled": [nn.Conv2d(2, 10, 3), nn.ReLU(), nn.Dropout2d(0.4), nn.MaxPool2d(2), nn.Sigmoid()],
    "strided": [
        nn.Conv2d(2, 5, (3, 2), stride=(2, 1), padding=(2, 1), bias=False),
        nn.Tanh(),
        nn.Dropout(0.3),
        nn.AvgPool2d((2, 3), stride=1, padding=1, count_include_pad=False),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(5, 9, 1),
    ],
}
SHAPE = (2, SIDE, SIDE)


def task_of(model: nn.Module, loss: Any = F.cross_entropy) -> Task:
    return Task(model, Layout.of(model), loss, randomness="dropout")
