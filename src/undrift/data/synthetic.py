"""Heterogeneous least squares with known optima, on which closed forms are tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from undrift import keyed
from undrift.check import require, require_nonnegative
from undrift.data.clients import Clients


@dataclass(frozen=True)
class Quadratics:
    """Holds F_i(x) = 1/2 (x - b_i)' A_i (x - b_i), as least squares on each client's samples."""

    clients: Clients
    A: Tensor  # (N, d, d)
    b: Tensor  # (N, d)

    def model(self) -> nn.Module:
        """Return a linear model at x = 0."""
        linear = nn.Linear(self.b.shape[1], 1, bias=False, dtype=self.b.dtype)
        nn.init.zeros_(linear.weight)
        return linear

    @staticmethod
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        """Return half the mean squared error, so that its gradient is A_i (x - b_i)."""
        return 0.5 * nn.functional.mse_loss(outputs, targets)

    def optimum(self, weights: Sequence[float] | Tensor | None = None) -> Tensor:
        """Return the argmin of sum_i w_i F_i; weights are uniform by default."""
        w = torch.as_tensor(
            [1.0] * len(self.clients) if weights is None else weights, dtype=self.A.dtype
        )
        lhs = torch.einsum("i,ijk->jk", w, self.A)
        rhs = torch.einsum("i,ijk,ik->j", w, self.A, self.b)
        solution: Tensor = torch.linalg.solve(lhs, rhs)
        return solution


def quadratics(
    clients: int = 5,
    dim: int = 3,
    *,
    samples: int | Sequence[int] = 16,
    heterogeneity: float = 1.0,
    condition: float = 10.0,
    noise: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Quadratics:
    """Return random positive-definite clients with eigenvalues in [1 / condition, 1].

    Each client has `samples` (one number for all or one each, at least `dim`). `heterogeneity`
    scales the distances between the local optima b_i. `noise` adds residuals orthogonal to the
    design, which make minibatch gradients noisy and leave A_i and b_i as they are.
    """
    require(clients >= 1, "quadratics", "clients >= 1", clients)
    require(dim >= 1, "quadratics", "dim >= 1", dim)
    require(condition >= 1, "quadratics", "condition >= 1", condition)
    require_nonnegative("quadratics", heterogeneity=heterogeneity, noise=noise)
    sizes = [samples] * clients if isinstance(samples, int) else list(samples)
    require(len(sizes) == clients, "quadratics", f"{clients} sample sizes", len(sizes))
    require(min(sizes) >= dim, "quadratics", f"at least dim = {dim} samples each", min(sizes))
    rng = keyed.generator(seed, "quadratics")
    pairs, matrices, optima = [], [], []
    for n in sizes:
        basis, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
        eigenvalues = condition ** -rng.random(dim)
        frame, _ = np.linalg.qr(rng.normal(size=(n, n)))
        design = np.sqrt(n) * frame[:, :dim] * np.sqrt(eigenvalues) @ basis.T  # (n, d)
        b = heterogeneity * rng.normal(size=dim)
        residual = frame[:, dim:] @ rng.normal(size=n - dim) * noise
        pairs.append((torch.tensor(design), torch.tensor(design @ b + residual)[:, None]))
        matrices.append(basis * eigenvalues @ basis.T)
        optima.append(b)
    return Quadratics(
        Clients([(inputs.to(dtype), targets.to(dtype)) for inputs, targets in pairs]),
        torch.tensor(np.stack(matrices), dtype=dtype),
        torch.tensor(np.stack(optima), dtype=dtype),
    )
