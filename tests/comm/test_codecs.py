"""Codecs: round trips through real bytes, exact sizes, laws of the errors, the same under vmap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap

import undrift as ud
from undrift import keyed, testing, tree
from undrift.algorithms.compressed import Compressed
from undrift.comm.codecs import QSGD, Codec, ScaledSign, TopK, Wire, pack_bits, unpack_bits
from undrift.core import Draw

LEVELS = [1, 2, 3, 7, 127, 1000]
DTYPES = [torch.float32, torch.float64]
BUCKETS: list[Any] = [QSGD(bucket=16), QSGD(levels=3, bucket=7), QSGD(bits=4, bucket=1)]
CODECS: list[Any] = [
    *(QSGD(levels=s) for s in LEVELS),
    *BUCKETS,
    ScaledSign(),
    TopK(0.3),
    TopK(k=1),
]
sizes = st.integers(1, 70)
seeds = st.integers(0, 10**6)


def vector(size: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=size), dtype=dtype)


def draws(key: Tensor | int) -> Draw:
    keys = torch.as_tensor(key)
    return lambda purpose, like: keyed.uniform(keys, like.shape, like.dtype)


def transported(wire: Wire) -> tuple[Wire, int]:
    """The wire rebuilt from its bytes alone, given the model's size, and their number."""
    parts, count = [], 0
    for tensor in (wire.numbers, wire.code):
        payload = tensor.numpy().tobytes()
        count += len(payload)
        dtype = tensor.numpy().dtype
        parts.append(torch.tensor(np.frombuffer(payload, dtype)).view(tensor.shape))
    count += len(wire.frame.numpy().tobytes())
    return Wire(parts[0], parts[1], torch.empty((wire.frame.shape[0], 0))), count


def bytes_expected(codec: Any, size: int, itemsize: int) -> int:
    if isinstance(codec, QSGD):
        norms = 1 if codec.bucket is None else math.ceil(size / int(codec.bucket))
        return norms * itemsize + math.ceil(size * math.ceil(math.log2(2 * codec.s + 1)) / 8)
    if isinstance(codec, ScaledSign):
        return itemsize + math.ceil(size / 8)
    return codec.count(size) * (itemsize + 4)


def quantised(codec: QSGD, v: Tensor, uniforms: Tensor) -> tuple[list[int], list[int]]:
    """Signs and levels by the formula of FedPAQ, coordinate by coordinate."""
    norm = math.sqrt(math.fsum(float(a) ** 2 for a in v))
    levels = []
    for a, r in zip(v.tolist(), uniforms.tolist(), strict=True):
        u = codec.s * abs(a) / norm
        levels.append(math.floor(u) + (r < u - math.floor(u)))
    return [int(a < 0) for a in v.tolist()], levels


# --- bits


@given(st.integers(1, 26), sizes, seeds)
@settings(max_examples=80, deadline=None)
def test_packed_bits_are_one_little_endian_integer(width: int, size: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**width, size)
    packed = pack_bits(torch.tensor(codes, dtype=torch.int32), width)
    assert packed.dtype == torch.uint8
    assert packed.shape == (math.ceil(size * width / 8),)
    as_integer = sum(int(code) << (width * j) for j, code in enumerate(codes))
    assert int.from_bytes(packed.numpy().tobytes(), "little") == as_integer
    assert unpack_bits(packed, width, size).tolist() == codes.tolist()


# --- every codec


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(size=sizes, seed=seeds)
@settings(max_examples=15, deadline=None)
def test_round_trip_and_size_on_real_bytes(
    codec: Codec, dtype: torch.dtype, size: int, seed: int
) -> None:
    v = vector(size, seed, dtype)
    wire = codec.encode(v, draws(seed))
    arrived, count = transported(wire)
    assert count == tree.nbytes(wire) == bytes_expected(codec, size, dtype.itemsize)
    got = codec.decode(arrived)
    assert got.dtype == dtype
    assert got.shape == v.shape
    assert torch.equal(got, codec.decode(wire))
    # What was decoded codes to itself: it lies on the codec's own grid.
    if not isinstance(codec, QSGD):
        assert torch.allclose(codec.decode(codec.encode(got, draws(seed))), got, rtol=1e-6)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 5, 8, 83])
