"""Elias' universal codes of whole numbers, from 1 to 2**32 - 1.

P. Elias, "Universal codeword sets and representations of the integers", IEEE Transactions on
Information Theory 21(2), 1975. With L = floor(log2 n):

    gamma(n) = L zeros, then n in L + 1 bits               2 L + 1 bits
    delta(n) = gamma(L + 1), then the lower L bits of n    L + 1 + 2 floor(log2(L + 1)) bits
    omega(n) = the groups ..., L, n, each in binary, then 0; 1 has no group

A stream holds the code words one after another, the bits of each in writing order from the most
significant bit of the first byte on; zeros fill the last byte.

`fold` numbers the sums of r signs from the most likely on, so that they get short code words.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.check import require, require_choice

KINDS = ("gamma", "delta", "omega")

_SMALL = 2**12  # numbers below it have their code words looked up
_BLOCK = 2**16  # numbers encoded at a time
_CHUNK = 128  # bits; more than any code word has
_CHUNKS = 2**11  # chunks decoded at a time
_LONGEST = 64  # one more than the bits of the longest code word; also marks what is none
_PREFIX = 16  # bits that tell the length of a code word

_Words = NDArray[np.uint64]


class _Codewords(NamedTuple):
    """Holds the codewords of some numbers and their lengths in bits."""

    aligned: _Words  # the first bit on top, zeros below the last
    lengths: NDArray[np.uint8]


def lengths(numbers: NDArray[Any], kind: str) -> NDArray[np.int64]:
    """Return the number of bits that each number takes."""
    _require_numbers(numbers, kind)
    bits = np.empty(numbers.size, np.int64)
    for start in range(0, numbers.size, _BLOCK):
        bits[start : start + _BLOCK] = _codewords(numbers[start : start + _BLOCK], kind).lengths
    return bits


def encode(numbers: NDArray[Any], kind: str) -> Tensor:
    """Return the stream of the numbers' code words."""
    _require_numbers(numbers, kind)
    blocks = _blocks(numbers)
    total = sum(int(_codewords(block, kind).lengths.sum(dtype=np.int64)) for block in blocks)
    stream = np.zeros(total // 64 + 2, np.uint64)
    position = 0
    for block in blocks:
        code = _codewords(block, kind)
        ends = position + np.cumsum(code.lengths, dtype=np.int64)
        starts = ends - code.lengths
        shift = (starts & 63).astype(np.uint64)
        # No code word has 64 bits, so one starts in every 64-bit word and the last that does may
        # reach into the next. Their bits are disjoint: a sum joins them.
        word = starts >> 6
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(word)) + 1])
        lasts = np.append(firsts[1:], word.size) - 1
        stream[word[firsts]] += np.add.reduceat(code.aligned >> shift, firsts)
        stream[word[lasts] + 1] += code.aligned[lasts] << (np.uint64(64) - shift[lasts])
        position = int(ends[-1])
    return torch.from_numpy(stream.astype(">u8").view(np.uint8)[: -(-total // 8)])


def decode(data: Tensor, size: int, kind: str) -> NDArray[np.int64]:
    """Return the `size` numbers whose code words the stream holds.

    Where a code word starts is only known once those before it are read. So the bits are read in
    chunks. First all chunks at once tell, for every position, where reading on from there leaves
    the chunk; from chunk to chunk this tells where the first word of each starts; then all chunks
    at once tell the other starts and the numbers.
    """
    require_choice("Elias", "kind", kind, KINDS)
    require(data.dtype == torch.uint8, "An Elias stream", "dtype uint8", data.dtype)
    stream: NDArray[np.uint8] = data.detach().cpu().contiguous().view(-1).numpy()
    numbers = np.empty(size, np.int64)
    total = 8 * stream.size
    count = end = first = 0  # numbers read; where the last ended; where the window starts
    while count < size and end < total:
        chunks = min(_CHUNKS, -(-(total - first) // _CHUNK))
        window = np.zeros((chunks + 1) * _CHUNK // 8, np.uint8)  # one chunk more to look into
        piece = stream[first // 8 : first // 8 + window.size]
        window[: piece.size] = piece
        starts, length = _starts(window, end - first, kind)
        # The zeros behind the stream are not words of it.
        valid = (length < _LONGEST) & (first + starts + length <= total)
        good = min(valid.size if valid.all() else int(valid.argmin()), size - count)
        if good:
            numbers[count : count + good] = _values(window, starts[:good], length[:good], kind)
            count += good
            end = first + int(starts[good - 1]) + int(length[good - 1])
        if good < valid.size:
            break
        first += chunks * _CHUNK
    message = f"An Elias stream needs {size} code words, got"
    if count < size:
        cause = "cut short" if total - end < _LONGEST else "damaged"
        raise ValueError(f"{message} {count}; it is {cause}.")
    if total - end >= 8 or (end % 8 and stream[-1] & (0xFF >> end % 8)):
        raise ValueError(f"{message} more; {total - end} bits are left over.")
    return numbers


def fold(j: NDArray[Any], r: int) -> NDArray[np.int64]:
    """Return the numbers from 1 on for j, how many of r signs are +1: the most balanced sums first.

    With q = j - r // 2:  0, 1, -1, 2, -2, ... become 1, 2, 3, 4, 5, ...
    """
    q = np.asarray(j, np.int64) - r // 2
    return np.where(q > 0, 2 * q, 1 - 2 * q)


def unfold(n: NDArray[Any], r: int) -> NDArray[np.int64]:
    """Return the j that `fold` numbered."""
    n = np.asarray(n, np.int64)
    return np.where(n % 2 == 0, n // 2, -(n // 2)) + r // 2


def _blocks(numbers: NDArray[Any]) -> list[NDArray[Any]]:
    return [numbers[start : start + _BLOCK] for start in range(0, numbers.size, _BLOCK)]


def _codewords(numbers: NDArray[Any], kind: str) -> _Codewords:
    if numbers.max() >= _SMALL:
        return _computed(numbers.astype(np.uint64), kind)
    small = _small(kind)
    return _Codewords(small.aligned.take(numbers), small.lengths.take(numbers))


@cache
def _small(kind: str) -> _Codewords:
    """Return the code words of all small numbers; that of 1 also stands at 0."""
    return _computed(np.maximum(np.arange(_SMALL, dtype=np.uint64), 1), kind)


def _computed(n: _Words, kind: str) -> _Codewords:
    log = _log2(n)
    if kind == "gamma":
        code, bits = n, 2 * log + 1
    elif kind == "delta":
        # gamma(L + 1) in front of n without its leading one.
        bits = log + 2 * _log2(log + 1) + 1
        code = (log << log) + n
    else:
        code, bits, group = np.zeros_like(n), np.ones_like(n), n
        while (more := group > 1).any():
            code += np.where(more, group << bits, 0)
            group = _log2(np.maximum(group, 1))
            bits += np.where(more, group + 1, 0)
    return _Codewords(code << (64 - bits), bits.astype(np.uint8))


def _log2(n: _Words) -> _Words:
    return (np.frexp(n.astype(np.float64))[1] - 1).astype(np.uint64)


@cache
def _length_of_prefix(kind: str) -> NDArray[np.uint8]:
    """Return the length of the code word that begins with given bits; _LONGEST where none does.

    The gamma code of a number from 2**16 on begins with zeros only, marked by 0.
    """
    # Longer numbers begin like these, as far as a prefix shows.
    small = np.arange(1, _SMALL, dtype=np.uint64)
    large = small[_SMALL // 2 - 1 :, None] << np.arange(1, 21, dtype=np.uint64)
    code = _computed(np.concatenate([small, large.reshape(-1)]), kind)
    prefix = (code.aligned >> (64 - _PREFIX)).astype(np.int64)
    span = 2 ** np.maximum(_PREFIX - code.lengths.astype(np.int64), 0)  # whatever follows
    within = np.arange(span.sum()) - np.repeat(np.cumsum(span) - span, span)
    table = np.full(2**_PREFIX, _LONGEST, np.uint8)
    table[np.repeat(prefix, span) + within] = np.repeat(code.lengths, span)
    if kind == "gamma":
        table[0] = 0
    return table


@cache
def _log_of_length(kind: str) -> _Words:
    """Return L of the numbers with code words of a given length, which grows with L."""
    logs = np.arange(32, dtype=np.uint64)
    table = np.zeros(_LONGEST, np.uint64)
    table[_computed(np.uint64(1) << logs, kind).lengths] = logs
    return table


def _starts(
    window: NDArray[np.uint8], entry: int, kind: str
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where code words start and how long they are, in all chunks but the last.

    The arrays have a row per place in a chunk and a column per chunk, and rows for the places
    behind it that a word may reach.
    """
    chunks = 8 * window.size // _CHUNK - 1
    columns = np.arange(chunks)
    length = _all_lengths(window, kind)
    following = np.empty((_CHUNK + _LONGEST, chunks), np.intp)
    following[:] = np.arange(_CHUNK + _LONGEST)[:, None]
    following[:_CHUNK] += length
    following *= chunks
    following += columns
    exits = np.empty(following.shape, np.uint8)
    exits[_CHUNK:] = np.arange(_LONGEST)[:, None]
    for row in reversed(range(_CHUNK)):
        np.take(exits.reshape(-1), following[row], out=exits[row], mode="clip")
    # Only this loop goes step by step, once for 128 bits.
    by_chunk = exits[:_LONGEST].T.tobytes()
    entries = [entry]
    for chunk in range(chunks - 1):
        entries.append(by_chunk[_LONGEST * chunk + entries[-1]])
    at = np.array(entries) * chunks + columns
    starting = np.zeros(following.size, np.bool_)
    while at.min() < _CHUNK * chunks:
        starting[at] = True
        at = following.take(at)
    starts = np.flatnonzero(starting[: _CHUNK * chunks].reshape(_CHUNK, chunks).T)
    return starts, length[starts % _CHUNK, starts // _CHUNK]


def _all_lengths(window: NDArray[np.uint8], kind: str) -> NDArray[np.uint8]:
    """Return the length of the code word that would start at every bit, (128, chunks)."""
    table = _length_of_prefix(kind)
    chunks = 8 * window.size // _CHUNK - 1
    octets = window.astype(np.intp)
    triples = octets[:-2] << 16 | octets[1:-1] << 8 | octets[2:]
    triples = triples[: chunks * _CHUNK // 8].reshape(chunks, _CHUNK // 8).T.copy()
    prefix = triples[:, None] >> np.arange(8, 0, -1)[:, None] & (2**_PREFIX - 1)
    length: NDArray[np.uint8] = table.take(prefix).reshape(_CHUNK, chunks)
    if kind == "gamma":
        rows, columns = np.nonzero(length == 0)
        after = _peek(window, columns * _CHUNK + rows) >> (64 - 2 * _PREFIX) & (2**_PREFIX - 1)
        more = table[after.astype(np.intp)]
        length[rows, columns] = np.where(more, 2 * _PREFIX + more, _LONGEST)
    return length


def _values(
    window: NDArray[np.uint8], starts: NDArray[np.int64], length: NDArray[np.uint8], kind: str
) -> NDArray[np.int64]:
    """Return the numbers whose code words start at `starts`; each ends with its number's L bits."""
    log = _log_of_length(kind)[length]
    code = _peek(window, starts) >> (64 - length.astype(np.uint64))
    if kind == "omega":
        # The prefix has the length of a number below 2**32; another group would make it larger.
        above = bool((code & 1).any())
        require(not above, "An Elias stream", "numbers below 2**32", "a larger one")
        code >>= np.uint64(1)
    one = np.uint64(1) << log
    numbers: NDArray[np.int64] = (code & (one - 1) | one).astype(np.int64)
    return numbers


def _peek(window: NDArray[np.uint8], positions: NDArray[np.int64]) -> _Words:
    """Return the 64 bits from each position on."""
    words = window.view(">u8").astype(np.uint64)
    index, shift = positions >> 6, (positions & 63).astype(np.uint64)
    bits: _Words = words.take(index) << shift | words.take(index + 1) >> (64 - shift)
    return bits


def _require_numbers(numbers: NDArray[Any], kind: str) -> None:
    require_choice("Elias", "kind", kind, KINDS)
    if numbers.size:
        ends = (int(numbers.min()), int(numbers.max()))
        inside = ends[0] >= 1 and ends[1] < 2**32
        require(inside, "Elias", "whole numbers from 1 to 2**32 - 1", ends)
