"""The layers that kernels know, with their shapes and their places in the flat vector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from undrift.errors import UnsupportedError as UnsupportedError

# Seconds that a compiler takes for a library, and for each of its layers.
LIBRARY_SECONDS, MATRIX_SECONDS, CONVOLUTION_SECONDS = 0.25, 0.5, 1.0

Shape = tuple[int, ...]
IntPair = tuple[int, int]  # of height and width


@dataclass(frozen=True)
class Convolution:
    """Describes a two-dimensional convolution."""

    shape: Shape  # of the input: channels, height, width
    out: Shape
    kernel: IntPair
    stride: IntPair
    padding: IntPair
    weight: int  # place in the flat vector
    bias: int | None


@dataclass(frozen=True)
class Matrix:
    """Describes a linear layer."""

    shape: Shape
    out: Shape
    weight: int
    bias: int | None


@dataclass(frozen=True)
class Activation:
    """Describes a function that is applied to each number."""

    shape: Shape
    kind: str  # "Relu", "Tanh" or "Sigmoid"

    @property
    def out(self) -> Shape:
        """Return the shape of the output."""
        return self.shape


@dataclass(frozen=True)
class Pooling:
    """Describes a layer that takes the largest number or the mean of each window."""

    shape: Shape
    out: Shape
    kind: str  # "max" or "avg"
    kernel: IntPair
    stride: IntPair
    padding: IntPair
    border_counts: bool = False  # whether an average counts the zeros around the image


@dataclass(frozen=True)
class Drop:
    """Describes a dropout layer in training."""

    shape: Shape
    p: float
    channels: bool  # whether whole channels are dropped
    call: int  # index of this dropout call in a forward pass; it keys the masks

    @property
    def out(self) -> Shape:
        """Return the shape of the output."""
        return self.shape


@dataclass(frozen=True)
class Flatten:
    """Describes the change from an image to a row of numbers."""

    shape: Shape

    @property
    def out(self) -> Shape:
        """Return the shape of the output."""
        return (math.prod(self.shape),)


Layer = Convolution | Matrix | Activation | Pooling | Drop | Flatten


@dataclass(frozen=True)
class Chain:
    """Holds all that a kernel depends on."""

    layers: tuple[Layer, ...]
    inputs: Shape
    outputs: int
    loss: str  # "CrossEntropy", "BinaryLogistic" or "Squared"
    parameters: int

    @cached_property
    def labels(self) -> bool:
        """Return whether targets are classes, not numbers."""
        return self.loss == "CrossEntropy"

    @cached_property
    def draws(self) -> bool:
        """Return whether some layer draws random numbers."""
        return any(isinstance(layer, Drop) for layer in self.layers)

    @property
    def build_seconds(self) -> float:
        """Return about what compiling the kernel takes; it depends on the layers alone."""
        matrices = sum(isinstance(layer, Matrix) for layer in self.layers)
        convolutions = sum(isinstance(layer, Convolution) for layer in self.layers)
        return LIBRARY_SECONDS + MATRIX_SECONDS * matrices + CONVOLUTION_SECONDS * convolutions

    @property
    def products(self) -> int:
        """Return the multiplications of a sample's gradient: forward, to weights and to inputs."""
        total = 0
        for i, layer in enumerate(self.layers):
            if isinstance(layer, Convolution):
                taps = layer.shape[0] * math.prod(layer.kernel)
            elif isinstance(layer, Matrix):
                taps = layer.shape[0]
            else:
                continue
            first = not any(isinstance(each, Convolution | Matrix) for each in self.layers[:i])
            total += (2 if first else 3) * taps * math.prod(layer.out)
        return total
