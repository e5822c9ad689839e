"""FedAvg: the point that it converges to on quadratics, its rate there, and its noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from undrift.theory import quadratic
from undrift.theory.noise import work
from undrift.theory.quadratic import Floats


def fixed_point(
    A: ArrayLike,
    b: ArrayLike,
    *,
    lr: float,
    steps: Sequence[int],
    weights: Sequence[float] | None = None,
) -> Floats:
    """Return [sum w_i Psi_i]^-1 sum w_i Psi_i b_i with Psi_i = I - (I - lr A_i)^K_i.

    As lr -> 0 it is the argmin of sum_i w_i K_i F_i, to which Theorem 4.1 of the thesis applies.
    """
    matrices, minima = quadratic.problem(A, b)
    w = work(steps, weights)
    progress = quadratic.local_progress(matrices, lr, w.steps)
    return quadratic.weighted_point(w.weights[:, None, None] * progress, minima)


def rate(
    A: ArrayLike, *, lr: float, steps: Sequence[int], weights: Sequence[float] | None = None
) -> float:
    """Return the factor by which a round contracts, the spectral radius of its linear map."""
    matrices = np.asarray(A, dtype=float)
    w = work(steps, weights)
    progress = quadratic.local_progress(matrices, lr, w.steps)
    step = np.eye(matrices.shape[-1]) - np.tensordot(w.weights, progress, 1)
    return float(np.abs(np.linalg.eigvals(step)).max())


def noise(*, steps: Sequence[int], weights: Sequence[float] | None = None) -> float:
    """Return sum_i w_i^2 K_i, the variance that a round adds in (lr sigma)^2, for small lr."""
    w = work(steps, weights)
    return float((w.weights**2 * w.steps).sum())
