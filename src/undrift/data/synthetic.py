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


@dataclass(frozen=True)
class KnownConstants:
    """Holds F_i(x) = 1/2 (x - b_i)' A (x - b_i) with additive noise, all constants being exact.

    One matrix A for all makes grad F_i - grad F the same everywhere. A sample adds <xi, x> to F_i,
    so that the gradient of a single one has the variance sigma^2 at every x.
    """

    clients: Clients
    A: Tensor  # (d,) the diagonal, from L to mu
    b: Tensor  # (N, d)
    L: float
    mu: float
    sigma: float
    zeta: float

    def model(self, x0: Tensor | None = None) -> nn.Module:
        """Return the model at x0, by default at zero."""
        return _Additive(torch.zeros_like(self.A) if x0 is None else x0)

    @staticmethod
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of the outputs, which are the samples' values."""
        return outputs.mean()

    def optimum(self) -> Tensor:
        """Return the minimum of F with equal weights."""
        return self.b.mean(0)

    def gradient(self, x: Tensor) -> Tensor:
        """Return grad F at x, or at every row of x."""
        return self.A * (x - self.optimum())

    def gap(self, x: Tensor) -> float:
        """Return F(x) - F*."""
        return float(0.5 * (self.A * (x - self.optimum()).square()).sum())


class _Additive(nn.Module):
    """Returns 1/2 (x - b)' A (x - b) + <xi, x> for samples (xi, b, diagonal of A)."""

    def __init__(self, x0: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x0.clone())

    def forward(self, samples: Tensor) -> Tensor:
        xi, b, diagonal = samples.chunk(3, dim=1)
        values: Tensor = (0.5 * diagonal * (self.x - b).square() + xi * self.x).sum(1, keepdim=True)
        return values


def known_constants(
    clients: int = 4,
    dim: int = 4,
    *,
    L: float = 1.0,
    mu: float = 0.1,
    sigma: float = 1.0,
    zeta: float = 1.0,
    samples: int = 256,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> KnownConstants:
    """Return quadratics whose L, mu, sigma (of one sample) and zeta are exactly these.

    A has eigenvalues from L to mu in equal steps, and the optimum of F has norm one.
    """
    require(clients >= 1 and dim >= 1, "known_constants", "clients and dim >= 1", (clients, dim))
    require(0 < mu <= L, "known_constants", "0 < mu <= L", (mu, L))
    require(samples >= 2, "known_constants", "samples >= 2", samples)
    require_nonnegative("known_constants", sigma=sigma, zeta=zeta)
    rng = keyed.generator(seed, "known constants")
    A = np.linspace(L, mu, dim)
    shift = rng.normal(size=(clients, dim))
    shift -= shift.mean(0)
    spread = np.sqrt(np.square(A * shift).sum(1).mean())
    shift *= zeta / spread if spread > 0 else 0.0
    centre = rng.normal(size=dim)
    b = centre / np.linalg.norm(centre) + shift
    xi = rng.normal(size=(clients, samples, dim))
    xi -= xi.mean(1, keepdims=True)
    xi *= sigma / np.sqrt(np.square(xi).sum(2).mean(1))[:, None, None]
    rows = [
        np.hstack([noise, *(np.tile(row, (samples, 1)) for row in (b_i, A))])
        for noise, b_i in zip(xi, b, strict=True)
    ]
    empty = torch.zeros(samples, 1, dtype=dtype)
    return KnownConstants(
        Clients([(torch.tensor(row, dtype=dtype), empty) for row in rows]),
        torch.tensor(A, dtype=dtype),
        torch.tensor(b, dtype=dtype),
        L,
        mu,
        sigma,
        zeta if clients > 1 else 0.0,
    )
