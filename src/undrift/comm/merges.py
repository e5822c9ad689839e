"""Merges combine vectors in an all-reduce: exactly, as sums of signs, cascading, or by one bit.

Signs are bits: 1 for v >= 0, so that sign(0) = +1. A share or result is of one piece of the vector;
the routes of `routes.py` decide which pieces travel where.

SignSum. The number of +1 among r signs is one of 0, ..., r, so a message that stands for r workers
takes ceil(log2(r + 1)) bits a coordinate, or an Elias code of its distance from r // 2.

Cascade. C_1 = Q(v_1), C_m = Q(C_(m-1) + v_m) with SSDM's Q(v) = ||v|| s(v), where s_j = +1 with
probability 1/2 + v_j / (2 ||v||): unbiased, and its second moment grows like D^m. The norm is the
2-norm or the maximum norm, which is at most as large and leaves a smaller variance.

OwnNorm. sum_m Q(v_m): every worker compresses once. Vectors of different norms have no sum of whole
numbers, so a message has one bit a coordinate and a norm only while it stands for one worker.

OneBit. Marsit's operator: merging bits that stand for a and b workers keeps equal ones; of
different ones it takes the first with probability a / (a + b). By induction a coordinate ends as 1
with probability (number of workers whose bit is 1) / (number of workers), on any route. In the
thesis's form, (v AND w) OR ((v XOR w) AND t) with t ~ Bernoulli((m-1)/m if w = 0 else 1/m), m is
the hop's position on the ring (a = m - 1, b = 1), never the worker's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from undrift.check import require_choice
from undrift.comm import bits, elias
from undrift.core import Merge, Vector

Code = Literal["fixed", "gamma", "delta", "omega"]
Norm = Literal["l2", "inf"]


def require_code(who: str, code: str) -> None:
    """Refuse a code whose name is not known."""
    require_choice(who, "code", code, get_args(Code))


def require_norm(who: str, norm: str) -> None:
    """Refuse a norm whose name is not known."""
    require_choice(who, "norm", norm, get_args(Norm))


@dataclass(frozen=True)
class Mean(Merge):
    """The result is the mean, in full precision."""

    lossy = False
    backend: ClassVar[Literal["mean", "max"] | None] = "mean"
    draws = frozenset[str]()

    def start(self, v: Vector, rng: Generator) -> Vector:
        """Return a worker's own share."""
        return v

    def send(self, share: Vector, count: int, rng: Generator) -> Tensor:
        """Return the bytes of a share."""
        return _bytes_of(share)

    def receive(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the share whose bytes came."""
        return data.view(like.dtype)

    def merge(self, m: Vector, a: int, n: Vector, b: int, prepared: Any) -> Vector:
        """Return the share that combines two shares."""
        return m + n

    def encode_result(self, share: Vector, count: int, rng: Generator) -> Tensor:
        """Return the bytes of the result."""
        return _bytes_of(share / count)

    def decode_result(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the result whose bytes came."""
        return data.view(like.dtype)

    def nbytes(self, like: Vector, count: int, *, result: bool) -> int:
        """Return the length of a message or of the result."""
        return len(like) * like.element_size()


@dataclass(frozen=True)
class Largest(Mean):
    """The result is the largest entry of any worker, coordinate by coordinate."""

    backend = "max"

    def merge(self, m: Vector, a: int, n: Vector, b: int, prepared: Any) -> Vector:
        """Return the share that combines two shares."""
        return torch.maximum(m, n)

    def encode_result(self, share: Vector, count: int, rng: Generator) -> Tensor:
        """Return the bytes of the result."""
        return _bytes_of(share)


@dataclass(frozen=True)
class SignSum(Merge):
    """The result is the mean of the workers' signs, or with `vote` the sign of most (ties: +1).

    `code` is how partial sums travel: with "fixed" width or in an Elias code. With `stochastic` a
    worker's sign is +1 with probability (1 + v_j) / 2, for |v_j| <= 1.
    """

    code: Code = "fixed"
    vote: bool = False
    stochastic: bool = False

    def __post_init__(self) -> None:
        require_code("SignSum", self.code)

    @property
    def draws(self) -> frozenset[str]:
        """Return the operations that draw random numbers."""
        return frozenset({"start"} if self.stochastic else ())

    def start(self, v: Vector, rng: Generator) -> NDArray[np.int32]:
        """Return a worker's own share."""
        packed = bits.pack_stochastic_signs(v, 1.0, rng) if self.stochastic else bits.pack_signs(v)
        return bits.counts_of(packed, len(v))

    def send(self, share: NDArray[np.int32], count: int, rng: Generator) -> Tensor:
        """Return the bytes of a share."""
        if self.code == "fixed":
            return bits.pack_counts(share, count.bit_length())
        return elias.encode(elias.fold(share, count), self.code)

    def receive(self, data: Tensor, count: int, like: Vector) -> NDArray[Any]:
        """Return the share whose bytes came."""
        if self.code == "fixed":
            return bits.unpack_counts(data, count.bit_length(), len(like))
        return elias.unfold(elias.decode(data, len(like), self.code), count)

    def merge(
        self, m: NDArray[np.int32], a: int, n: NDArray[np.int32], b: int, prepared: Any
    ) -> NDArray[np.int32]:
        """Return the share that combines two shares."""
        return m + n

    def encode_result(self, share: NDArray[np.int32], count: int, rng: Generator) -> Tensor:
        """Return the bytes of the result."""
        if self.vote:
            return bits.pack_counts((2 * share >= count).astype(np.int32), 1)
        return self.send(share, count, rng)

    def decode_result(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the result whose bytes came."""
        if self.vote:
            return bits.unpack_signs(data, len(like), like.dtype)
        ones = torch.from_numpy(self.receive(data, count, like))
        return (2 * ones - count).to(like.dtype) / count

    def nbytes(self, like: Vector, count: int, *, result: bool) -> int | None:
        """Return the length of a message or of the result."""
        if result and self.vote:
            return -(-len(like) // 8)
        return -(-len(like) * count.bit_length() // 8) if self.code == "fixed" else None


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
            return _bytes_of(share)
        return torch.cat([_bytes_of(share[:1].abs()).cpu(), bits.pack_signs(share)])

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


@dataclass(frozen=True)
class OneBit(Merge):
    """The result is one bit a coordinate, +1 in expectation as often as the workers' signs are."""

    draws = frozenset({"merge"})

    def start(self, v: Vector, rng: Generator) -> Tensor:
        """Return a worker's own share."""
        return bits.pack_signs(v)

    def send(self, share: Tensor, count: int, rng: Generator) -> Tensor:
        """Return the bytes of a share."""
        return share

    def receive(self, data: Tensor, count: int, like: Vector) -> Tensor:
        """Return the share whose bytes came."""
        return data

    def prepare(self, a: int, n: Tensor, b: int, rng: Generator) -> Tensor:
        """Return the random bits that will decide between two shares."""
        return bits.bernoulli(a, b, len(n), rng)

    def merge(self, m: Tensor, a: int, n: Tensor, b: int, prepared: Tensor) -> Tensor:
        """Return the share that combines two shares."""
        return bits.choose(m, n, prepared)

    def decode_result(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the result whose bytes came."""
        return bits.unpack_signs(data, len(like), like.dtype)

    def decode_result_into(self, out: Vector, data: Tensor, count: int) -> None:
        """Write the result into `out`."""
        bits.unpack_signs_into(out, data)

    def nbytes(self, like: Vector, count: int, *, result: bool) -> int:
        """Return the length of a message or of the result."""
        return -(-len(like) // 8)


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
    head = _bytes_of(norm.view(1)).cpu()
    if not norm.isfinite():  # the norm travels, so that every worker sees the overflow
        return torch.cat([head, torch.zeros(-(-len(v) // 8)).byte()])
    return torch.cat([head, bits.pack_stochastic_signs(v, float(norm), rng)])


def _from_scaled_signs(data: Tensor, like: Vector) -> Vector:
    """Return the vector whose bytes `_scaled_signs` returned."""
    width = like.element_size()
    norm = float(data[:width].clone().view(like.dtype))
    return bits.unpack_signs(data[width:], len(like), like.dtype, scale=norm)


def _bytes_of(v: Vector) -> Tensor:
    dense = v.contiguous()
    # One coordinate of a strided vector counts as contiguous and still cannot be viewed as bytes.
    if dense.stride(0) != 1:
        dense = dense.clone(memory_format=torch.contiguous_format)
    return dense.view(torch.uint8)
