"""The nets of the workloads in plain torch, for contestants without undrift."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.speed.workloads import CLASSES, Data, Workload
from torch import Tensor, nn


def build(workload: Workload) -> nn.Module:
    """Return the net that `undrift.models.build` makes, parameter for parameter."""
    torch.manual_seed(0)
    if workload.net == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, CLASSES))
    if workload.net == "cnn2":
        return nn.Sequential(
            *(nn.Conv2d(1, 10, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, CLASSES)),
        )
    if workload.net == "resnet18-gn":
        return _resnet18(workload.stem)
    raise ValueError(f"A peer needs a net of W1, W1b10, W1b100, W2 or W3, got {workload.net!r}.")


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), _norm(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), _norm(outputs)),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return F.relu(self.body(inputs) + self.shortcut(inputs))


def _resnet18(stem: int) -> nn.Module:
    first = nn.Conv2d(3, 64, stem, 2 if stem == 7 else 1, stem // 2, bias=False)
    layers = [first, _norm(64), nn.ReLU(), *([nn.MaxPool2d(3, 2, 1)] if stem == 7 else [])]
    inputs = 64
    for outputs in (64, 128, 256, 512):
        layers += [_Block(inputs, outputs, 1 if outputs == 64 else 2), _Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


@torch.no_grad()
def accuracy(net: nn.Module, data: Data) -> float | None:
    """Return the accuracy on the test set, or None without one."""
    if len(data.test_targets) == 0:
        return None
    outputs = net(torch.from_numpy(data.test_inputs))
    return float((outputs.argmax(1).numpy() == data.test_targets).mean())


def batches(inputs: Tensor, targets: Tensor, batch: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Return minibatches of reshuffled epochs by index, the fastest way in plain torch."""
    drawn: list[tuple[Tensor, Tensor]] = []
    while len(drawn) < steps:
        order = torch.randperm(len(targets))[: len(targets) // batch * batch].view(-1, batch)
        drawn += [(inputs[rows], targets[rows]) for rows in order[: steps - len(drawn)]]
    return drawn
