"""Packed signs: exact bits on every kind of border, exact probabilities, one format everywhere.

Frequencies are held to five standard deviations, which a right generator misses once in 1.7
million; the keys are fixed, so a test that passes passes always.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from undrift import keyed
from undrift.comm import bits
from undrift.comm.bits import (
    bernoulli,
    choose,
    counts_of,
    pack_counts,
    pack_signs,
    pack_stochastic_signs,
    unpack_counts,
    unpack_signs,
)
from undrift.comm.codecs import pack_bits, unpack_bits

SMALL = [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 1000]
SIZES = [*SMALL, 2**16 - 1, 2**16 + 1, 2**18 - 1, 2**18, 2**18 + 1, 2**19 + 9]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ODDS = [(1, 1), (3, 1), (1, 2), (5, 2), (63, 1), (1, 62)]
LANES = 2**22
floats = st.floats(width=32, allow_nan=False)


@pytest.fixture(params=[False, True], ids=["blocks", "small-blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as they are, once so small that even short vectors have many."""
    if request.param:
        monkeypatch.setattr(bits, "_BLOCK", 64)
        monkeypatch.setattr(bits, "_WORDS", 3)


def rng(*counters: int) -> np.random.Generator:
    return keyed.generator(5, "test-bits", *counters)


def vector(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(rng(size).normal(size=size), dtype=dtype)


def lanes(packed: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.unpackbits(packed.numpy(), bitorder="little")


def assert_frequency(ones: int, n: int, p: float) -> None:
    assert abs(ones - n * p) <= 5 * math.sqrt(n * p * (1 - p))


# --- signs


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("size", SIZES)
def test_packed_signs_are_those_of_the_codec(size: int) -> None:
    v = vector(size)
    packed = pack_signs(v)
    assert packed.dtype == torch.uint8
    assert packed.is_contiguous()
    assert packed.shape == (math.ceil(size / 8),)
    assert torch.equal(packed, pack_bits((v >= 0).to(torch.int32), 1))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("size", SIZES)
def test_signs_come_back_scaled(size: int) -> None:
    v = vector(size)
    back = unpack_signs(pack_signs(v), size, torch.float32, 0.3)
    assert torch.equal(back, torch.where(v >= 0, 0.3, -0.3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [0, 1, 65, 2**18 + 3])
def test_every_float_type(dtype: torch.dtype, size: int) -> None:
    v = vector(size, dtype)
    back = unpack_signs(pack_signs(v), size, dtype, 0.75)
    assert back.dtype == dtype
    assert torch.equal(back, torch.where(v >= 0, 0.75, -0.75).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_are_positive_and_infinities_have_signs(dtype: torch.dtype) -> None:
    inf = math.inf
    v = torch.tensor([0.0, -0.0, inf, -inf, 1.0, -1.0, math.nan, 0.0, -0.0, -1.0], dtype=dtype)
    assert pack_signs(v).tolist() == [0b10010111, 0b01]


def test_the_least_significant_bit_is_the_first_coordinate() -> None:
    assert pack_signs(torch.tensor([1.0] + [-1.0] * 7 + [-1.0, 1.0])).tolist() == [1, 2]
    assert unpack_signs(torch.tensor([1, 2], dtype=torch.uint8), 10, torch.float32).tolist() == [
        *([1.0] + [-1.0] * 7),
        *(-1.0, 1.0),
    ]


@given(st.lists(floats, max_size=70))
@settings(max_examples=60, deadline=None)
def test_signs_round_trip(values: list[float]) -> None:
    v = torch.tensor(values, dtype=torch.float32)
    back = unpack_signs(pack_signs(v), len(values), torch.float64)
    assert back.tolist() == [1.0 if value >= 0 else -1.0 for value in values]


def test_inputs_need_not_be_contiguous_or_without_gradient() -> None:
    v = vector(200)
    view = v.repeat_interleave(2).requires_grad_()[::2]
    assert torch.equal(pack_signs(view), pack_signs(v))
    packed = pack_signs(v)
    strided = packed.repeat_interleave(2)[::2]
    assert torch.equal(unpack_signs(strided, 200, v.dtype), unpack_signs(packed, 200, v.dtype))
    assert torch.equal(choose(strided, strided, strided), packed)
    assert torch.equal(
        pack_stochastic_signs(view, 9.0, rng()), pack_stochastic_signs(v, 9.0, rng())
    )


@pytest.mark.parametrize("size", [8, 17, 24], ids=str)
def test_a_wrong_size_is_told(size: int) -> None:
    packed = torch.zeros(2, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"needs \d bytes for \d+ bits, got 2"):
        unpack_signs(packed, size, torch.float32)
    with pytest.raises(ValueError, match=r"needs \d bytes for \d+ bits, got 2"):
        counts_of(packed, size)
    with pytest.raises(ValueError, match="uint8"):
        counts_of(packed.to(torch.int32), 16)


# --- Bernoulli bits


@pytest.fixture
def by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Word by word, as for long vectors, also where lane by lane would be quicker."""
    monkeypatch.setattr("undrift.comm.bits._SMALL", -1)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 2), (5, 2), (63, 1)])
def test_short_draws_have_the_same_law(a: int, b: int) -> None:
    """5 sigma on 800 000 lanes drawn a hundred at a time, and between neighbours."""
    generator, p = rng(a, b), a / (a + b)
    drawn = np.stack([lanes(bernoulli(a, b, 1000, generator)) for _ in range(100)]).astype(float)
    assert abs(drawn.mean() - p) < 5 * (p * (1 - p) / drawn.size) ** 0.5
    centred = drawn - p
    between = (centred[:, 1:] * centred[:, :-1]).mean()
    assert abs(between) < 5 * p * (1 - p) / drawn.size**0.5


def test_certain_bits_draw_nothing() -> None:
    generator, before = rng(), rng().bit_generator.state
    assert bernoulli(0, 3, 9, generator).tolist() == [0] * 9
    assert bernoulli(3, 0, 9, generator).tolist() == [255] * 9
    assert bernoulli(1, 2, 0, generator).tolist() == []
    assert str(generator.bit_generator.state) == str(before)


@pytest.mark.parametrize(("a", "b"), ODDS)
def test_frequencies(a: int, b: int) -> None:
    drawn = lanes(bernoulli(a, b, LANES // 8, rng(a, b)))
    p = a / (a + b)
    assert_frequency(int(drawn.sum()), LANES, p)
    last = drawn[-LANES // 8 :]  # the second block
    assert_frequency(int(last.sum()), last.size, p)
    for lane in range(64):
        assert_frequency(int(drawn[lane::64].sum()), LANES // 64, p)


@pytest.mark.parametrize("lag", [1, 8, 64, 2**21])
@pytest.mark.parametrize(("a", "b"), ODDS)
def test_lanes_are_independent(a: int, b: int, lag: int) -> None:
    p = a / (a + b)
    drawn = lanes(bernoulli(a, b, LANES // 8, rng(a, b))) - p
    products = drawn[lag:] * drawn[:-lag]
    assert abs(products.sum()) <= 5 * p * (1 - p) * math.sqrt(products.size)


class Given:
    """Random words written down beforehand; zeros after them."""

    def __init__(self, words: list[int]) -> None:
        self.words, self.calls = words, 0

    def integers(self, low: int, high: int, size: int, dtype: Any) -> Any:
        assert (low, high, size) == (0, 2**64, 1)
        self.calls += 1
        word = self.words[self.calls - 1] if self.calls <= len(self.words) else 0
        return np.array([word], dtype)


def one_word(a: int, b: int, words: list[int]) -> list[int]:
    generator: Any = Given(words)
    return lanes(bernoulli(a, b, 8, generator)).tolist()


@pytest.mark.parametrize("q", [2, 3, 7, 32, 63, 64, 65, 10**30], ids=str)
@pytest.mark.usefixtures("by_words")
def test_every_fraction_of_six_digits(q: int) -> None:
    # Lane i draws U = i / 64 exactly: its six digits, then zeros.
    digits = [sum((i >> (5 - d) & 1) << i for i in range(64)) for d in range(6)]
    for a in {1, q // 2, q // 3 + 1, q - 1}:
        expected = [int(Fraction(i, 64) < Fraction(a, q)) for i in range(64)]
        assert one_word(a, q - a, digits) == expected


@pytest.mark.parametrize(("a", "b"), [(1, 2), (2, 1), (5, 2), (1, 10**40), (10**40, 7)], ids=str)
@pytest.mark.usefixtures("by_words")
def test_the_expansion_is_followed_to_any_depth(a: int, b: int) -> None:
    # Lane i draws the digits of a / (a + b) but for one, the 5 i-th; that one decides.
    p = [(a << d) // (a + b) & 1 for d in range(1, 5 * 64 + 1)]
    words = [sum((digit ^ (d == 5 * i)) << i for i in range(64)) for d, digit in enumerate(p)]
    assert one_word(a, b, words) == [p[5 * i] for i in range(64)]


@pytest.mark.usefixtures("by_words")
def test_a_dyadic_probability_ends_with_its_digits() -> None:
    generator: Any = Given([2**64 - 1, 0, 2**64 - 1])
    assert lanes(bernoulli(5, 3, 8, generator)).tolist() == [0] * 64  # U = 0.101 is not below it
    assert generator.calls == 3
    generator = Given([0])
    assert lanes(bernoulli(6, 6, 8, generator)).tolist() == [1] * 64
    assert generator.calls == 1


def replayed(a: int, b: int, words: int, generator: np.random.Generator) -> list[int]:
    """Words of one block, lane by lane, from the same random stream."""
    digits: dict[int, list[int]] = {i: [0] * 64 for i in range(words)}  # U so far, as integers
    result = [0] * words
    undecided = {i: set(range(64)) for i in range(words)}
    rest, depth = Fraction(a, a + b), 0
    while undecided and (rest * 2**depth) % 1 != 0:
        depth += 1
        drawn = generator.integers(0, 2**64, len(undecided), np.uint64).tolist()
        for i, word in zip(list(undecided), drawn, strict=True):
            for lane in list(undecided[i]):
                digits[i][lane] = 2 * digits[i][lane] + (word >> lane & 1)
                difference = digits[i][lane] - math.floor(rest * 2**depth)
                if difference:
                    undecided[i].remove(lane)
                    result[i] |= (difference < 0) << lane
            if depth >= 6 and not undecided[i]:
                del undecided[i]
    return result


@pytest.mark.parametrize(("a", "b"), [*ODDS, (511, 1), (1, 1000)])
@pytest.mark.parametrize("words", [1, 2, 40])
@pytest.mark.usefixtures("by_words")
def test_the_same_words_lane_by_lane(a: int, b: int, words: int) -> None:
    generator = rng(words)
    expected = np.array(replayed(a, b, words, generator), np.uint64).view(np.uint8)
    after = rng(words)
    assert bernoulli(a, b, 8 * words, after).tolist() == expected.tolist()
    assert after.integers(2**60) == generator.integers(2**60)  # no word more, none less


def test_blocks_follow_each_other_in_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = rng()
    parts = [bernoulli(1, 2, nbytes, generator) for nbytes in (24, 24, 13)]
    monkeypatch.setattr(bits, "_WORDS", 3)
    assert torch.equal(bernoulli(1, 2, 61, rng()), torch.cat(parts))


def test_bits_are_a_function_of_the_key() -> None:
    first, again, other = (bernoulli(2, 3, 1001, rng(k)) for k in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("a", "b", "nbytes"), [(-1, 2, 1), (1, -1, 1), (0, 0, 1), (0.5, 1, 1), (1, 1, -1)], ids=str
)
def test_odds_are_whole(a: Any, b: Any, nbytes: int) -> None:
    with pytest.raises(ValueError, match="bernoulli needs"):
        bernoulli(a, b, nbytes, rng())


# --- choice


def test_choice_on_all_combinations() -> None:
    received, own, take = (
        torch.tensor([pattern], dtype=torch.uint8)
        for pattern in (0b11110000, 0b11001100, 0b10101010)
    )
    before = received.clone(), own.clone(), take.clone()
    # From the last lane: 1 1 stay; 1 0 by take; 0 1 by take; 0 0 stay.
    assert choose(received, own, take).tolist() == [0b11100100]
    assert all(map(torch.equal, (received, own, take), before))


@pytest.mark.parametrize("nbytes", SMALL)
def test_choice_takes_a_bit_of_either(nbytes: int) -> None:
    received, own, take = (bernoulli(1, 1, nbytes, rng(k)) for k in range(3))
    expected = np.where(lanes(take), lanes(received), lanes(own))
    assert lanes(choose(received, own, take)).tolist() == expected.tolist()
    assert torch.equal(choose(own, own, take), own)


def test_choice_needs_one_size() -> None:
    one, two = torch.zeros(1, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="choose needs bits of one size"):
        choose(one, two, two)


# --- stochastic signs


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stochastic_signs_have_their_probabilities(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 0.5, -0.25, 1.5, -1.75, 2.0, -2.0, 1.0], dtype=dtype)
    copies = 2**17
    drawn = lanes(pack_stochastic_signs(values.repeat(copies), 2.0, rng())).reshape(copies, 8)
    for value, column in zip(values.tolist(), drawn.T, strict=True):
        assert_frequency(int(column.sum()), copies, 0.5 + value / 4)  # at +-2 without deviation


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("size", [1, 9, 64, 65, 300])
@pytest.mark.parametrize("norm", [3e-45, 1e-30, 0.1, 0.7, 3.0, 3e38])
def test_an_entry_of_the_size_of_the_norm_is_certain(size: int, norm: float) -> None:
    signs = torch.where(vector(size) >= 0, 1.0, -1.0)
    v = signs * torch.tensor(norm)
    largest = float(v.abs().max())
    assert torch.equal(pack_stochastic_signs(v, largest, rng()), pack_signs(signs))


def test_stochastic_signs_compare_the_generator_s_uniforms() -> None:
    v = vector(200, torch.float64)
    norm = float(v.norm())
    expected = rng().random(200) < 0.5 + v.numpy() / (2 * norm)
    packed = pack_stochastic_signs(v, norm, rng())
    assert packed.tolist() == np.packbits(expected, bitorder="little").tolist()
    expected = rng().random(200, np.float32) < (0.5 + v.numpy() / (2 * norm)).astype(np.float32)
    packed = pack_stochastic_signs(v.float(), norm, rng())
    assert packed.tolist() == np.packbits(expected, bitorder="little").tolist()


@pytest.mark.parametrize("norm", [0.0, 1e-60, 1e300], ids=str)
def test_of_nothing_the_signs_are_even(norm: float) -> None:
    drawn = lanes(pack_stochastic_signs(torch.zeros(2**17), norm, rng()))
    assert_frequency(int(drawn.sum()), 2**17, 0.5)
    assert pack_stochastic_signs(torch.zeros(0), norm, rng()).shape == (0,)


@pytest.mark.parametrize("value", [1.001, -1.001, math.inf, math.nan], ids=str)
@pytest.mark.parametrize("norm", [1.0, 0.0], ids=str)
def test_an_entry_above_the_norm_is_told(value: float, norm: float) -> None:
    with pytest.raises(ValueError, match=r"norm >= max \|v\|"):
        pack_stochastic_signs(torch.tensor([0.0, value]), norm, rng())


@pytest.mark.parametrize("norm", [-1.0, math.inf, math.nan], ids=str)
def test_a_norm_is_finite(norm: float) -> None:
    with pytest.raises(ValueError, match="norm >= 0, a finite number"):
        pack_stochastic_signs(torch.zeros(3), norm, rng())


# --- counts


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("width", range(1, 17))
def test_counts_are_packed_as_in_the_codec(width: int) -> None:
    for size in SMALL:
        counts = rng(width, size).integers(0, 2**width, size)
        packed = pack_counts(counts, width)
        codes = torch.tensor(counts, dtype=torch.int32)
        assert torch.equal(packed, pack_bits(codes, width))
        back = unpack_counts(packed, width, size)
        assert back.dtype == np.int32
        assert back.tolist() == counts.tolist() == unpack_bits(packed, width, size).tolist()


@pytest.mark.parametrize("width", [1, 3, 8, 11, 16])
@pytest.mark.parametrize("size", [2**18 - 1, 2**18 + 1, 2**19 + 9])
def test_counts_of_several_blocks(width: int, size: int) -> None:
    counts = rng(width, size).integers(0, 2**width, size, dtype=np.int32)
    packed = pack_counts(counts, width)
    assert packed.shape == (math.ceil(size * width / 8),)
    assert np.array_equal(unpack_counts(packed, width, size), counts)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("size", SIZES)
def test_bits_as_counts(size: int) -> None:
    v = vector(size)
    counts = counts_of(pack_signs(v), size)
    assert counts.dtype == np.int32
    assert np.array_equal(counts, (v >= 0).to(torch.int32).numpy())


def test_counts_fit_their_width() -> None:
    for counts in ([0, 8], [-1, 3]):
        with pytest.raises(ValueError, match="pack_counts needs counts from 0 to 7"):
            pack_counts(np.array(counts), 3)
    for width in (0, 17):
        with pytest.raises(ValueError, match="whole width from 1 to 16"):
            pack_counts(np.array([0]), width)
        with pytest.raises(ValueError, match="whole width from 1 to 16"):
            unpack_counts(torch.zeros(1, dtype=torch.uint8), width, 1)
    with pytest.raises(ValueError, match="unpack_counts needs 2 bytes for 9 bits, got 1"):
        unpack_counts(torch.zeros(1, dtype=torch.uint8), 3, 3)
