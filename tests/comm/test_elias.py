"""Elias' codes: the published code words, their lengths, and streams over many windows and back."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift import keyed
from undrift.comm import elias
from undrift.comm.elias import KINDS, decode, encode, fold, lengths, unfold

WORDS = {
    "gamma": {1: "1", 2: "010", 3: "011", 4: "00100", 7: "00111", 8: "0001000"},
    "delta": {1: "1", 2: "0100", 3: "0101", 4: "01100", 7: "01111", 8: "00100000", 17: "001010001"},
    "omega": {
        1: "0",
        2: "100",
        3: "110",
        4: "101000",
        7: "101110",
        8: "1110000",
        16: "10100100000",
    },
}
BORDERS = [2**k + d for k in range(1, 32) for d in (-1, 0, 1)] + [2**32 - 1]
numbers_of_any_size = st.integers(0, 31).flatmap(lambda k: st.integers(2**k, 2 ** (k + 1) - 1))
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(params=[False, True], ids=["windows", "small-windows"])
def windows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as they are, once so small that even short streams have many."""
    if request.param:
        monkeypatch.setattr(elias, "_BLOCK", 5)
        monkeypatch.setattr(elias, "_CHUNKS", 2)


def written(n: int, kind: str) -> str:
    """The code word by the definition."""
    binary = f"{n:b}"
    if kind == "gamma":
        return "0" * (len(binary) - 1) + binary
    if kind == "delta":
        return written(len(binary), "gamma") + binary[1:]
    word = "0"
    while n > 1:
        word, n = f"{n:b}" + word, n.bit_length() - 1
    return word


def stream_of(numbers: list[int], kind: str) -> list[int]:
    word = "".join(written(n, kind) for n in numbers)
    word += "0" * (-len(word) % 8)
    return [int(word[i : i + 8], 2) for i in range(0, len(word), 8)]


def skewed(size: int, *counters: int) -> Any:
    """Numbers of all sizes, the small ones often."""
    rng = keyed.generator(3, "test-elias", size, *counters)
    return (2.0 ** np.minimum(rng.exponential(2.5, size), 31.99)).astype(np.int64)


@kinds
def test_published_code_words(kind: str) -> None:
    for n, word in WORDS[kind].items():
        assert written(n, kind) == word
        assert lengths(np.array([n]), kind).tolist() == [len(word)]
        bits = np.unpackbits(encode(np.array([n]), kind).numpy())
        assert "".join(map(str, bits)).startswith(word)
        assert not bits[len(word) :].any()


@kinds
def test_lengths_by_the_formulas(kind: str) -> None:
    numbers = np.array(sorted({*range(1, 5000), *BORDERS}))
    expected = []
    for n in numbers.tolist():
        log = n.bit_length() - 1
        omega, k = 1, n
        while k > 1:
            omega, k = omega + k.bit_length(), k.bit_length() - 1
        delta = log + 2 * int(math.log2(log + 1)) + 1
        expected.append({"gamma": 2 * log + 1, "delta": delta, "omega": omega}[kind])
    bits = lengths(numbers, kind)
    assert bits.dtype == np.int64
    assert bits.tolist() == expected
    assert lengths(numbers[:0], kind).shape == (0,)


@kinds
def test_kraft_sum_is_at_most_one(kind: str) -> None:
    shorter = np.bincount(lengths(np.arange(1, 2**16), kind))
    total = sum(Fraction(int(count), 2**bits) for bits, count in enumerate(shorter))
    assert Fraction(9, 10) < total <= 1


@pytest.mark.usefixtures("windows")
@kinds
def test_streams_bit_by_bit_and_back(kind: str) -> None:
    for numbers in ([], [1], [1] * 9, [5, 1, 2**32 - 1, 3], BORDERS, skewed(300).tolist()):
        stream = encode(np.array(numbers, np.int64), kind)
        assert stream.dtype == torch.uint8
        assert stream.tolist() == stream_of(numbers, kind)
        back = decode(stream, len(numbers), kind)
        assert back.dtype == np.int64
        assert back.tolist() == numbers


@kinds
@given(st.lists(st.one_of(st.integers(1, 9), numbers_of_any_size), max_size=60))
@settings(max_examples=40, deadline=None)
def test_round_trip(kind: str, numbers: list[int]) -> None:
    stream = encode(np.array(numbers, np.uint32), kind)
    assert stream.tolist() == stream_of(numbers, kind)
    assert decode(stream, len(numbers), kind).tolist() == numbers