def test_under_vmap_bit_for_bit_as_alone(codec: Codec, dtype: torch.dtype, size: int) -> None:
    stack = torch.stack([vector(size, seed, dtype) for seed in range(4)])
    stack[1, :] = 0.0
    stack[2, 0] = torch.nan
    keys = torch.arange(4) * 1234567
    wires = vmap(lambda v, key: codec.encode(v, draws(key)))(stack, keys)
    decoded = vmap(codec.decode)(wires)
    for i in range(4):
        alone = codec.encode(stack[i], draws(keys[i]))
        for a, b in zip(alone, wires, strict=True):
            assert a.shape == b[i].shape
            assert a.numpy().tobytes() == b[i].numpy().tobytes()
        assert codec.decode(alone).numpy().tobytes() == decoded[i].numpy().tobytes()


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_stays_zero(codec: Codec, dtype: torch.dtype) -> None:
    v = torch.zeros(11, dtype=dtype)
    wire = codec.encode(v, draws(0))
    assert torch.equal(codec.decode(wire), v)
    assert not isinstance(codec, QSGD) or not wire.code.any(), "zero has one code"


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so(codec: Codec, bad: float) -> None:
    v = vector(20, 0)
    v[7] = bad
    assert not codec.decode(codec.encode(v, draws(0))).sum().isfinite()


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_tiny_and_huge_vectors_in_single_precision(codec: Codec, scale: float) -> None:
    """Squares of these leave float32's range; the result only scales."""
    v = vector(40, 1, torch.float32)
    one, other = (codec.decode(codec.encode(a, draws(5))) for a in (v, v * scale))
    assert torch.allclose(one, other / scale, rtol=1e-5, atol=0)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("size", [3, 83])
