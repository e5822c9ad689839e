"""Unequal local work: the numbers of steps and weights that closed forms of noise take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undrift.check import require

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LocalWork:
    """Holds each client's steps K_i, its weight w_i (summing to one) and K-bar = sum_i w_i K_i."""

    steps: Floats
    weights: Floats
    mean: float


def work(steps: Sequence[int], weights: Sequence[float] | None) -> LocalWork:
    """Return the work of clients with these steps; weights are uniform by default."""
    K = np.asarray(steps, dtype=float)
    require(K.ndim == 1 and len(K) > 0, "steps", "one number for each client", steps)
    require(bool((K >= 1).all()), "steps", "K_i >= 1", float(K.min()))
    w = np.full(len(K), 1 / len(K)) if weights is None else np.asarray(weights, dtype=float)
    require(w.shape == K.shape, "weights", f"{len(K)} weights", w.size)
    require(bool((w > 0).all()), "weights", "weights > 0", float(w.min()))
    w = w / w.sum()
    return LocalWork(K, w, float(w @ K))


def floor(
    variance: float, *, lr: float, sigma: float, curvature: float, mean_steps: float
) -> float:
    """Return the stationary E||x - x*||^2 on F = a/2 ||x - x*||^2, for small lr a K-bar.

    A round contracts the error by 1 - lr a K-bar and adds (lr sigma)^2 times `variance`, which
    `fedavg.noise`, `fednova.noise`, `scaffold.noise` and `fedagrac.noise` return.
    """
    return lr * sigma**2 * variance / (2 * curvature * mean_steps)