@kinds
@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(skewed(300_000), id="skewed"),
        pytest.param(np.ones(700_001, np.int64), id="ones"),
        pytest.param(np.full(30_000, 2**32 - 1), id="largest"),
        pytest.param(np.full(30_000, 2**31), id="zeros-behind"),
        pytest.param(fold(np.arange(300_000) % 9, 8), id="signs"),
    ],
)
def test_long_streams(kind: str, numbers: Any) -> None:
    stream = encode(numbers, kind)
    assert 8 * stream.shape[0] > 2 * elias._CHUNK * elias._CHUNKS  # several windows
    assert stream.shape[0] == math.ceil(lengths(numbers, kind).sum() / 8)
    assert np.array_equal(decode(stream, numbers.size, kind), numbers)


@kinds
def test_streams_need_not_be_contiguous(kind: str) -> None:
    numbers = skewed(50)
    stream = encode(numbers.repeat(2)[::2], kind).repeat_interleave(2)[::2]
    assert decode(stream, 50, kind).tolist() == numbers.tolist()


@pytest.mark.usefixtures("windows")
@kinds
def test_a_stream_cut_short_is_told(kind: str) -> None:
    numbers = [*skewed(100).tolist(), 1000]
    stream = encode(np.array(numbers), kind)
    for cut in range(1, stream.shape[0] + 1):
        left = 8 * (stream.shape[0] - cut)
        ends = np.cumsum(lengths(np.array(numbers), kind))
        whole = int((ends <= left).sum())
        expected = f"An Elias stream needs 101 code words, got {whole}; it is cut short."
        with pytest.raises(ValueError, match=f"^{expected}$"):
            decode(stream[:-cut], 101, kind)


@pytest.mark.usefixtures("windows")
@kinds
def test_a_wrong_size_is_told(kind: str) -> None:
    numbers = np.array([*skewed(100), 1000])
    stream = encode(numbers, kind)
    with pytest.raises(ValueError, match=r"needs 100 code words, got more; \d+ bits are left over"):
        decode(stream, 100, kind)
    with pytest.raises(ValueError, match="needs 0 code words, got more"):
        decode(stream, 0, kind)
    more = "got 10[1-8]; it is cut short"  # zeros at the end may be words of omega
    with pytest.raises(ValueError, match=more):
        decode(stream, 109, kind)
    short = encode(np.array([2, 2]), "gamma")  # 010010 and two zeros: all in one byte
    with pytest.raises(ValueError, match="needs 1 code words, got more; 5 bits are left over"):
        decode(short, 1, "gamma")


def test_bits_that_are_no_code_word_are_told() -> None:
    zeros = torch.zeros(40, dtype=torch.uint8)
    for kind in ("gamma", "delta"):
        with pytest.raises(ValueError, match=r"needs 1 code words, got 0; it is damaged\."):
            decode(zeros, 1, kind)
    with pytest.raises(ValueError, match="needs numbers below"):
        decode(~zeros, 1, "omega")
    with pytest.raises(ValueError, match="uint8"):
        decode(zeros.float(), 1, "gamma")


@pytest.mark.parametrize("number", [0, -1, 2**32], ids=str)
@kinds
def test_numbers_out_of_range_are_told(kind: str, number: int) -> None:
    for function in (lengths, encode):
        with pytest.raises(ValueError, match=r"whole numbers from 1 to 2\*\*32 - 1"):
            function(np.array([3, number]), kind)


def test_unknown_kinds_are_told() -> None:
    for call in (
        lambda: lengths(np.array([1]), "gama"),
        lambda: encode(np.array([1]), "gama"),
        lambda: decode(torch.zeros(1, dtype=torch.uint8), 1, "gama"),
    ):
        with pytest.raises(ValueError, match="the nearest is 'gamma'"):
            call()


@pytest.mark.parametrize("r", range(1, 65))
def test_fold_numbers_the_sums_from_the_middle_on(r: int) -> None:
    j = np.arange(r + 1)
    n = fold(j, r)
    assert sorted(n.tolist()) == list(range(1, r + 2)) if r % 2 else len(set(n.tolist())) == r + 1
    assert n.min() == 1
    assert unfold(n, r).tolist() == j.tolist()
    expected = {r // 2 + q: number for number, q in enumerate([0, 1, -1, 2, -2], 1)}
    assert all(n[k] == number for k, number in expected.items() if 0 <= k <= r)
