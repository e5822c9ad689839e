"""Codecs: a vector as the buffers that really travel, and back.

QSGD. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
NeurIPS 2017; with 8 bits the quantiser of FedPAQ, Reisizadeh et al., AISTATS 2020.

    u_j = s |v_j| / ||v||_2;  l_j = floor(u_j) + Bernoulli(u_j - floor(u_j))
    Q(v)_j = ||v||_2 sign(v_j) l_j / s

Its error grows with the number of coordinates that share a norm, so the paper cuts v into buckets
with a norm each: here `bucket` coordinates in a row, or the model's tensors.

ScaledSign. Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019:  Q(v) = (||v||_1 / D) sign(v), with sign(0) = +1.

TopK. Stich et al., "Sparsified SGD with Memory", NeurIPS 2018: the k entries largest in magnitude;
of equal ones the first.

What `encode` returns is the wire: its bytes are the bytes sent, and `decode` reads nothing else.
Floats on the wire (norm, scale, values) have the vector's own dtype, so that a float64 model stays
one. All is tensor arithmetic without branches on values and works under `vmap`. A vector with a NaN
or Inf decodes to one that is not finite, so that the engine still finds the client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from undrift.check import is_whole, require
from undrift.core import Draw, Vector
from undrift.field_help import documented
from undrift.optim.schedules import Schedule

MOST_LEVELS = 2**24  # float32 has no finer ones


class Wire(NamedTuple):
    """A wire holds one vector as it travels."""

    numbers: Tensor  # floats: a norm or one for each bucket, a scale, the values kept
    code: Tensor  # packed uint8, or int32 indices
    # (D, 0), or (n, 0) for each tensor: no bytes; shapes tell the sizes, which both ends know.
    frame: Tensor | tuple[Tensor, ...]


@runtime_checkable
class Codec(Protocol):
    """A codec turns a vector into the buffers that travel, and back."""

    def encode(self, v: Vector, draw: Draw, sizes: Sequence[int] = ()) -> Wire:
        """Return the buffers of v; `draw` gives the uniforms of a random codec.

        `sizes` are those of the model's tensors, which lie in v one after the other; none make v
        one tensor.
        """
        ...

    def decode(self, wire: Wire) -> Vector:
        """Return the vector that the buffers stand for."""
        ...

    def error(self, size: int) -> float:
        """Return a bound of E||v - decode(encode(v))||^2 / ||v||^2 for vectors of this size."""
        ...


@documented
@dataclass(frozen=True)
class QSGD:
    """Rounds stochastically and without bias to s levels of the norm, with 8 bits by default."""

    bits: int | Schedule | None = None
    """Bits of a coordinate, from 2 to 25, which give s = 2**(bits - 1) - 1 levels."""
    levels: int | Schedule | None = None
    """Number s of levels, from 1 to 2**24, instead of bits."""
    bucket: int | Literal["tensor"] | None = None
    """Coordinates that share a norm: so many in a row, or those of each "tensor" of the model; none
    has one norm for all."""

    def __post_init__(self) -> None:
        whole = is_whole(self.bucket) and self.bucket >= 1  # type: ignore[operator]
        remedy = "leave it out for one norm"
        sound = whole or self.bucket in (None, "tensor")
        require(sound, "QSGD", 'bucket >= 1, a whole number, or "tensor"', self.bucket, remedy)
        both = self.bits is not None and self.levels is not None
        require(not both, "QSGD", "bits or levels, not both", (self.bits, self.levels))
        if self.levels is not None:
            _require_whole("QSGD", "levels", self.levels, 1, MOST_LEVELS)
            return
        if self.bits is None:
            object.__setattr__(self, "bits", 8)
        _require_whole("QSGD", "bits", self.bits, 2, MOST_LEVELS.bit_length())

    @property
    def s(self) -> int:
        """Return the number of levels."""
        return int(self.levels) if self.levels is not None else 2 ** (int(self.bits or 8) - 1) - 1

    @property
    def width(self) -> int:
        """Return the bits per coordinate, ceil(log2(2 s + 1)), one of which is for the sign."""
        return 1 + self.s.bit_length()

    def encode(self, v: Vector, draw: Draw, sizes: Sequence[int] = ()) -> Wire:
        """Return the buffers of v."""
        norms, frame = self._norms(v, sizes)
        norm = self._per_coordinate(norms, frame)
        u = torch.where(norm > 0, v.abs() / norm * self.s, 0.0)  # zeros too where norm is NaN
        level = u.floor() + (draw("level", v) < u - u.floor())
        code = level.to(torch.int32) + ((v < 0).to(torch.int32) << (self.width - 1))
        return Wire(norms, pack_bits(code, self.width), frame)

    def decode(self, wire: Wire) -> Vector:
        """Return the vector that the buffers stand for."""
        norm, sign_bit = self._per_coordinate(wire.numbers, wire.frame), self.width - 1
        code = unpack_bits(wire.code, self.width, _length(wire.frame))
        size = norm * (code & (2**sign_bit - 1)).to(norm.dtype) / self.s
        return torch.where(code >> sign_bit > 0, -size, size)

    def error(self, size: int) -> float:
        """Return the bound of the relative squared error; it takes a tensor to be the whole."""
        whole = self.bucket is None or self.bucket == "tensor"
        shared = size if whole else min(size, int(self.bucket or size))
        return min(shared / self.s**2, math.sqrt(shared) / self.s)

    def _norms(self, v: Vector, sizes: Sequence[int]) -> tuple[Tensor, Tensor | tuple[Tensor, ...]]:
        """Return the norm, or that of each bucket, and the frame."""
        if self.bucket is None:
            return _norm(v), _frame(v)
        if self.bucket == "tensor":
            parts = torch.split(v, [n for n in sizes if n] or [v.shape[0]])
            return torch.stack([_norm(part) for part in parts]), tuple(map(_frame, parts))
        rows = torch.nn.functional.pad(v, (0, -v.shape[0] % self.bucket)).view(-1, self.bucket)
        return _norm(rows), _frame(v)

    def _per_coordinate(self, norms: Tensor, frame: Tensor | tuple[Tensor, ...]) -> Tensor:
        """Return the norm that each coordinate is divided by, or the one of all."""
        if self.bucket is None:
            return norms
        if isinstance(frame, tuple):
            parts = zip(norms.unbind(), frame, strict=True)
            return torch.cat([norm.expand(part.shape[0]) for norm, part in parts])
        return norms[:, None].expand(-1, int(self.bucket)).flatten()[: frame.shape[0]]


@dataclass(frozen=True)
class ScaledSign:
    """ScaledSign sends the mean magnitude and one bit per coordinate.

    It is biased and meant for error feedback.
    """

    def encode(self, v: Vector, draw: Draw, sizes: Sequence[int] = ()) -> Wire:
        """Return the buffers of v."""
        return Wire(v.abs().mean(), pack_bits((v >= 0).to(torch.int32), 1), _frame(v))

    def decode(self, wire: Wire) -> Vector:
        """Return the vector that the buffers stand for."""
        sign = 2 * unpack_bits(wire.code, 1, _length(wire.frame)) - 1
        return wire.numbers * sign.to(wire.numbers.dtype)

    def error(self, size: int) -> float:
        """Return the bound of the relative squared error."""
        return 1 - 1 / size


@documented
@dataclass(frozen=True)
class TopK:
    """Keeps the k entries largest in magnitude, `TopK(k=100)`, or a fraction, `TopK(0.01)`."""

    fraction: float | None = None
    """Share of the entries that is kept, in (0, 1]; at least one is."""
    k: int | Schedule | None = None
    """Number of entries that are kept, from 1 to the model's size, instead of a fraction."""

    def __post_init__(self) -> None:
        exactly_one = (self.fraction is None) != (self.k is None)
        require(exactly_one, "TopK", "a fraction or k, one of them", (self.fraction, self.k))
        if self.k is not None:
            _require_whole("TopK", "k", self.k, 1, 2**31 - 1)
        if self.fraction is not None:
            remedy = "for a number of entries write TopK(k=...)"
            inside = 0 < self.fraction <= 1
            require(inside, "TopK", "fraction in (0, 1]", self.fraction, remedy)

    def count(self, size: int) -> int:
        """Return how many entries of a vector of this size are sent, at least one."""
        if self.k is None:
            return max(1, round((self.fraction or 1.0) * size))
        require(self.k <= size, "TopK", f"k <= {size}, the model's size", self.k, "lower k")
        return int(self.k)

    def encode(self, v: Vector, draw: Draw, sizes: Sequence[int] = ()) -> Wire:
        """Return the buffers of v."""
        # topk() would be faster, but which of equal entries it takes is not defined.
        order = v.abs().sort(descending=True, stable=True).indices[: self.count(v.shape[0])]
        return Wire(v.gather(0, order), order.to(torch.int32), _frame(v))

    def decode(self, wire: Wire) -> Vector:
        """Return the vector that the buffers stand for."""
        zeros = wire.numbers.new_zeros(_length(wire.frame))
        return zeros.scatter(0, wire.code.long(), wire.numbers)

    def error(self, size: int) -> float:
        """Return the bound of the relative squared error."""
        return 1 - self.count(size) / size


