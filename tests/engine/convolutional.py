"""Runs of a small convolutional net, for the tests of execution and tuning."""

from typing import Any

import torch
from torch import nn

import undrift as ud


def image_clients(
    number: int = 5, samples: int = 20, shape: tuple[int, ...] = (1, 8, 8)
) -> ud.Clients:
    """Return clients with random images of three classes."""
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(number):
        inputs = torch.randn(samples, *shape, generator=generator)
        pairs.append((inputs, torch.randint(0, 3, (samples,), generator=generator)))
    return ud.Clients(pairs)


def convolutional_net(channels: int = 4, dropout: float = 0.0) -> nn.Module:
    """Return a net with one convolution."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, channels, 3),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9 * channels, 3),
    )


def convolutional_run(
    algorithm: Any = None, model: nn.Module | None = None, **options: Any
) -> ud.Run:
    """Return a run before its first round, with unequal work."""
    settings: dict[str, Any] = {
        "loss": nn.functional.cross_entropy,
        "work": ud.Steps([3, 1, 4, 2, 5]),
        "batch_size": 6,
        "rounds": 3,
    }
    method = algorithm or ud.Scaffold(lr=0.1)
    chosen = options.pop("clients", None) or image_clients()
    return ud.simulate(method, model or convolutional_net(), chosen, **(settings | options))
