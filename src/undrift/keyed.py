"""Counter-based randomness: every draw is a function of (seed, purpose, round, client, step).

Nothing here has a state, so results do not depend on the order of execution, on the number of
workers, or on a resume in the middle. Draws made while a round is planned (cohorts, permutations,
amounts of work) come from NumPy's Philox under a hashed key. Draws made inside a model or an
algorithm (dropout masks, stochastic codecs) must also work on a tensor of keys under `vmap`, which
no stateful generator can; they come from the SplitMix64 hash written as tensor arithmetic.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MIX2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


def _digest(seed: int, purpose: str, *counters: int, size: int) -> bytes:
    text = f"{seed}/{purpose}/" + "/".join(map(str, counters))
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


class _Key(ISeedSequence):
    """Gives Philox its key; with `key=` it would ask the system for entropy that it never uses."""

    def __init__(self, digest: bytes) -> None:
        self._words = np.frombuffer(digest, dtype="<u8")

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> NDArray[np.uint64]:
        """Return the two words of the key, all that Philox asks for."""
        return self._words


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return a NumPy generator for this purpose alone."""
    key = _Key(_digest(seed, purpose, *counters, size=16))
    # NumPy takes any ISeedSequence, but its types know of one only.
    return np.random.Generator(np.random.Philox(key))  # type: ignore[arg-type]


class _Own(threading.local):
    """A thread's generator to be set anew: making one asks the system for entropy it never uses."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.bits)
        self.fresh = self.bits.state


_own = _Own()


def permutation(
    items: NDArray[np.int64], seed: int, purpose: str, *counters: int
) -> NDArray[np.int64]:
    """Return `generator(seed, purpose, *counters)`'s permutation, in a third of the time."""
    state = _own.fresh
    words = np.frombuffer(_digest(seed, purpose, *counters, size=16), dtype="<u8")
    _own.bits.state = {**state, "state": {**state["state"], "key": words}}
    return _own.generator.permutation(items)


def key(seed: int, purpose: str, *counters: int) -> int:
    """Return a signed 64-bit key for the tensor hash below."""
    return int.from_bytes(_digest(seed, purpose, *counters, size=8), "little", signed=True)


def _mix(z: Tensor) -> Tensor:
    # torch shifts int64 arithmetically; the masks make the shifts logical.
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MIX1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MIX2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def fold(keys: Tensor, counter: int | Tensor) -> Tensor:
    """Return new keys from keys and a counter (a step, a call)."""
    # As a tensor, because a product of Python integers would not wrap around.
    offset = torch.as_tensor(counter, dtype=torch.int64, device=keys.device) + 1
    return _mix(keys + offset * _GOLDEN)


def uniform(keys: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return uniforms in [0, 1) of the given shape from one key, a scalar (or a row under `vmap`).

    The leading coordinates do not depend on how long the tensor is.
    """
    counters = torch.arange(int(np.prod(shape)), device=keys.device).view(tuple(shape))
    if torch.compiler.is_compiling():
        # As data: of pure indices the compiler would work out the range, which exceeds 64 bits.
        counters = counters + (keys & 0)
    bits = _mix(keys + counters * _GOLDEN)
    if dtype == torch.float64:
        return ((bits >> 11) & 0x1FFFFFFFFFFFFF).to(dtype) * 2.0**-53
    return ((bits >> 40) & 0xFFFFFF).to(dtype) * 2.0**-24
