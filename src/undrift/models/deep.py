"""AlexNet and VGG-19 of the thesis, for images of about 32x32.

Pooling rounds up, so that 28x28 images (MNIST) end at the same size as 32x32 images.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from undrift.models.arguments import flat_size, require_images, require_probability
from undrift.models.layers import chain, drop

VGG19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels and convolutions per stage


def alexnet(shape: Sequence[int], classes: int, *, dropout: float = 0.5) -> nn.Module:
    """Return the thesis's AlexNet: 7,212,874 parameters for 32x32x3 and ten classes."""
    channels = require_images("alexnet", shape)
    convolutions = _alexnet_convolutions(channels)
    convolutions["conv5"].append(_pool())
    return _with_dense("alexnet", convolutions, 2048, shape, classes, dropout)


def alexnet_wide(shape: Sequence[int], classes: int, *, dropout: float = 0.5) -> nn.Module:
    """Return an AlexNet of about 23M parameters, as in the Marsit experiments.

    It has no last pooling, and dense layers of 4096.
    """
    channels = require_images("alexnet-wide", shape)
    convolutions = _alexnet_convolutions(channels)
    return _with_dense("alexnet-wide", convolutions, 4096, shape, classes, dropout)


def vgg19(shape: Sequence[int], classes: int, *, dropout: float = 0.5) -> nn.Module:
    """Return the thesis's VGG-19, without normalisation: 20,554,826 parameters for 32x32x3."""
    inputs = require_images("vgg19", shape)
    stages: dict[str, nn.Sequential] = {}
    for number, (outputs, depth) in enumerate(VGG19, start=1):
        stage = nn.Sequential()
        for _ in range(depth):
            stage.extend([nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()])
            inputs = outputs
        stages[f"stage{number}"] = stage.append(_pool())
    return _with_dense("vgg19", stages, 512, shape, classes, dropout)


def _alexnet_convolutions(channels: int) -> dict[str, nn.Sequential]:
    return {
        "conv1": nn.Sequential(nn.Conv2d(channels, 64, 11, 4, 5), nn.ReLU(), _pool()),
        "conv2": nn.Sequential(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), _pool()),
        "conv3": nn.Sequential(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
        "conv4": nn.Sequential(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
        "conv5": nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()),
    }


def _pool() -> nn.Module:
    return nn.MaxPool2d(2, ceil_mode=True)


def _with_dense(
    name: str,
    convolutions: dict[str, nn.Sequential],
    width: int,
    shape: Sequence[int],
    classes: int,
    dropout: float,
) -> nn.Module:
    """Return the convolutions, two dense layers with dropout before each, and a classifier."""
    require_probability(name, dropout=dropout)
    flat = flat_size(name, nn.Sequential(*convolutions.values()), shape)
    dense1 = nn.Sequential(nn.Flatten(), drop(dropout), nn.Linear(flat, width), nn.ReLU())
    dense2 = nn.Sequential(drop(dropout), nn.Linear(width, width), nn.ReLU())
    return chain(**convolutions, dense1=dense1, dense2=dense2, classifier=nn.Linear(width, classes))
