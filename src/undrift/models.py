"""Models by name, and what some methods ask of a model.

A method may ask for
* **features**: what enters the classifier. The classifier is the attribute `classifier` of the
  model, or without one its last linear layer; MOON expects a projection head in front of it.
* **blocks**: the model is a chain of parts. `blocks` names children of the model in the order in
  which they are run, and what is not named comes after them; without `blocks` every child is one.
Any `nn.Module` that fits this serves; none of it needs to be inherited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from undrift.check import require, require_choice


def logistic(shape: Sequence[int], classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: Sequence[int], classes: int, hidden: int = 32) -> nn.Module:
    """One hidden layer."""
    features = math.prod(shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


class _Residual(nn.Module):
    """Two 3x3 convolutions with GroupNorm around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(inputs)))))
        return self.relu(hidden + self.shortcut(inputs))  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """ResNet-18 with GroupNorm; `stem` 3 as in FedACG, 7 (with max-pooling) as in FedSpeed.

    Offers features (with `projection=256`, MOON's head) and the five blocks of FedMLB.
    """

    blocks = ("stem", "stage1", "stage2", "stage3", "stage4")

    def __init__(
        self,
        shape: Sequence[int] = (3, 32, 32),
        classes: int = 10,
        *,
        stem: int = 3,
        groups: int = 2,
        projection: int | None = None,
    ) -> None:
        super().__init__()
        require(len(shape) == 3, "resnet18-gn", "images as (channels, height, width)", tuple(shape))
        require(stem in (3, 7), "resnet18-gn", "stem 3 or 7", stem)
        first = nn.Conv2d(shape[0], 64, stem, 2 if stem == 7 else 1, stem // 2, bias=False)
        layers = [first, nn.GroupNorm(groups, 64), nn.ReLU()]
        self.stem = nn.Sequential(*layers, *([nn.MaxPool2d(3, 2, 1)] if stem == 7 else []))
        self.stage1 = _stage(64, 64, 1, groups)
        self.stage2 = _stage(64, 128, 2, groups)
        self.stage3 = _stage(128, 256, 2, groups)
        self.stage4 = _stage(256, 512, 2, groups)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projection: nn.Module = nn.Identity()
        if projection is not None:
            self.projection = nn.Sequential(
                nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, projection)
            )
        self.classifier = nn.Linear(projection or 512, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.stage4(self.stage3(self.stage2(self.stage1(self.stem(inputs)))))
        return self.classifier(self.projection(self.pool(hidden)))  # type: ignore[no-any-return]


def _stage(inputs: int, outputs: int, stride: int, groups: int) -> nn.Module:
    return nn.Sequential(
        _Residual(inputs, outputs, stride, groups), _Residual(outputs, outputs, 1, groups)
    )


MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "resnet18-gn": ResNet18,
}


def build(name: str, *, shape: Sequence[int], classes: int, **options: int) -> nn.Module:
    """The model of that name for inputs of this shape (without the batch axis)."""
    require_choice("build", "name", name, MODELS)
    require(classes >= 2, "build", "classes >= 2", classes)
    return MODELS[name](shape, classes, **options)


def classifier(model: nn.Module) -> nn.Module | None:
    """The layer whose input are the features: `model.classifier`, or the last linear layer."""
    named = getattr(model, "classifier", None)
    if isinstance(named, nn.Module):
        return named
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None


def block_names(model: nn.Module) -> list[str]:
    """Children with parameters, those that `model.blocks` names first."""
    has_parameters = {name.split(".", 1)[0] for name, _ in model.named_parameters()}
    children = [name for name, _ in model.named_children() if name in has_parameters]
    first = [name for name in getattr(model, "blocks", ()) if name in children]
    return first or children


def require_features(who: str, model: nn.Module) -> None:
    head = classifier(model)
    body = 0 if head is None else sum(1 for _ in model.parameters()) - len(list(head.parameters()))
    if body <= 0:
        raise ValueError(
            f"{who} needs a model with features before its classifier, got "
            f"{type(model).__name__} without; use one with a hidden layer or a projection head."
        )


def require_blocks(who: str, model: nn.Module) -> None:
    names = block_names(model)
    trained = {name.split(".", 1)[0] for name, p in model.named_parameters() if p.requires_grad}
    levels = len(trained.intersection(names)) + bool(trained.difference(names))
    if levels < 2:
        raise ValueError(
            f"{who} needs a model of two or more trained blocks, got {type(model).__name__} with "
            f"{levels}; make it a chain of children or name them in `blocks`."
        )
