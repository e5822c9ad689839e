"""The loss on the plane through three models, as in FedACG's Fig. 2a.

The plane of a, b and c has the first at the origin, e_1 along b - a and e_2 along what c - a has
beside e_1 (Gram-Schmidt), so that distances in the picture are those between the models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.check import is_whole, require, require_nonnegative
from undrift.core import Vector
from undrift.data.clients import Clients, Pair
from undrift.engine.run import Run

Floats = NDArray[np.float64]
_FLAT = 1e-6  # sine of the angle below which three models count as lying on a line


@dataclass(frozen=True)
class Surface:
    """Holds losses on a plane, `losses[i, j]` at (u[j], v[i]); the first model is the origin."""

    u: Floats  # (size,)
    v: Floats  # (size,)
    losses: Floats  # (size, size)
    points: Floats  # (3, 2) the three models
    mean: Floats  # (2,) of the three


def surface(
    models: Sequence[Vector],
    loss: Callable[[Vector], float],
    *,
    size: int = 25,
    margin: float = 0.2,
) -> Surface:
    """Return size^2 losses on a grid around three models; `margin` is relative to their extent."""
    require(is_whole(size) and size >= 2, "surface", "size >= 2, a whole number", size)
    require_nonnegative("surface", margin=margin)
    origin, basis, points = _plane(models)
    u, v = (_around(side, size, margin) for side in points.T)
    losses = np.empty((size, size))
    for i, j in np.ndindex(size, size):
        place = torch.tensor([u[j], v[i]], dtype=basis.dtype, device=basis.device)
        losses[i, j] = float(loss((origin + place @ basis).to(models[0].dtype)))
    return Surface(u, v, losses, points, points.mean(0))


def _plane(models: Sequence[Vector]) -> tuple[Tensor, Tensor, Floats]:
    """Return origin, orthonormal basis (2, D) and the models' coordinates (3, 2)."""
    shapes = [tuple(each.shape) for each in models]
    alike = len(shapes) == 3 and shapes[0] == shapes[1] == shapes[2] and len(shapes[0]) == 1
    require(alike, "surface", "three vectors of one length", shapes)
    finite = all(bool(each.isfinite().all()) for each in models)
    require(finite, "surface", "finite models", "NaN or Inf")
    a, b, c = (each.detach().double() for each in models)
    along, other = b - a, c - a
    width, reach = (float(torch.linalg.vector_norm(each)) for each in (along, other))
    e1 = along / width if width > 0 else along
    aside = other - (other @ e1) * e1
    aside = aside - (aside @ e1) * e1  # rounding leaves some e_1 in a thin triangle
    height = float(torch.linalg.vector_norm(aside))
    apart = width > 0 and height > _FLAT * reach
    remedy = "three on a line have no plane"
    require(apart, "surface", "models that span a plane", f"sides {width:g}, {reach:g}", remedy)
    points = np.array([[0.0, 0.0], [width, 0.0], [float(other @ e1), height]])
    return a, torch.stack([e1, aside / height]), points


def _around(coordinates: Floats, size: int, margin: float) -> Floats:
    """Return coordinates of the grid along one side."""
    low, high = coordinates.min(), coordinates.max()
    rim = margin * (high - low)
    return np.linspace(low - rim, high + rim, size)


def loss_of(run: Run, data: Pair | None = None) -> Callable[[Vector], float]:
    """Return a function from parameters to the loss on (inputs, targets).

    Without data it is the loss on what the run evaluates. Samples are prepared as those of the
    run's clients.
    """
    if data is None:
        return lambda x: run.score(x, alone=True).loss
    evaluator = replace(run.evaluator(alone=True), clients=Clients([data]), population=np.ones(1))
    return lambda x: evaluator.score(x).loss
