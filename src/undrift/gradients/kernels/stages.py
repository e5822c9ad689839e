"""Stages of images: which layers of a chain are computed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from undrift.gradients.kernels.layers import (
    Activation,
    Convolution,
    Drop,
    Layer,
    Pooling,
    Shape,
)


@dataclass(frozen=True)
class ImageStage:
    """Holds layers that are computed together: a convolution and those after it, or one layer."""

    layers: tuple[Layer, ...]

    @property
    def shape(self) -> Shape:
        """Return the shape of the input."""
        return self.layers[0].shape

    @property
    def out(self) -> Shape:
        """Return the shape of the output."""
        return self.layers[-1].out

    def first(self, kind: type[Layer]) -> Layer | None:
        """Return the first layer of a kind, or None."""
        return next((layer for layer in self.layers if isinstance(layer, kind)), None)


def stages_of(layers: Sequence[Layer]) -> list[ImageStage]:
    """Return the stages of a chain; a convolution takes along layers that commute with max pooling.

    A rectifier and a dropout of whole channels commute, in any order. They only need the largest
    number of a window and its place, so the numbers in front of the pooling are never stored.
    """
    stages: list[ImageStage] = []
    rest = list(layers)
    while rest:
        taken = [rest.pop(0)]
        if isinstance(taken[0], Convolution):
            while rest and _joins(taken, rest[0]):
                taken.append(rest.pop(0))
        stages.append(ImageStage(tuple(taken)))
    return stages


def _joins(taken: Sequence[Layer], layer: Layer) -> bool:
    """Return whether a layer can be computed together with the convolution before it."""
    if isinstance(layer, Activation) and layer.kind != "Relu":
        return len(taken) == 1
    if any(isinstance(each, Activation) and each.kind != "Relu" for each in taken):
        return False
    if isinstance(layer, Drop) and not layer.channels:
        return False
    if isinstance(layer, Pooling) and layer.kind != "max":
        return False
    joining = isinstance(layer, Activation | Drop | Pooling)
    return joining and not any(type(each) is type(layer) for each in taken)
