"""Quadratics with known minima, and what their theory needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

import undrift as ud
from undrift.gradients.task import Task
from undrift.models.layout import Layout


def bed(clients: int = 5, dim: int = 3, seed: int = 0, **options: Any) -> ud.data.Quadratics:
    """Return heterogeneous quadratics in float64 with known A_i, b_i and optimum."""
    return ud.data.quadratics(clients, dim, seed=seed, **options)


@dataclass(frozen=True)
class From(ud.data.Quadratics):
    """Holds quadratics that start at x0 instead of 0."""

    x0: Tensor

    def model(self) -> nn.Module:
        linear = super().model()
        nn.utils.vector_to_parameters(self.x0, linear.parameters())
        return linear


def gradients(problem: ud.data.Quadratics, x: Tensor) -> Tensor:
    """Return (N, D) grad F_i at x, or at row i of x."""
    return torch.einsum("ijk,ik->ij", problem.A, x - problem.b)


def weighted_sum(weights: Sequence[float], rows: Tensor) -> Tensor:
    """Return sum_i w_i rows_i."""
    return torch.tensordot(torch.tensor(weights, dtype=rows.dtype), rows, 1)


def pair_of_five(t: int) -> tuple[int, ...]:
    """Return two of five clients, every pair in turn; client 4 first comes in round 4."""
    return list(combinations(range(5), 2))[t % 10]


def task_of(model: nn.Module, loss: Any = nn.functional.cross_entropy, **options: Any) -> Task:
    """Return the task of a model as the engine would make it."""
    return Task(model, Layout.of(model), loss, **options)