def test_error_is_within_its_bound(codec: Codec, size: int) -> None:
    """On average; TopK and ScaledSign always, and there are vectors that reach the bound."""
    flat, spike = torch.ones(size).double(), torch.zeros(size).double()
    spike[size // 2] = -2.0
    keys = torch.arange(2000) * 7919
    for v in (vector(size, 2), flat, spike):
        got = vmap(lambda key, v=v: codec.decode(codec.encode(v, draws(key))))(keys)
        relative = float(((got - v) ** 2).sum(1).mean() / (v**2).sum())
        assert relative <= codec.error(size) * (1.1 if isinstance(codec, QSGD) else 1 + 1e-12)


# --- QSGD


def test_the_default_is_a_byte_per_coordinate_and_one_norm() -> None:
    assert QSGD() == QSGD(bits=8)
    assert (QSGD().s, QSGD().width) == (127, 8)
    wire = QSGD().encode(vector(1000, 0, torch.float32), draws(0))
    assert tree.nbytes(wire) == 1000 + 4
    assert [QSGD(bits=b).s for b in (2, 3, 4, 8, 25)] == [1, 3, 7, 127, 2**24 - 1]


@given(st.sampled_from([*LEVELS, 2**24]), sizes, seeds)
@settings(max_examples=60, deadline=None)
def test_codes_follow_the_formula(s: int, size: int, seed: int) -> None:
    codec, v = QSGD(levels=s), vector(size, seed)
    wire = codec.encode(v, draws(seed))
    code = unpack_bits(wire.code, codec.width, size)
    signs, levels = quantised(codec, v, draws(seed)("", v))
    assert (code >> (codec.width - 1)).tolist() == signs
    assert (code & (2 ** (codec.width - 1) - 1)).tolist() == levels
    expected = [
        (-1) ** sign * float(v.norm()) * level / s
        for sign, level in zip(signs, levels, strict=True)
    ]
    assert codec.decode(wire).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("s", [1, 3, 127])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unbiased_with_the_exact_variance(s: int, dtype: torch.dtype) -> None:
    """Each coordinate's mean within 5 standard errors, the total variance within 5 of its own."""
    trials, v, codec = 20_000, vector(13, 3, dtype), QSGD(levels=s)
    keys = torch.tensor([keyed.key(0, "trial", i) for i in range(trials)])
    got = vmap(lambda key: codec.decode(codec.encode(v, draws(key))))(keys).double()
    v = v.double()
    u = s * v.abs() / v.norm()
    variance = (v.norm() / s) ** 2 * (u - u.floor()) * (1 - u + u.floor())
    assert ((got.mean(0) - v).abs() <= 5 * (variance / trials).sqrt() + 1e-7).all()
    squared = ((got - v) ** 2).sum(1)
    assert abs(squared.mean() - variance.sum()) <= 5 * squared.std() / math.sqrt(trials)
    assert variance.sum() <= codec.error(13) * v.norm() ** 2
    assert codec.error(13) == min(13 / s**2, math.sqrt(13) / s)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_vectors_on_the_grid_are_exact(dtype: torch.dtype) -> None:
    grid = [([3.0, -4.0], 5), ([0.0, 0.0, -0.3, 0.0], 1), ([1.0, -1.0, 1.0, 1.0], 2)]
    grid += [([2.0, -3.0, 6.0], 7), ([-7.0], 1000), ([0.5, -0.5, 0.5, 0.5], 1000)]
    for entries, s in grid:
        v = torch.tensor(entries, dtype=dtype)
        for key in range(20):
            got = QSGD(levels=s).decode(QSGD(levels=s).encode(v, draws(key)))
            assert torch.allclose(got, v, rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("s", [1, 127, 1000])
def test_rounding_never_overflows_the_top_level(dtype: torch.dtype, s: int) -> None:
    """One entry alone is the norm; were u above s by rounding, a draw of 0 would add one."""
    values = vector(20_000, 0, dtype) * 10.0 ** vector(20_000, 1, dtype)
    small = torch.tensor([0.0, -1.0, 0.0, 1e-9, 3e-5, 1e-4], dtype=dtype)
    codec, lowest = QSGD(levels=s), lambda purpose, like: torch.zeros_like(like)
    got = vmap(lambda v: codec.decode(codec.encode(v, lowest)))(values[:, None] * small)
    assert torch.allclose(got[:, 1], -values, rtol=1e-6, atol=0)


def test_many_levels_are_the_identity() -> None:
    v = vector(83, 0)
    gaps = []
    for s in (10**2, 10**4, 2**24):
        got = QSGD(levels=s).decode(QSGD(levels=s).encode(v, draws(1)))
        gaps.append(float((got - v).abs().max()))
        assert gaps[-1] <= float(v.norm()) / s
    assert gaps[-1] < 1e-6


def test_precisions_agree() -> None:
    """The keyed uniforms of float32 are those of float64 cut short."""
    v = vector(500, 4)
    single, double = (QSGD().decode(QSGD().encode(a, draws(9))) for a in (v.float(), v))
    assert float((single - double).abs().max()) < 1e-5 * float(v.norm())


# --- QSGD in buckets

TENSORS = (6, 1, 40, 12, 24)  # 83 in all


def cut(codec: QSGD, v: Tensor, tensors: Sequence[int]) -> list[Tensor]:
    """The parts of v that have a norm each."""
    if codec.bucket == "tensor":
        return list(v.split(list(tensors)))
    width = len(v) if codec.bucket is None else int(codec.bucket)
    return [v[i : i + width] for i in range(0, len(v), width)]


@pytest.mark.parametrize("codec", [*BUCKETS, QSGD(levels=5, bucket="tensor")], ids=repr)
@pytest.mark.parametrize("size", [1, 16, 83])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_bucket_is_coded_as_a_vector_of_its_own(
    codec: QSGD, size: int, dtype: torch.dtype
) -> None:
    """The parts one after the other, with the uniforms of their own coordinates."""
    tensors = TENSORS if size == 83 else (size,)
    v = vector(size, 6, dtype) * 10.0 ** torch.linspace(-3, 3, size, dtype=dtype)
    uniforms = cut(codec, draws(3)("", v), tensors)
    alone = QSGD(levels=codec.s)
    expected = []
    for part, own in zip(cut(codec, v, tensors), uniforms, strict=True):
        expected.append(alone.decode(alone.encode(part, lambda _, like, own=own: own)))
    wire = codec.encode(v, draws(3), tensors)
    assert torch.allclose(codec.decode(wire), torch.cat(expected), rtol=1e-6, atol=0)
    packed = math.ceil(size * codec.width / 8)
    assert tree.nbytes(wire) == len(expected) * dtype.itemsize + packed


@pytest.mark.parametrize("bucket", [4, 5, "tensor"])
def test_buckets_are_unbiased_with_the_exact_variance(bucket: Any) -> None:
    trials, codec, tensors = 20_000, QSGD(levels=3, bucket=bucket), (2, 7, 4)
    v = vector(13, 3) * torch.tensor([1.0] * 6 + [50.0] * 7).double()
    keys = torch.tensor([keyed.key(0, "trial", i) for i in range(trials)])
    got = vmap(lambda key: codec.decode(codec.encode(v, draws(key), tensors)))(keys)
    variance = []
    for part in cut(codec, v, tensors):
        u = codec.s * part.abs() / part.norm()
        variance.append((part.norm() / codec.s) ** 2 * (u - u.floor()) * (1 - u + u.floor()))
        own = codec.error(len(part)) * part.norm() ** 2
        assert variance[-1].sum() <= own
    exact = torch.cat(variance)
    assert ((got.mean(0) - v).abs() <= 5 * (exact / trials).sqrt() + 1e-12).all()
    squared = ((got - v) ** 2).sum(1)
    assert abs(squared.mean() - exact.sum()) <= 5 * squared.std() / math.sqrt(trials)
    assert exact.sum() <= codec.error(13) * v.norm() ** 2


def test_the_bound_is_that_of_a_bucket() -> None:
    assert QSGD(bucket=512).error(10**7) == QSGD().error(512) == 512 / 127**2
    assert QSGD(bucket=512).error(100) == QSGD().error(100)
    assert QSGD(bucket="tensor").error(10**7) == QSGD().error(10**7), "a model may be one tensor"


def test_without_sizes_a_vector_is_one_tensor() -> None:
    v = vector(20, 1)
    one = QSGD(bucket="tensor")
    assert torch.equal(
        one.decode(one.encode(v, draws(4))), QSGD().decode(QSGD().encode(v, draws(4)))
    )
    assert torch.equal(
        one.decode(one.encode(v, draws(4), (8, 0, 12))),
        one.decode(one.encode(v, draws(4), (8, 12))),
    )


def test_tensors_under_vmap_are_bit_for_bit_as_alone() -> None:
    codec, keys = QSGD(bits=4, bucket="tensor"), torch.arange(3) * 1234567
    stack = torch.stack([vector(83, seed) for seed in range(3)])
    stack[1, 3] = torch.nan
    wires = vmap(lambda v, key: codec.encode(v, draws(key), TENSORS))(stack, keys)
    decoded = vmap(codec.decode)(wires)
    for i in range(3):
        alone = codec.encode(stack[i], draws(keys[i]), TENSORS)
        assert torch.equal(alone.code, wires.code[i])
        assert codec.decode(alone).numpy().tobytes() == decoded[i].numpy().tobytes()
    assert decoded[1].isnan().sum() == TENSORS[0], "only its own tensor is lost"


# --- scaled sign and top-k


@given(sizes, seeds)
@settings(max_examples=60, deadline=None)
def test_scaled_sign_contracts_by_its_closed_form(size: int, seed: int) -> None:
    p = vector(size, seed)
    d = ScaledSign().decode(ScaledSign().encode(p, draws(0)))
    ratio = float(p.abs().sum() ** 2 / (size * (p**2).sum()))
    left = float(((p - d) ** 2).sum())
    assert left == pytest.approx((1 - ratio) * float((p**2).sum()), rel=1e-9, abs=1e-12)
    assert ratio >= 1 / size - 1e-12


def test_scaled_sign_of_zero_is_plus() -> None:
    got = ScaledSign().decode(ScaledSign().encode(torch.tensor([0.0, -0.0, -3.0]), draws(0)))
    assert got.tolist() == [1.0, 1.0, -1.0]


@given(sizes, seeds, st.floats(0.01, 1.0))
@settings(max_examples=60, deadline=None)
def test_top_k_keeps_the_largest(size: int, seed: int, fraction: float) -> None:
    codec, v = TopK(fraction), vector(size, seed)
    k = codec.count(size)
    assert k == max(1, round(fraction * size))
    got = codec.decode(codec.encode(v, draws(0)))
    kept = sorted(range(size), key=lambda j: -abs(float(v[j])))[:k]
    assert got.tolist() == [float(v[j]) if j in kept else 0.0 for j in range(size)]
    assert float(((v - got) ** 2).sum()) <= (1 - k / size) * float((v**2).sum()) * (1 + 1e-12)


def test_top_k_takes_the_first_of_equal_entries() -> None:
    v = torch.tensor([1.0, -2.0, 2.0, 1.0, -1.0, 2.0] * 50)
    wire = TopK(k=101).encode(v, draws(0))
    expected = [i for i in range(300) if i % 6 in (1, 2, 5)][:101]
    assert wire.code.tolist() == expected
    assert wire.code.dtype == torch.int32
    ties = TopK(k=151).encode(v, draws(0))
    assert ties.code.tolist()[150:] == [0]


# --- bad input and divergence


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QSGD(levels=0), "whole number of levels from 1"),
        (lambda: QSGD(levels=2.5), "whole number of levels"),  # type: ignore[arg-type]
        (lambda: QSGD(levels=2**24 + 1), "from 1 to 16777216"),
        (lambda: QSGD(bits=1), "whole number of bits from 2 to 25, got 1"),
        (lambda: QSGD(bits=26), "from 2 to 25"),
        (lambda: QSGD(bits="8"), "whole number of bits"),  # type: ignore[arg-type]
        (lambda: QSGD(bits=8, levels=127), "bits or levels, not both"),
        (lambda: QSGD(bucket=0), 'bucket >= 1, a whole number, or "tensor", got 0; leave it out'),
        (lambda: QSGD(bucket=2.5), "bucket >= 1"),  # type: ignore[arg-type]
        (lambda: QSGD(bucket="layer"), "bucket >= 1"),  # type: ignore[arg-type]
        (lambda: TopK(), "a fraction or k, one of them"),
        (lambda: TopK(0.1, 3), "a fraction or k, one of them"),
        (lambda: TopK(0.0), r"fraction in \(0, 1\]"),
        (lambda: TopK(1.01), "fraction"),
        (lambda: TopK(math.nan), "fraction"),
        (lambda: TopK(10), r"got 10; for a number of entries write TopK\(k=...\)"),
        (lambda: TopK(k=0), "whole number of k from 1"),
        (lambda: TopK(k=4).encode(torch.ones(3), draws(0)), "k <= 3, the model's size, got 4"),
    ],
)
def test_nonsense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize(
    "codec",
    [QSGD(), QSGD(bucket="tensor"), QSGD(levels=5, bucket=9), ScaledSign(), TopK(0.1)],
    ids=repr,
)
def test_a_diverging_client_is_still_named(codec: Codec, mode: str) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        # Client 2 alone holds label 2, and its gradient is not a number in a few coordinates.
        poison = torch.where(targets == 2, torch.nan, 0.0) * outputs[:, 2]
        return (nn.functional.cross_entropy(outputs, targets, reduction="none") + poison).mean()

    inputs = [vector(30, label).view(5, 6) for label in range(4)]
    pairs = [(a, torch.full((5,), label)) for a, label in zip(inputs, (0, 1, 2, 0), strict=True)]
    run = testing.start(
        Compressed(ud.FedAvg(lr=0.1), codec),
        clients=ud.Clients(pairs),
        loss=loss,
        work=ud.Steps(2),
        participation=[[0, 1], [1, 2, 3]],
        rounds=2,
        mode=mode,
    )
    next(run)
    good = run.x
    with pytest.raises(ud.DivergenceError, match="client 2 in round 2") as caught:
        next(run)
    assert caught.value.clients == [2]
    assert torch.equal(run.x, good)
