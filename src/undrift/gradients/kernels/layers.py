"""The layers that kernels know, with their shapes and places in the flat vector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

Shape = tuple[int, ...]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Convolution:
    shape: Shape  # of the input: channels, height, width
    out: Shape
    kernel: Pair
    stride: Pair
    padding: Pair
    weight: int  # place in the flat vector
    bias: int | None


@dataclass(frozen=True)
class Matrix:
    shape: Shape
    out: Shape
    weight: int
    bias: int | None


@dataclass(frozen=True)
class Activation:
    shape: Shape
    kind: str  # "Relu", "Tanh" or "Sigmoid"

    @property
    def out(self) -> Shape:
        return self.shape


@dataclass(frozen=True)
class Pooling:
    shape: Shape
    out: Shape
    kind: str  # "max" or "avg"
    kernel: Pair
    stride: Pair
    padding: Pair
    border_counts: bool = False  # whether an average divides by what lies outside as well


@dataclass(frozen=True)
class Drop:
    shape: Shape
    p: float
    channels: bool  # whether whole channels are dropped
    call: int  # the how-manieth dropout of a forward pass it is, as their masks are keyed

    @property
    def out(self) -> Shape:
        return self.shape


@dataclass(frozen=True)
class Flat:
    shape: Shape

    @property
    def out(self) -> Shape:
        return (math.prod(self.shape),)


Layer = Convolution | Matrix | Activation | Pooling | Drop | Flat


@dataclass(frozen=True)
class Chain:
    """All that a kernel depends on."""

    layers: tuple[Layer, ...]
    inputs: Shape
    outputs: int
    loss: str  # "CrossEntropy", "BinaryLogistic" or "Squared"
    parameters: int

    @cached_property
    def labels(self) -> bool:
        """Whether targets are classes, not numbers."""
        return self.loss == "CrossEntropy"

    @cached_property
    def draws(self) -> bool:
        return any(isinstance(layer, Drop) for layer in self.layers)

    @property
    def products(self) -> int:
        """Multiplications of a sample's gradient: forward, to the weights and to the inputs."""
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
