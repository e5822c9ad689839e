"""Packed signs by C++ are those by NumPy, bit for bit, and so is the state of the generator."""

from __future__ import annotations

import math
import platform
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from undrift import builder, keyed
from undrift.comm import bits, compiled
from undrift.comm.compiled import BitLibrary, Loader

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
X86 = platform.machine().lower() in ("x86_64", "amd64")
WITHOUT_AVX2 = pytest.param("-mno-avx2", marks=pytest.mark.skipif(not X86, reason="not an x86"))
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module", params=["", WITHOUT_AVX2], ids=["native", "without-avx2"])
def library(request: pytest.FixtureRequest) -> BitLibrary:
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", f"{COMPILER} {request.param}")
        loader = Loader()
        assert loader.build()
    found = loader.library()
    assert found is not None
    return found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no library loaded."""
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path))
    monkeypatch.setattr(builder, "_loaded", {})
    return tmp_path


def rng(*counters: int) -> np.random.Generator:
    return keyed.generator(5, "test-compiled", *counters)


def by_numpy(
    words: int, a: int, q: int, block: int, generator: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    out = np.zeros(words, np.uint64)
    for start in range(0, words, block):
        bits._less(out[start : start + block], a, q, generator)
    return out


odds = st.one_of(
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.tuples(st.integers(1, 2**59), st.integers(1, 2**59)),
)


@given(
    words=st.integers(1, 700),
    ab=odds,
    block=st.sampled_from([1, 3, 64, 255, 256, 257, 2**15]),
    before=st.integers(0, 9),
    small=st.booleans(),
)
@example(words=70_001, ab=(1, 2), block=2**15, before=1, small=False)
@example(words=65_536, ab=(6, 1), block=2**15, before=0, small=True)
@settings(max_examples=150, deadline=None)
def test_random_words_are_numpys(
    library: BitLibrary, words: int, ab: tuple[int, int], block: int, before: int, small: bool
) -> None:
    a, q = ab[0], sum(ab)
    theirs, ours = rng(words, before), rng(words, before)
    for generator in (theirs, ours):
        generator.integers(0, 2**64, before, np.uint64)  # so that a block may be half used
        if small:
            generator.integers(0, 2**32, 1, np.uint32)  # so that half a word is kept
    expected = by_numpy(words, a, q, block, theirs)
    made = np.empty(words, np.uint64)
    assert library.bernoulli(made, a, q, block, ours)
    assert made.tolist() == expected.tolist()
    assert str(ours.bit_generator.state) == str(theirs.bit_generator.state)
    assert (
        ours.integers(0, 2**32, 3, np.uint32).tolist()
        == theirs.integers(0, 2**32, 3, np.uint32).tolist()
    )


@pytest.mark.parametrize("counter", [2**60 - 3, 2**64 - 1, 2**64 + 5], ids=str)
def test_a_counter_of_any_size(library: BitLibrary, counter: int) -> None:
    theirs, ours = (np.random.Generator(np.random.Philox(counter=counter, key=1)) for _ in "ab")
    made = np.empty(100, np.uint64)
    if library.bernoulli(made, 1, 3, 2**15, ours):
        assert made.tolist() == by_numpy(100, 1, 3, 2**15, theirs).tolist()
    assert str(ours.bit_generator.state) == str(theirs.bit_generator.state)


def test_what_it_does_not_know_is_left_to_numpy(library: BitLibrary) -> None:
    words = np.zeros(3, np.uint64)
    other: Any = np.random.default_rng(0)
    before = str(other.bit_generator.state)
    assert not library.bernoulli(words, 1, 3, 8, other)
    assert str(other.bit_generator.state) == before
    assert not library.bernoulli(words, 1, 10**30, 8, rng())
    assert not library.bernoulli(words, 1, 3, 8, object())  # type: ignore[arg-type]
    assert words.tolist() == [0, 0, 0]
    assert not library.packs(torch.float16)


SIZES = [1, 7, 8, 9, 63, 64, 65, 511, 1000, 2**16 - 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_signs_are_packed_as_by_numpy(library: BitLibrary, dtype: torch.dtype) -> None:
    if not library.packs(dtype):
        pytest.skip("packed by NumPy on this processor")
    for size, offset in product(SIZES, (0, 1, 3)):  # at addresses that are aligned, and others
        v = torch.tensor(rng(size).normal(size=size + offset), dtype=dtype)[offset:]
        v[:: max(1, size // 5)] = -0.0
        v[1 :: max(1, size // 3)] = torch.finfo(dtype).max
        assert_packed(library, v, finite=True)
        for bad, place in product((math.nan, math.inf, -math.inf), {0, size // 2, size - 1}):
            kept = v[place].item()
            v[place] = bad
            assert_packed(library, v, finite=False)
            v[place] = kept


def assert_packed(library: BitLibrary, v: Tensor, *, finite: bool) -> None:
    packed = np.empty(-(-len(v) // 8), np.uint8)
    assert library.pack(v, packed) == finite
    assert packed.tolist() == np.packbits(v.numpy() >= 0, bitorder="little").tolist()


@needs_compiler
@pytest.mark.parametrize("nbytes", [1025, 1031, 4096, 33_333])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 2), (5, 2), (63, 1), (1, 10**30)])
def test_draws_and_signs_do_not_depend_on_who_makes_them(
    nbytes: int, a: int, b: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = torch.tensor(rng().normal(size=8 * nbytes - 3))
    made = []
    for short in (0, 2**62):
        monkeypatch.setattr(compiled, "SHORT", short)
        monkeypatch.setattr(compiled, "loader", Loader())
        assert compiled.loader.build()
        generator = rng(nbytes)
        drawn = bits.bernoulli(a, b, nbytes, generator).tolist()
        for numbers in (v, v.float(), v.half()):
            signs = bits.pack_finite_signs(numbers)
            assert signs is not None
            assert torch.equal(signs, bits.pack_signs(numbers))
            drawn += signs.tolist()
        assert bits.pack_finite_signs(torch.cat([v, v.new_tensor([math.inf])])) is None
        made.append((drawn, generator.random()))
    assert made[0] == made[1]


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
@pytest.mark.usefixtures("cache")
def test_without_a_compiler_numpy_goes_on(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_numpy(1000, 1, 3, 2**15, rng()).view(np.uint8)
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(compiled, "loader", Loader())
    assert not compiled.loader.build()
    monkeypatch.setattr(builder, "library", None)  # is not asked again
    assert bits.bernoulli(1, 2, 8000, rng()).tolist() == expected.tolist()
    assert len(bits.pack_signs(torch.zeros(10**5))) == 12_500


@needs_compiler
def test_it_is_built_when_numpy_has_drawn_enough_and_then_found_at_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "BUILD_AFTER", 100_000)
    loader = Loader()
    assert loader.library(draws=60_000) is None
    assert loader.library() is None
    assert not list(cache.rglob("*.so"))
    assert loader.library(draws=60_000) is not None
    assert len(list(cache.rglob("*.so"))) == 1
    monkeypatch.setattr(builder, "_loaded", {})
    monkeypatch.setattr(builder, "_compile", None)  # cannot be called
    assert Loader().library() is not None


@needs_compiler
@pytest.mark.parametrize(
    ("text", "wrong"), [("0xD2E7470EE14C6C93", "0xD2E7470EE14C6C95"), ("_CMP_GE_OQ", "_CMP_GT_OQ")]
)
@pytest.mark.usefixtures("cache")
def test_a_library_that_differs_from_numpy_is_not_used(
    text: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = builder.library

    def library(source: str, **options: Any) -> Any:
        assert text in source
        return build(source.replace(text, wrong), **options)

    if not X86 and text.startswith("_CMP"):
        pytest.skip("packed by NumPy on this processor")
    monkeypatch.setattr(builder, "library", library)
    assert not Loader().build()
