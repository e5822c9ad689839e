"""Residual nets with GroupNorm in place of BatchNorm, whose statistics clients cannot share.

All have features (with `projection=256` those of MOON's head), and the stem and the stages are the
blocks of FedMLB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from undrift.check import require
from undrift.models.arguments import require_groups, require_images, require_whole

Block = Callable[[int, int, int, int], nn.Module]  # of inputs, outputs, stride and groups


class Basic(nn.Module):
    """A block that has two 3x3 convolutions with GroupNorm around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.relu = nn.ReLU()
        self.shortcut = self._shortcut(inputs, outputs, stride, groups)

    def _shortcut(self, inputs: int, outputs: int, stride: int, groups: int) -> nn.Module:
        return _projected(inputs, outputs, stride, groups)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(inputs)))))
        return self.relu(hidden + self.shortcut(inputs))  # type: ignore[no-any-return]


class BasicA(Basic):
    """A basic block whose shortcut has no parameters, as option A of He et al. says."""

    def _shortcut(self, inputs: int, outputs: int, stride: int, groups: int) -> nn.Module:
        same = stride == 1 and inputs == outputs
        return nn.Identity() if same else Padded(outputs - inputs, stride)


class Padded(nn.Module):
    """Takes every stride-th pixel and adds channels of zeros, half of them on each side."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, inputs: Tensor) -> Tensor:
        thinned = inputs[..., :: self.stride, :: self.stride]
        front = self.channels // 2
        return F.pad(thinned, (0, 0, 0, 0, front, self.channels - front))


class Bottleneck(nn.Module):
    """A block that has 1x1, 3x3 (with the stride, as in torchvision) and 1x1 convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        width = outputs // 4
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.GroupNorm(groups, outputs)
        self.relu = nn.ReLU()
        self.shortcut = _projected(inputs, outputs, stride, groups)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu(self.norm1(self.conv1(inputs)))
        hidden = self.norm3(self.conv3(self.relu(self.norm2(self.conv2(hidden)))))
        return self.relu(hidden + self.shortcut(inputs))  # type: ignore[no-any-return]


def _projected(inputs: int, outputs: int, stride: int, groups: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
    )


class ResNet(nn.Module):
    """Runs stem, stages (each but the first halves the image), mean over the image, classifier."""

    blocks: tuple[str, ...]

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        classes: int,
        *,
        block: Block,
        width: int,  # of the stem
        stages: Sequence[tuple[int, int]],  # channels and blocks
        stem: int,
        groups: int,
        projection: int | None,
    ) -> None:
        super().__init__()
        channels = require_images(name, shape)
        require(stem in (3, 7), name, "stem 3 or 7", stem)
        require_groups(name, groups, width)
        first = nn.Conv2d(channels, width, stem, 2 if stem == 7 else 1, stem // 2, bias=False)
        layers = [first, nn.GroupNorm(groups, width), nn.ReLU()]
        self.stem = nn.Sequential(*layers, *([nn.MaxPool2d(3, 2, 1)] if stem == 7 else []))
        inputs = width
        for number, (outputs, depth) in enumerate(stages, start=1):
            stage = [block(inputs, outputs, 1 if number == 1 else 2, groups)]
            stage += [block(outputs, outputs, 1, groups) for _ in range(depth - 1)]
            self.add_module(f"stage{number}", nn.Sequential(*stage))
            inputs = outputs
        self.blocks = ("stem", *(f"stage{number}" for number in range(1, len(stages) + 1)))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projection: nn.Module = nn.Identity()
        if projection is not None:
            require_whole(name, projection=projection)
            self.projection = nn.Sequential(
                nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, projection)
            )
        self.classifier = nn.Linear(projection or inputs, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for name in self.blocks:
            hidden = self.get_submodule(name)(hidden)
        return self.classifier(self.projection(self.pool(hidden)))  # type: ignore[no-any-return]


class ResNet18(ResNet):
    """ResNet-18 has GroupNorm and `stem` 3 as in FedACG, or 7 (with max-pooling) as in FedSpeed."""

    def __init__(
        self,
        shape: Sequence[int] = (3, 32, 32),
        classes: int = 10,
        *,
        stem: int = 3,
        groups: int = 2,
        projection: int | None = None,
    ) -> None:
        super().__init__(
            "resnet18-gn",
            shape,
            classes,
            block=Basic,
            width=64,
            stages=((64, 2), (128, 2), (256, 2), (512, 2)),
            stem=stem,
            groups=groups,
            projection=projection,
        )


class ResNet20(ResNet):
    """ResNet-20 of He et al. for CIFAR has stages of 16, 32, 64 channels and option A shortcuts."""

    def __init__(
        self,
        shape: Sequence[int] = (3, 32, 32),
        classes: int = 10,
        *,
        groups: int = 2,
        projection: int | None = None,
    ) -> None:
        super().__init__(
            "resnet20",
            shape,
            classes,
            block=BasicA,
            width=16,
            stages=((16, 3), (32, 3), (64, 3)),
            stem=3,
            groups=groups,
            projection=projection,
        )


class ResNet50(ResNet):
    """ResNet-50 has GroupNorm and is for images of about 224x224, unless `stem` is 3."""

    def __init__(
        self,
        shape: Sequence[int] = (3, 224, 224),
        classes: int = 1000,
        *,
        stem: int = 7,
        groups: int = 2,
        projection: int | None = None,
    ) -> None:
        super().__init__(
            "resnet50-gn",
            shape,
            classes,
            block=Bottleneck,
            width=64,
            stages=((256, 3), (512, 4), (1024, 6), (2048, 3)),
            stem=stem,
            groups=groups,
            projection=projection,
        )
