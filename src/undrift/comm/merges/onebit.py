"""The merge of Marsit: one bit a coordinate at every hop.

Merging bits that stand for a and b workers keeps equal ones; of different ones it takes the first
with probability a / (a + b). By induction a coordinate ends as 1 with probability (number of
workers whose bit is 1) / (number of workers), on any route. In the thesis's form,
(v AND w) OR ((v XOR w) AND t) with t ~ Bernoulli((m-1)/m if w = 0 else 1/m), m is the hop's
position on the ring (a = m - 1, b = 1), never the worker's number.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator
from torch import Tensor

from undrift.comm import bits
from undrift.core import Merge, Vector


@dataclass(frozen=True)
class OneBit(Merge):
    """The result is one bit a coordinate, +1 in expectation as often as the workers' signs are."""

    draws = frozenset({"merge"})

    def start(self, v: Vector, rng: Generator) -> Tensor:
        """Return a worker's own share."""
        return bits.pack_signs(v)

    def start_if_finite(self, v: Vector, rng: Generator) -> Tensor | None:
        """Return a worker's own share, or None if v is not finite."""
        return bits.pack_finite_signs(v)

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
