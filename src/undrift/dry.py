"""An objective that is zero everywhere, to see what form a method gives its states and uploads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from undrift.core import Outputs, Vector


class ZeroObjective:
    """F = 0, as an `Objective`."""

    t, k = 0, 0

    def __init__(self, x: Vector) -> None:
        self.level = torch.zeros_like(x, dtype=torch.int64)

    def __call__(self, x: Vector) -> Tensor:
        return x.new_zeros(())

    def grad(self, x: Vector) -> Vector:
        return torch.zeros_like(x)

    def outputs(self, x: Vector) -> Outputs:
        return Outputs(*(x.new_zeros((1, 1)) for _ in Outputs._fields))

    def plus(self, term: Callable[[Vector], Tensor]) -> Self:
        return self
