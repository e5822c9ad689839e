"""Linear models, one hidden layer, and the small convolutional nets of the papers.

Each convolutional net is a chain of named blocks, of which the last is `classifier`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from undrift.models.arguments import (
    flat_size,
    require_groups,
    require_images,
    require_probability,
    require_whole,
)
from undrift.models.layers import chain, drop


def logistic(shape: Sequence[int], classes: int) -> nn.Module:
    """Return multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: Sequence[int], classes: int, hidden: int = 32) -> nn.Module:
    """Return a net with one hidden layer."""
    require_whole("mlp", hidden=hidden)
    features = math.prod(shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def cnn2(shape: Sequence[int], classes: int, *, dropout: float = 0.5) -> nn.Module:
    """Return the thesis's 2-layer CNN: 21,840 parameters for 28x28x1 and ten classes."""
    channels = require_images("cnn2", shape)
    require_probability("cnn2", dropout=dropout)
    conv1 = nn.Sequential(nn.Conv2d(channels, 10, 5), nn.ReLU(), nn.MaxPool2d(2))
    conv2 = nn.Sequential(
        nn.Conv2d(10, 20, 5), nn.ReLU(), drop(dropout, channels=True), nn.MaxPool2d(2)
    )
    flat = flat_size("cnn2", nn.Sequential(conv1, conv2), shape)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(flat, 50), nn.ReLU(), drop(dropout))
    return chain(conv1=conv1, conv2=conv2, dense=dense, classifier=nn.Linear(50, classes))


def netfleet_cnn(shape: Sequence[int], classes: int, *, padding: int = 0) -> nn.Module:
    """Return NET-FLEET's CNN: 6,490 parameters on MNIST, and 10,330 with padding 1.

    The paper does not state the padding.
    """
    channels = require_images("netfleet-cnn", shape)
    require_whole("netfleet-cnn", least=0, padding=padding)
    conv1 = nn.Sequential(nn.Conv2d(channels, 16, 3, 1, padding), nn.ReLU(), nn.MaxPool2d(2))
    conv2 = nn.Sequential(nn.Conv2d(16, 16, 3, 1, padding), nn.ReLU(), nn.MaxPool2d(2))
    flat = flat_size("netfleet-cnn", nn.Sequential(conv1, conv2), shape)
    conv2.append(nn.Flatten())
    return chain(conv1=conv1, conv2=conv2, classifier=nn.Linear(flat, classes))


def femnist_cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """Return LEAF's CNN for FEMNIST: 6,603,710 parameters for 28x28x1 and 62 classes."""
    channels = require_images("femnist-cnn", shape)
    conv1 = nn.Sequential(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    conv2 = nn.Sequential(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    flat = flat_size("femnist-cnn", nn.Sequential(conv1, conv2), shape)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(flat, 2048), nn.ReLU())
    return chain(conv1=conv1, conv2=conv2, dense=dense, classifier=nn.Linear(2048, classes))


def celeba_cnn(shape: Sequence[int], classes: int, *, groups: int = 2) -> nn.Module:
    """Return LEAF's CNN for CelebA with GroupNorm: 31,202 parameters for 84x84x3, two classes."""
    channels = require_images("celeba-cnn", shape)
    require_groups("celeba-cnn", groups, 32)
    blocks = [_celeba_block(inputs, groups) for inputs in (channels, 32, 32, 32)]
    flat = flat_size("celeba-cnn", nn.Sequential(*blocks), shape)
    blocks[-1].append(nn.Flatten())
    named = {f"conv{i}": block for i, block in enumerate(blocks, start=1)}
    return chain(**named, classifier=nn.Linear(flat, classes))


def _celeba_block(inputs: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, 32, 3, padding=1),
        nn.GroupNorm(groups, 32),
        nn.MaxPool2d(2, ceil_mode=True),  # TensorFlow's "same": 84, 42, 21, 11, 6
        nn.ReLU(),
    )
