"""DSGD: the biased point that it converges to on quadratics, and the largest stable step."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from undrift.check import require, require_positive
from undrift.theory import quadratic
from undrift.theory.judgement import Condition, Constants, at_most
from undrift.theory.quadratic import Floats


def conditions(constants: Constants, *, lr: float, W: ArrayLike) -> tuple[Condition, ...]:
    """Return lr <= (1 + w_min) / L, below which W - lr A is a contraction for every A <= L."""
    require_positive("dsgd", lr=lr)
    least = float(np.linalg.eigvalsh(np.asarray(W, dtype=float))[0])
    limit = (1 + least) / constants.L
    return (at_most("lr <= (1 + w_min) / L", lr, limit, "Yuan, Ling, Yin 2016", constants),)


def fixed_point(A: ArrayLike, b: ArrayLike, *, lr: float, W: ArrayLike) -> Floats:
    """Return (m, d) the X with X = W X - lr A (X - b): neither a consensus nor the optimum."""
    matrices, minima = quadratic.problem(A, b)
    mix, diagonal = mixing(W, *minima.shape), quadratic.stacked(matrices)
    left = np.eye(len(mix)) - mix + lr * diagonal
    point = np.linalg.solve(left, lr * diagonal @ minima.ravel()).reshape(minima.shape)
    return np.asarray(point, dtype=float)


def mixing(W: ArrayLike, nodes: int, dim: int) -> Floats:
    """Return W as a matrix on the stacked vectors of all nodes."""
    matrix = np.asarray(W, dtype=float)
    require(matrix.shape == (nodes, nodes), "W", f"a matrix of {nodes} x {nodes}", matrix.shape)
    mixed: Floats = np.kron(matrix, np.eye(dim))
    return mixed
