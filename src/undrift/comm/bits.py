"""Sign bits on packed words: the primitives of one-bit all-reduce.

Packed signs are uint8 tensors of ceil(size / 8) bytes: bit j % 8 of byte j // 8, counted from the
least significant, is 1 where coordinate j is +1; the trailing bits are zero when packed. All
functions work on the CPU and block by block, so that the one byte per coordinate that NumPy needs
in between is never held for a whole vector and stays in cache. Long vectors are packed and random
bits are drawn by C++ where there is some (`compiled.py`), with the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift import tree
from undrift.check import is_whole, require, require_nonnegative
from undrift.comm import compiled

_BLOCK = 2**18  # coordinates, a multiple of 8 so that blocks are whole bytes
_WORDS = 2**15  # 64-bit words of random bits at a time
_SMALL = 1024  # bytes of random bits that are quicker to draw lane by lane
_FULL = 6  # digits after which most words have all their 64 lanes decided

# Floats that NumPy lacks (bfloat16) are looked up as integers of their size.
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pack_signs(v: Tensor) -> Tensor:
    """Return the signs of v, packed; zeros of either sign count as +1, a NaN as -1."""
    flat = _flat(v)
    packed = np.empty(_bytes(len(flat)), np.uint8)
    if (library := _packing_library(flat)) is not None:
        library.pack(flat, packed)
        return torch.from_numpy(packed)
    positive = np.empty(min(_BLOCK, len(flat)), np.bool_)
    for start in range(0, len(flat), _BLOCK):
        block = _array(flat[start : start + _BLOCK])
        signs = np.greater_equal(block, 0, out=positive[: block.size])
        _put(packed, start, signs)
    return torch.from_numpy(packed)


def pack_finite_signs(v: Tensor) -> Tensor | None:
    """Return the packed signs of v, or None if v is not finite."""
    flat = _flat(v)
    if (library := _packing_library(flat)) is None:
        return pack_signs(flat) if tree.is_finite(flat) else None
    packed = np.empty(_bytes(len(flat)), np.uint8)
    return torch.from_numpy(packed) if library.pack(flat, packed) else None


def _packing_library(flat: Tensor) -> compiled.BitLibrary | None:
    library = compiled.loader.library() if len(flat) >= compiled.SHORT else None
    return library if library is not None and library.packs(flat.dtype) else None


def unpack_signs(bits: Tensor, size: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Return (size,) of +scale where the bit is 1 and -scale where it is 0."""
    return torch.from_numpy(_look_up(bits, size, _signs_of_byte(dtype, scale))).view(dtype)


def unpack_signs_into(out: Tensor, bits: Tensor) -> None:
    """Write what `unpack_signs` returns for the scale 1 into the vector `out`."""
    if out.device.type != "cpu" or not out.is_contiguous():
        out.copy_(unpack_signs(bits, out.shape[0], out.dtype))
        return
    values: NDArray[Any] = out.detach().view(_SAME_SIZE[out.dtype.itemsize]).numpy()
    _look_up_into(values, bits, _signs_of_byte(out.dtype, 1.0))


@lru_cache(maxsize=32)
def _signs_of_byte(dtype: torch.dtype, scale: float) -> NDArray[Any]:
    """Return what each byte unpacks to, (256, 8) integers of the dtype's size."""
    signs = torch.from_numpy(_BITS_OF_BYTE.astype(np.float64) * 2 - 1)
    table: NDArray[Any] = (signs * scale).to(dtype).view(_SAME_SIZE[dtype.itemsize]).numpy()
    return table


