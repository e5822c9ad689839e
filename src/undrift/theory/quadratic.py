"""Closed forms on quadratics F_i(x) = 1/2 (x - b_i)' A_i (x - b_i), which the baselines share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from undrift.check import require
from undrift.theory.noise import work

Floats = NDArray[np.float64]


def problem(A: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats]:
    """Return the matrices (N, d, d) and minima (N, d) as arrays, checked."""
    matrices, minima = np.asarray(A, dtype=float), np.asarray(b, dtype=float)
    fits = matrices.ndim == 3 and matrices.shape == (*minima.shape, minima.shape[-1])
    require(fits, "A quadratic", "A (N, d, d) and b (N, d)", (matrices.shape, minima.shape))
    return matrices, minima


def optimum(A: ArrayLike, b: ArrayLike, weights: Sequence[float] | None = None) -> Floats:
    """Return the argmin of sum_i w_i F_i."""
    matrices, minima = problem(A, b)
    w = work([1] * len(minima), weights).weights
    return _solve(w[:, None, None] * matrices, minima)


def local_progress(A: Floats, lr: float, steps: Floats) -> Floats:
    """Return I - (I - lr A_i)^K_i for every client."""
    identity = np.eye(A.shape[-1])
    powers = [
        np.linalg.matrix_power(identity - lr * matrix, int(k))
        for matrix, k in zip(A, steps, strict=True)
    ]
    progress: Floats = identity - np.stack(powers)
    return progress


def weighted_point(matrices: Floats, minima: Floats) -> Floats:
    """Return the x with sum_i M_i (x - b_i) = 0."""
    return _solve(matrices, minima)


def stacked(matrices: Floats) -> Floats:
    """Return the block-diagonal matrix of the clients' matrices."""
    n, d, _ = matrices.shape
    full = np.zeros((n * d, n * d))
    for i, matrix in enumerate(matrices):
        full[i * d : (i + 1) * d, i * d : (i + 1) * d] = matrix
    return full


def _solve(matrices: Floats, minima: Floats) -> Floats:
    right = np.einsum("ijk,ik->j", matrices, minima)
    point: Floats = np.linalg.solve(matrices.sum(0), right)
    return point
