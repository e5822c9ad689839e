"""The parts of a flat gradient, written where they belong instead of concatenated at the end.

Parameters are views of one vector, and torch would make their slopes one by one and copy all of
them once more. For a net of some million parameters that takes as long as a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from undrift.core import Vector


class Places:
    """Lends the memory of a leaf's gradient to whoever computes the slopes of a parameter.

    A place is lent once in a backward pass and for whole parameters only, so that nobody writes
    over slopes that are still needed. There is nothing to lend before the last backward pass, nor
    if the leaf is split more than once.
    """

    def __init__(self, leaf: Vector) -> None:
        self.leaf = leaf
        self._starts: dict[tuple[int, int], int] = {}  # by address and size of a parameter
        self._splits = 0
        self._open = False
        self._gradient: Vector | None = None
        self._finite = True  # what was copied; who writes in place has seen to it already

    def split(self, sizes: list[int]) -> tuple[Tensor, ...]:
        """Return the parts of the leaf, whose slopes come back as one vector."""
        self._splits += 1
        parts: tuple[Tensor, ...] = _Split.apply(self.leaf, sizes, self)  # type: ignore[no-untyped-call]
        starts = accumulate(sizes[:-1], initial=0)
        self._starts = {
            (part.data_ptr(), part.numel()): start
            for part, start in zip(parts, starts, strict=True)
        }
        return parts

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Open the places during the backward pass that ends in the leaf."""
        self._open = self._splits == 1
        try:
            yield
        finally:
            self._open = False

    def lend(self, parameter: Tensor) -> Tensor | None:
        """Return memory of the parameter's shape for its slopes, or None."""
        if not self._open:
            return None
        start = self._starts.pop((parameter.data_ptr(), parameter.numel()), None)
        if start is None:
            return None
        return self._flat()[start : start + parameter.numel()].view(parameter.shape)

    def collect(self, parts: tuple[Tensor | None, ...], sizes: list[int]) -> Vector:
        """Return the whole gradient; parts that were written elsewhere are copied."""
        gradient = self._flat()
        for part, place in zip(parts, torch.split(gradient, sizes), strict=True):
            if part is None:
                place.zero_()
            elif part.data_ptr() != place.data_ptr():
                place.copy_(part)
                self._finite &= math.isfinite(float(part.sum()))
        return gradient

    def is_finite(self, gradient: Vector) -> bool:
        """Return whether the leaf's gradient is finite."""
        if self._gradient is not None and self._gradient.data_ptr() == gradient.data_ptr():
            return self._finite
        return math.isfinite(float(gradient.sum()))

    @property
    def is_open(self) -> bool:
        """Return whether places are lent."""
        return self._open

    def _flat(self) -> Vector:
        if self._gradient is None:
            self._gradient = torch.empty_like(self.leaf)
        return self._gradient


class _Split(torch.autograd.Function):
    """Splits a vector as `torch.split` does."""

    @staticmethod
    def forward(ctx: Any, x: Vector, sizes: list[int], places: Places) -> tuple[Tensor, ...]:
        ctx.sizes, ctx.places = sizes, places
        ctx.set_materialize_grads(False)
        return torch.split(x, sizes)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor, None, None]:
        # Autograd is on in here only if the caller asks for a graph of the slopes.
        if ctx.places.is_open and not torch.is_grad_enabled():
            return ctx.places.collect(slopes, ctx.sizes), None, None
        leaf = ctx.places.leaf
        parts = (
            leaf.new_zeros(size) if slope is None else slope
            for slope, size in zip(slopes, ctx.sizes, strict=True)
        )
        return torch.cat(list(parts)), None, None