def bernoulli(a: int, b: int, nbytes: int, rng: np.random.Generator) -> Tensor:
    """Return packed bits, independent, each 1 with probability exactly a / (a + b).

    A lane is 1 where U < a / (a + b), U a random binary fraction whose digits are drawn from the
    most significant on until one differs from the digit of a / (a + b); no rounding is involved.
    How many random words that takes depends on a, b, nbytes and the words alone, so the bits can be
    made before the data on which they decide are known.
    """
    for name, value in (("a", a), ("b", b)):
        require(is_whole(value) and value >= 0, "bernoulli", f"a whole {name} >= 0", value)
    require(a + b >= 1, "bernoulli", "a + b >= 1", (a, b))
    require(is_whole(nbytes) and nbytes >= 0, "bernoulli", "a whole nbytes >= 0", nbytes)
    words = np.zeros(-(-nbytes // 8), np.uint64)
    if b == 0:
        words = ~words  # one has no binary fraction in [0, 1)
    elif a > 0 and nbytes <= _SMALL:  # as exact, and with fewer calls
        lanes = rng.integers(0, int(a) + int(b), 8 * nbytes) < a
        return torch.from_numpy(np.packbits(lanes, bitorder="little"))
    elif a > 0:
        _draw(words, int(a), int(a) + int(b), rng)
    return torch.from_numpy(words.view(np.uint8)[:nbytes])


def choose(received: Tensor, own: Tensor, take: Tensor) -> Tensor:
    """Return received's bits where `take` has a 1, and own's bits elsewhere.

    Where received and own agree, `take` makes no difference.
    """
    first, second, mask = _packed(received), _packed(own), _packed(take)
    sizes = (first.size, second.size, mask.size)
    require(len(set(sizes)) == 1, "choose", "bits of one size", sizes)
    chosen = np.bitwise_xor(first, second)
    chosen &= mask
    chosen ^= second
    return torch.from_numpy(chosen)


def pack_stochastic_signs(v: Tensor, norm: float, rng: np.random.Generator) -> Tensor:
    """Return packed signs, +1 with probability 1/2 + v_j / (2 norm): norm times their mean is v.

    Needs norm >= max |v|, up to rounding; norm = 0 means v = 0. The uniforms have 53 bits for
    float64 and 24 for the other types, so the probabilities are off by 2**-53 or 2**-24 at most,
    besides their own rounding; those of v_j = norm and v_j = -norm are exact.
    """
    require_nonnegative("pack_stochastic_signs", norm=norm)
    flat = _flat(v)
    dtype: Any = np.float64 if flat.dtype == torch.float64 else np.float32
    # Rounding keeps the order, so the norm as one of v's floats is still no smaller than |v_j|.
    divisor = dtype(min(float(norm), float(np.finfo(dtype).max)))
    limit = 1 + 4 * float(np.finfo(dtype).eps)
    packed = np.empty(_bytes(flat.shape[0]), np.uint8)
    probability = np.empty(min(_BLOCK, flat.shape[0]), dtype)
    uniform = np.empty_like(probability)
    less = np.empty(probability.shape, np.bool_)
    for start in range(0, flat.shape[0], _BLOCK):
        block = _array(flat[start : start + _BLOCK])
        p, u = probability[: block.size], uniform[: block.size]
        np.divide(block, divisor or 1, out=p)
        low, high = float(p.min()), float(p.max())
        within = -limit <= low and high <= limit if divisor else low == high == 0
        require(within, "pack_stochastic_signs", "norm >= max |v|, all finite", norm)
        p *= 0.5
        p += 0.5
        rng.random(dtype=dtype, out=u)
        _put(packed, start, np.less(u, p, out=less[: block.size]))
    return torch.from_numpy(packed)


def pack_counts(counts: NDArray[Any], width: int) -> Tensor:
    """Return (D,) integers below 2**width as one stream of bits in ceil(D width / 8) bytes.

    It is little-endian, as in `codecs.pack_bits`; width is from 1 to 16. Neighbours are joined in
    pairs, thrice: eight counts then fill `width` bytes of two 64-bit words.
    """
    _require_width("pack_counts", width)
    packed = np.empty((-(-counts.size // 8), width), np.uint8)
    for start in range(0, counts.size, _BLOCK):
        block = counts[start : start + _BLOCK]
        inside = block.min() >= 0 and block.max() < 2**width
        require(inside, "pack_counts", f"counts from 0 to {2**width - 1}", "others")
        words = np.zeros(-(-block.size // 8) * 8, np.uint64)
        words[: block.size] = block
        for shift in (width, 2 * width):
            words = words[0::2] | words[1::2] << np.uint64(shift)
        octets = np.empty((words.size // 2, 2), "<u8")
        # Each word has four counts, up to 64 bits; NumPy's shift by all 64 gives zero.
        octets[:, 0] = words[0::2] | words[1::2] << np.uint64(4 * width)
        octets[:, 1] = words[1::2] >> np.uint64(64 - 4 * width)
        packed[start // 8 : (start + _BLOCK) // 8] = octets.view(np.uint8)[:, :width]
    return torch.from_numpy(packed.reshape(-1)[: _bytes(counts.size * width)])


def unpack_counts(data: Tensor, width: int, size: int) -> NDArray[np.int32]:
    """Return the counts that `pack_counts` packed."""
    _require_width("unpack_counts", width)
    packed = _packed(data)
    _require_bytes("unpack_counts", packed, size * width)
    counts = np.empty(size, np.int32)
    for start in range(0, size, _BLOCK):
        bits = packed[start // 8 * width : (start + _BLOCK) // 8 * width]
        octets = np.zeros((-(-bits.size // width), 16), np.uint8)
        _fill_rows(octets, bits, width)
        low, high = octets.view("<u8").T
        words = np.stack([low, low >> np.uint64(4 * width) | high << np.uint64(64 - 4 * width)], 1)
        for shift in (2 * width, width):
            # A word may hold other counts above its own bits; the last mask removes them.
            words = np.stack([words.reshape(-1), words.reshape(-1) >> np.uint64(shift)], 1)
        counts[start : start + _BLOCK] = (words & np.uint64(2**width - 1)).reshape(-1)[
            : size - start
        ]
    return counts


def counts_of(bits: Tensor, size: int) -> NDArray[np.int32]:
    """Return the bits as 0 and 1, one number per coordinate, to be summed."""
    return _look_up(bits, size, _BITS_OF_BYTE.astype(np.int32))


def _draw(words: NDArray[np.uint64], a: int, q: int, rng: np.random.Generator) -> None:
    """Set the bits of words, which are all zero, where U < a / q, block by block."""
    if 64 * words.size >= compiled.SHORT:
        library = compiled.loader.library(draws=64 * words.size)
        if library is not None and library.bernoulli(words, a, q, _WORDS, rng):
            return
    for start in range(0, words.size, _WORDS):
        _less(words[start : start + _WORDS], a, q, rng)


def _less(out: NDArray[np.uint64], a: int, q: int, rng: np.random.Generator) -> None:
    """Set the bits of `out`, which are all zero, where U < a / q."""
    digits, rest = 0, a
    less, undecided = out, np.full(out.size, 2**64 - 1, np.uint64)
    at: NDArray[np.intp] | None = None  # the places of the words in `out`; None if all are left
    # Without a rest the digits of a / q have ended, so undecided lanes have U >= a / q.
    while rest and undecided.size:
        rest, digits = 2 * rest, digits + 1
        drawn = rng.integers(0, 2**64, undecided.size, np.uint64)
        if rest >= q:  # the digit is 1: a drawn 0 is less
            rest -= q
            drawn &= undecided
            undecided ^= drawn
            less |= undecided
            undecided = drawn
        else:  # the digit is 0: a drawn 1 is more
            np.invert(drawn, out=drawn)
            undecided &= drawn
        if digits >= _FULL:  # few lanes are left: go on with their words only
            open_words = np.flatnonzero(undecided)
            if at is not None:
                out[at] = less
            at = open_words if at is None else at[open_words]
            less, undecided = less[open_words], undecided[open_words]
    if at is not None:
        out[at] = less


def _look_up(bits: Tensor, size: int, table: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of table (256, 8) that the bytes name, one after another."""
    values = np.empty(size, table.dtype)
    _look_up_into(values, bits, table)
    return values


def _look_up_into(values: NDArray[Any], bits: Tensor, table: NDArray[Any]) -> None:
    packed, size = _packed(bits), values.size
    _require_bytes("Unpacking", packed, size)
    full = size // 8  # bytes of which all bits count
    rows = values[: 8 * full].reshape(-1, 8)
    for start in range(0, full, _BLOCK // 8):
        stop = min(start + _BLOCK // 8, full)
        # Clipping cannot occur, but any other mode would go through a buffer.
        np.take(table, packed[start:stop], axis=0, out=rows[start:stop], mode="clip")
    if size % 8:
        values[8 * full :] = table[packed[full], : size % 8]


def _fill_rows(rows: NDArray[np.uint8], data: NDArray[np.uint8], width: int) -> None:
    """Write data into the first `width` columns, row by row."""
    full = data.size // width
    rows[:full, :width] = data[: full * width].reshape(full, width)
    rows[full:, : data.size % width] = data[full * width :]


def _put(packed: NDArray[np.uint8], start: int, bits: NDArray[np.bool_]) -> None:
    packed[start // 8 : (start + bits.size + 7) // 8] = np.packbits(bits, bitorder="little")


def _flat(v: Tensor) -> Tensor:
    return v.detach().cpu().contiguous().view(-1)


def _array(block: Tensor) -> NDArray[Any]:
    """Return a block of floats for NumPy; half precision, slow there or unknown, as float32."""
    return (block.float() if block.dtype.itemsize < 4 else block).numpy()


def _packed(data: Tensor) -> NDArray[np.uint8]:
    require(data.dtype == torch.uint8, "Packed data", "dtype uint8", data.dtype)
    packed: NDArray[np.uint8] = _flat(data).numpy()
    return packed


def _bytes(bits: int) -> int:
    return -(-bits // 8)


def _require_bytes(who: str, data: NDArray[np.uint8], bits: int) -> None:
    require(data.size == _bytes(bits), who, f"{_bytes(bits)} bytes for {bits} bits", data.size)


def _require_width(who: str, width: int) -> None:
    require(is_whole(width) and 1 <= width <= 16, who, "a whole width from 1 to 16", width)


_BITS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
