"""The merge of sums of signs, whose messages grow with the workers that they stand for.

The number of +1 among r signs is one of 0, ..., r, so a message that stands for r workers takes
ceil(log2(r + 1)) bits a coordinate, or an Elias code of its distance from r // 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from undrift.check import require_choice
from undrift.comm import bits, elias
from undrift.core import Merge, Vector

Code = Literal["fixed", "gamma", "delta", "omega"]


def require_code(who: str, code: str) -> None:
    """Refuse a code whose name is not known."""
    require_choice(who, "code", code, get_args(Code))


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

    def sent_bytes(self, share: NDArray[np.int32], count: int) -> int | None:
        """Return the length of a share's bytes if it is sent in an Elias code."""
        if self.code == "fixed":
            return None
        return -(-int(_code_lengths(count, self.code).take(share).sum()) // 8)

    def nbytes(self, like: Vector, count: int, *, result: bool) -> int | None:
        """Return the length of a message or of the result."""
        if result and self.vote:
            return -(-len(like) // 8)
        return -(-len(like) * count.bit_length() // 8) if self.code == "fixed" else None


@lru_cache(maxsize=256)
def _code_lengths(count: int, code: str) -> NDArray[np.int64]:
    """Return the bits that each number of +1 among `count` signs takes."""
    return elias.lengths(elias.fold(np.arange(count + 1), count), code)
