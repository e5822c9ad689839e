"""Merges in full precision: the mean, and the largest entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from numpy.random import Generator
from torch import Tensor

from undrift.core import Merge, Vector


@dataclass(frozen=True)
class Mean(Merge):
    """The result is the mean, in full precision."""

    lossy = False
    backend: ClassVar[Literal["mean", "max"] | None] = "mean"
    draws = frozenset[str]()

    def start(self, v: Vector, rng: Generator) -> Vector:
        """Return a worker's own share."""
        return v

    def send(self, share: Vector, count: int, rng: Generator) -> Tensor:
        """Return the bytes of a share."""
        return bytes_of(share)

    def receive(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the share whose bytes came."""
        return data.view(like.dtype)

    def merge(self, m: Vector, a: int, n: Vector, b: int, prepared: Any) -> Vector:
        """Return the share that combines two shares."""
        # A share of several workers is a sum that nobody else holds.
        if a > 1:
            return m.add_(n)
        return n.add_(m) if b > 1 else m + n

    def encode_result(self, share: Vector, count: int, rng: Generator) -> Tensor:
        """Return the bytes of the result."""
        return bytes_of(share.div_(count) if count > 1 else share)

    def decode_result(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the result whose bytes came."""
        return data.view(like.dtype)

    def nbytes(self, like: Vector, count: int, *, result: bool) -> int:
        """Return the length of a message or of the result."""
        return len(like) * like.element_size()


@dataclass(frozen=True)
class Largest(Mean):
    """The result is the largest entry of any worker, coordinate by coordinate."""

    backend = "max"

    def merge(self, m: Vector, a: int, n: Vector, b: int, prepared: Any) -> Vector:
        """Return the share that combines two shares."""
        return torch.maximum(m, n)

    def encode_result(self, share: Vector, count: int, rng: Generator) -> Tensor:
        """Return the bytes of the result."""
        return bytes_of(share)


def bytes_of(v: Vector) -> Tensor:
    """Return the bytes of v, in v's own memory where it is dense."""
    dense = v.contiguous()
    # One coordinate of a strided vector counts as contiguous and still cannot be viewed as bytes.
    if dense.stride(0) != 1:
        dense = dense.clone(memory_format=torch.contiguous_format)
    return dense.view(torch.uint8)