def pack_bits(codes: Tensor, width: int) -> Tensor:
    """Return (D,) integers below 2**width as one stream of bits in ceil(D width / 8) bytes.

    It is little-endian: read as one integer, the bytes are the sum of code_j 2**(width j).
    """
    if width == 8:
        return codes.to(torch.uint8)
    bits = torch.stack([(codes >> j & 1).to(torch.uint8) for j in range(width)], -1).flatten()
    bits = torch.cat([bits, bits.new_zeros(-bits.shape[0] % 8)]).view(-1, 8)
    return (bits << _powers(8, bits)).sum(-1, dtype=torch.uint8)


def unpack_bits(data: Tensor, width: int, size: int) -> Tensor:
    """Return the codes that `pack_bits` packed."""
    if width == 8:
        return data.to(torch.int32)
    bits = (data[:, None] >> _powers(8, data) & 1).flatten()[: size * width]
    codes = bits.view(size, width).to(torch.int32)
    return (codes << _powers(width, codes)).sum(-1, dtype=torch.int32)


def _powers(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, dtype=like.dtype, device=like.device)


def _norm(v: Tensor) -> Tensor:
    """Return the norm of a vector, or of each row.

    Entries are divided by the largest before they are squared, because their own squares would
    under- or overflow early. Then norm >= |v_j| after rounding, so that no level is above s.
    """
    top = v.abs().amax(-1)
    norm: Tensor = top * torch.linalg.vector_norm(
        v / torch.where(top > 0, top, 1.0)[..., None], dim=-1
    )
    return norm


def _frame(v: Vector) -> Tensor:
    return v.new_empty((v.shape[0], 0))


def _length(frame: Tensor | tuple[Tensor, ...]) -> int:
    """Return D, the length of the vector that was encoded."""
    return sum(part.shape[0] for part in (frame if isinstance(frame, tuple) else (frame,)))


def _require_whole(who: str, name: str, value: object, low: int, high: int) -> None:
    integral = isinstance(value, Real) and float(value).is_integer()
    expected = f"a whole number of {name} from {low} to {high}"
    require(integral and low <= value <= high, who, expected, value)  # type: ignore[operator]
