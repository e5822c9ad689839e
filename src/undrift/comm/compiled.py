"""Packed signs by the C++ of `bits.cpp`, which gives the bits that `bits.py` gives by NumPy.

A library that is in the user's cache is used from the first vector on that is long enough. It is
built when NumPy has taken about as long as the compiler will take; without a compiler NumPy goes
on. Which of the two works has no influence on any result.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift import builder
from undrift.errors import UnsupportedError

SHORT = 2**13  # coordinates below which calling the library takes as long as NumPy
BUILD_AFTER = 2**30  # coordinates, for which NumPy draws bits in the time of a build, 1.5 s
_LARGEST = 2**60  # Counters and odds above it are left to NumPy, which has larger integers.

_PACK = {torch.float32: "undrift_pack_float", torch.float64: "undrift_pack_double"}


class BitLibrary:
    """Calls the functions of `bits.cpp`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        word, size, place = ctypes.c_uint64, ctypes.c_long, ctypes.c_void_p
        self._bernoulli = library.undrift_bernoulli
        self._bernoulli.argtypes = [place, size, size, word, word, place, place, word, place]
        self._bernoulli.restype = word
        self._pack = {}
        for dtype, name in _PACK.items():
            if hasattr(library, name):
                self._pack[dtype] = pack = getattr(library, name)
                pack.argtypes, pack.restype = [place, size, place], ctypes.c_int

    def bernoulli(
        self, out: NDArray[np.uint64], a: int, q: int, block: int, rng: np.random.Generator
    ) -> bool:
        """Set the bits of `out` where U < a / q, or return False if it cannot.

        The generator ends where NumPy's draws would have left it.
        """
        bits = getattr(rng, "bit_generator", None)
        if not isinstance(bits, np.random.Philox) or q > _LARGEST:
            return False
        state = bits.state
        counter, key = state["state"]["counter"], state["state"]["key"]
        if counter[0] > _LARGEST:
            return False
        # The next word is buffer_pos of the block of the counter, or the first of the block after.
        at = 4 * int(counter[0]) + int(state["buffer_pos"])
        arrays = _at(counter), _at(key), at, _at(state["buffer"])
        at = self._bernoulli(_at(out), out.size, block, a, q, *arrays)
        if not at:
            return False
        counter[0], state["buffer_pos"] = (at - 1) // 4, (at - 1) % 4 + 1
        bits.state = state
        return True

    def packs(self, dtype: torch.dtype) -> bool:
        """Return whether it packs signs of such numbers."""
        return dtype in self._pack

    def pack(self, v: Tensor, out: NDArray[np.uint8]) -> bool:
        """Write the packed signs of v and return whether all of v is finite."""
        return bool(self._pack[v.dtype](v.data_ptr(), len(v), _at(out)))


class Loader:
    """Loads the library when it is in the cache, or builds it when that pays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._library: BitLibrary | None = None
        self._coordinates = 0  # that NumPy has drawn bits for
        self._looked = False  # into the cache
        self._failed = False  # to build, or to agree with NumPy

    def library(self, draws: int = 0) -> BitLibrary | None:
        """Return the library for an operation that draws so many bits, or None for NumPy."""
        if self._library is None and not self._failed:
            with self._lock:
                self._coordinates += draws
                build = self._coordinates >= BUILD_AFTER
                if self._library is None and not self._failed and (build or not self._looked):
                    self._load(build=build)
        return self._library

    def build(self) -> bool:
        """Build the library now, and return whether there is one."""
        return self.library(draws=BUILD_AFTER) is not None

    def _load(self, *, build: bool) -> None:
        self._looked, self._failed = True, build
        with suppress(UnsupportedError):
            source = files(__package__).joinpath("bits.cpp").read_text(encoding="utf-8")
            library = BitLibrary(builder.library(source, build=build))
            self._failed = not _agrees_with_numpy(library)
            self._library = None if self._failed else library


loader = Loader()


def _agrees_with_numpy(library: BitLibrary) -> bool:
    """Return whether a new library draws NumPy's words and packs as NumPy does."""
    theirs, ours = (np.random.Generator(np.random.Philox(key=7)) for _ in range(2))
    drawn, packed = np.empty(1000, np.uint64), np.empty(125, np.uint8)
    # Bits that are 1 with probability 1/2 are the drawn words, inverted.
    if not library.bernoulli(drawn, 1, 2, 300, ours):
        return False
    if not np.array_equal(~drawn, theirs.integers(0, 2**64, 1000, np.uint64)):
        return False
    if ours.random() != theirs.random():
        return False
    v = theirs.integers(-1, 2, 1000)
    signs = np.packbits(v >= 0, bitorder="little")
    numbers = [torch.tensor(v, dtype=dtype) for dtype in _PACK if library.packs(dtype)]
    return all(library.pack(each, packed) and np.array_equal(packed, signs) for each in numbers)


def _at(array: NDArray[Any]) -> int:
    return array.ctypes.data
