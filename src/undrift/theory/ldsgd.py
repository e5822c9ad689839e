"""LD-SGD: the point that it converges to on quadratics, further from the optimum than DSGD's."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from undrift.check import require
from undrift.theory import quadratic
from undrift.theory.dsgd import mixing
from undrift.theory.quadratic import Floats


def fixed_point(A: ArrayLike, b: ArrayLike, *, lr: float, steps: int, W: ArrayLike) -> Floats:
    """Return (m, d) the X after K - 1 local steps that one DSGD step and they reproduce.

    With T = (I - lr A)^(K-1) it solves [I - T (W - lr A)] X = T lr A b + (I - T) b.
    """
    require(steps >= 1, "ldsgd.fixed_point", "steps >= 1", steps)
    matrices, minima = quadratic.problem(A, b)
    mix, diagonal = mixing(W, *minima.shape), quadratic.stacked(matrices)
    identity, flat = np.eye(len(mix)), minima.ravel()
    local = np.linalg.matrix_power(identity - lr * diagonal, steps - 1)
    right = local @ (lr * diagonal @ flat) + (identity - local) @ flat
    return np.linalg.solve(identity - local @ (mix - lr * diagonal), right).reshape(minima.shape)
