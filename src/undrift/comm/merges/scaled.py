"""Merges of stochastic signs with a norm: compressed at every hop, or once by every worker.

Cascade. C_1 = Q(v_1), C_m = Q(C_(m-1) + v_m) with SSDM's Q(v) = ||v|| s(v), where s_j = +1 with
probability 1/2 + v_j / (2 ||v||): unbiased, and its second moment grows like D^m. The norm is the
2-norm or the maximum norm, which is at most as large and leaves a smaller variance.

OwnNorm. sum_m Q(v_m): every worker compresses once. Vectors of different norms have no sum of whole
numbers, so a message has one bit a coordinate and a norm only while it stands for one worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from numpy.random import Generator
from torch import Tensor

from undrift.check import require_choice
from undrift.comm import bits
from undrift.comm.merges.exact import bytes_of
from undrift.core import Merge, Vector

Norm = Literal["l2", "inf"]


def require_norm(who: str, norm: str) -> None:
    """Refuse a norm whose name is not known."""
    require_choice(who, "norm", norm, get_args(Norm))


@dataclass(frozen=True)
class Cascade(Merge):
    """The result is the mean, compressed anew at every hop.

    A message has one norm, and a stochastic sign for each coordinate.
    """

    norm: Norm = "l2"
    draws = frozenset({"send", "close"})

    def __post_init__(self) -> None:
        require_norm("Cascade", self.norm)

    def start(self, v: Vector, rng: Generator) -> Vector:
        """Return a worker's own share."""
        return v

    def send(self, share: Vector, count: int, rng: Generator) -> Tensor:
        """Return the bytes of a share."""
        return _scaled_signs(share, norm_of(share, self.norm), rng)

    def receive(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the share whose bytes came."""
        return _from_scaled_signs(data, like)

    def merge(self, m: Vector, a: int, n: Vector, b: int, prepared: Any) -> Vector:
        """Return the share that combines two shares."""
        return m + n

    def decode_result(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the result whose bytes came."""
        return self.receive(data, count, like) / count

    def nbytes(self, like: Vector, count: int, *, result: bool) -> int:
        """Return the length of a message or of the result."""
        return like.element_size() - (-len(like) // 8)


@dataclass(frozen=True)
class OwnNorm(Merge):
    """The result is the mean of the workers' Q(v), each with the norm of its own piece.

    A message for one worker has a norm and a bit a coordinate, others have full precision.
    """

    norm: Norm = "l2"
    draws = frozenset({"start"})

    def __post_init__(self) -> None:
        require_norm("OwnNorm", self.norm)

    def start(self, v: Vector, rng: Generator) -> Vector:
        """Return a worker's own share."""
        return _from_scaled_signs(_scaled_signs(v, norm_of(v, self.norm), rng), v)

    def send(self, share: Vector, count: int, rng: Generator) -> Tensor:
        """Return the bytes of a share."""
        if count > 1:
            return bytes_of(share)
        return torch.cat([bytes_of(share[:1].abs().cpu()), bits.pack_signs(share)])

    def receive(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the share whose bytes came."""
        return data.view(like.dtype) if count > 1 else _from_scaled_signs(data, like)

    def merge(self, m: Vector, a: int, n: Vector, b: int, prepared: Any) -> Vector:
        """Return the share that combines two shares."""
        return m + n

    def encode_result(self, share: Vector, count: int, rng: Generator) -> Tensor:
        """Return the bytes of the result."""
        return self.send(share / count, count, rng)

    def decode_result(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the result whose bytes came."""
        return self.receive(data, count, like)

    def nbytes(self, like: Vector, count: int, *, result: bool) -> int:
        """Return the length of a message or of the result."""
        width = like.element_size()
        return len(like) * width if count > 1 else width - (-len(like) // 8)


def norm_of(v: Vector, norm: Norm) -> Tensor:
    """Return the 2-norm or the maximum norm of v."""
    return euclidean(v) if norm == "l2" else v.abs().max()


def euclidean(v: Vector) -> Tensor:
    """Return the 2-norm of v, also where squares would vanish or overflow."""
    largest = v.abs().max()
    scale = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    norm: Tensor = scale * torch.linalg.vector_norm(v / scale)
    return norm


def _scaled_signs(v: Vector, norm: Tensor, rng: Generator) -> Tensor:
    """Return the bytes of Q(v): the norm, and a stochastic sign for each coordinate."""
    head = bytes_of(norm.view(1).cpu())
    if not norm.isfinite():  # the norm travels, so that every worker sees the overflow
        return torch.cat([head, torch.zeros(-(-len(v) // 8)).byte()])
    return torch.cat([head, bits.pack_stochastic_signs(v, float(norm), rng)])


def _from_scaled_signs(data: Tensor, like: Vector) -> Vector:
    """Return the vector whose bytes `_scaled_signs` returned."""
    width = like.element_size()
    norm = float(data[:width].clone().view(like.dtype))
    return bits.unpack_signs(data[width:], len(like), like.dtype, scale=norm).to(like.device)
