"""FedNova: the point that it converges to on quadratics, and the noise that unequal steps cost."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Return the x with sum_i (w_i / K_i) Psi_i (x - b_i) = 0, the optimum as lr -> 0."""
    matrices, minima = quadratic.problem(A, b)
    w = work(steps, weights)
    progress = quadratic.local_progress(matrices, lr, w.steps)
    return quadratic.weighted_point((w.weights / w.steps)[:, None, None] * progress, minima)


def noise(*, steps: Sequence[int], weights: Sequence[float] | None = None) -> float:
    """Return K-bar^2 sum_i w_i^2 / K_i, the variance that a round adds in (lr sigma)^2.

    FedAvg adds sum_i w_i^2 K_i. With equal weights the quotient is K-bar mean(1 / K_i): where all
    but one huge client make one step, FedNova has K-bar times the noise.
    """
    w = work(steps, weights)
    return float(w.mean**2 * (w.weights**2 / w.steps).sum())
