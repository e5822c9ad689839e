"""Data, partitions, the quadratic test bed, and the keyed randomness under them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import undrift as ud
from undrift import keyed
from undrift.data import embedded


@settings(deadline=None, max_examples=40)
@given(
    samples=st.integers(1, 200),
    clients=st.integers(1, 12),
    classes=st.integers(1, 10),
    alpha=st.sampled_from([1e-4, 0.01, 0.3, 1.0, 100.0, 1e6]),
    seed=st.integers(0, 2**31),
)
def test_dirichlet_gives_equal_sizes_without_duplicates(
    samples: int, clients: int, classes: int, alpha: float, seed: int
) -> None:
    targets = torch.arange(samples) % classes
    if samples < clients:
        with pytest.raises(ValueError, match="fewer clients"):
            ud.data.dirichlet(targets, clients, alpha, seed=seed)
        return
    parts = ud.data.dirichlet(targets, clients, alpha, seed=seed)
    assert [len(part) for part in parts] == [samples // clients] * clients
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)


def mixes(alpha: float) -> np.ndarray:
    """Label shares of 400 clients that each take a small part of a large pool."""
    targets = torch.arange(200_00) % 5
    parts = ud.data.dirichlet(targets, 400, alpha, seed=1)
    return np.stack([np.bincount(targets[p].numpy(), minlength=5) / len(p) for p in parts])


def test_dirichlet_follows_its_law_while_the_pool_lasts() -> None:
    """Var of a share under Dir(a) with C classes is (C - 1) / (C^2 (C a + 1)), plus sampling."""
    for alpha in (0.5, 5.0):
        shares = mixes(alpha)
        law = 4 / (25 * (5 * alpha + 1))
        n = 50
        expected = law + (0.2 * 0.8 - law) / n
        assert np.isclose(shares.mean(), 0.2)
        assert abs(shares.var() / expected - 1) < 0.25


def test_smaller_alpha_is_more_skewed() -> None:
    skew = [mixes(alpha).max(1).mean() for alpha in (100.0, 1.0, 0.1)]
    assert skew[0] < skew[1] < skew[2]


def test_iid_uses_every_sample_once() -> None:
    parts = ud.data.iid(torch.zeros(23), 5, seed=2)
    assert sorted(len(part) for part in parts) == [4, 4, 5, 5, 5]
    assert sorted(np.concatenate(parts)) == list(range(23))


def test_partitions_depend_on_the_seed_alone() -> None:
    targets = torch.arange(60) % 3
    for law in (
        lambda seed: ud.data.iid(targets, 4, seed=seed),
        lambda seed: ud.data.dirichlet(targets, 4, 0.5, seed=seed),
    ):
        assert all(map(np.array_equal, law(1), law(1)))
        assert not all(map(np.array_equal, law(1), law(2)))


def test_digits_are_embedded_split_and_scaled() -> None:
    data = ud.data.digits()
    (train, labels), (test, _) = data.train, data.test
    assert len(train) + len(test) == 1797
    assert train.shape[1:] == (64,)
    assert float(train.min()) == 0.0
    assert float(train.max()) == 1.0
    assert sorted(labels.unique().tolist()) == list(range(10))


def test_digits_are_those_of_scikit_learn() -> None:
    raw = load_digits()
    pixels, classes = embedded._digits()
    assert np.array_equal(pixels, raw.data)
    assert np.array_equal(classes, raw.target)


def test_digits_take_four_bits_a_value() -> None:
    size = Path(embedded.__file__).with_name("digits.bin").stat().st_size
    assert size < 1797 * 65 / 2 * 1.05


def test_clients_are_views_of_one_pool() -> None:
    inputs, targets = torch.arange(12.0).view(6, 2), torch.arange(6)
    split = ud.Clients.split(inputs, targets, [[5, 0], [2]])
    assert split.inputs.data_ptr() == inputs.data_ptr()
    assert torch.equal(split[0][1], torch.tensor([5, 0]))
    listed = ud.Clients([(inputs[:4], targets[:4]), (inputs[4:], targets[4:])])
    assert torch.equal(listed[1][0], inputs[4:])
    assert listed.sizes.tolist() == [4, 2]
    assert "2 clients, 2 to 4 samples each, no test set" in repr(listed)


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_quadratics_are_what_they_say(noise: float) -> None:
    """The gradient of the loss on a client's data is A_i (x - b_i), with residuals or not."""
    problem = ud.data.quadratics(4, 3, samples=[5, 9, 3, 12], noise=noise, seed=1)
    x = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for i in range(4):
        inputs, targets = problem.clients[i]
        model = problem.model()
        model.weight.data.copy_(x[None])
        (g,) = torch.autograd.grad(problem.loss(model(inputs), targets), list(model.parameters()))
        assert torch.allclose(g[0], problem.A[i] @ (x - problem.b[i]))
        eigenvalues = torch.linalg.eigvalsh(problem.A[i])
        assert eigenvalues.min() >= 0.1 - 1e-12
        assert eigenvalues.max() <= 1 + 1e-12
    w = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    gap = problem.optimum(w) - problem.b
    assert float(torch.einsum("i,ijk,ik->j", w, problem.A, gap).abs().max()) < 1e-12


def test_permutations_are_those_of_their_generators() -> None:
    """Also on several threads, each of which has a generator to set anew."""

    def differ(seed: int) -> list[int]:
        items = np.arange(seed, 97)
        return [
            t
            for t in range(50)
            if keyed.permutation(items, seed, "batches", t).tolist()
            != keyed.generator(seed, "batches", t).permutation(items).tolist()
        ]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(differ, range(8))) == [[]] * 8


def test_keys_are_stable_across_releases() -> None:
    """Frozen values: changing them would change every published run."""
    assert keyed.generator(0, "cohort", 1).integers(0, 1000, 3).tolist() == [379, 641, 488]
    key = torch.tensor(keyed.key(7, "dropout", 1, 2))
    assert keyed.uniform(key, (2,), torch.float64).tolist() == [
        0.9629954183933784,
        0.11644543415767461,
    ]
    assert torch.equal(keyed.uniform(key, (5,))[:2], keyed.uniform(key, (2,)))


def test_keyed_uniforms_are_uniform_and_independent() -> None:
    keys = torch.tensor([keyed.key(0, "test", i) for i in range(200)])
    draws = torch.vmap(lambda k: keyed.uniform(k, (500,), torch.float64))(keys)
    counts = torch.histc(draws, 20, 0, 1)
    chi2 = float(((counts - 5000) ** 2 / 5000).sum())
    assert chi2 < 43.8  # 0.1 % point of chi-square with 19 degrees of freedom
    pairs = torch.corrcoef(draws)
    off = pairs[~torch.eye(200, dtype=torch.bool)]
    assert float(off.abs().max()) < 0.25
    assert abs(float(off.mean())) < 0.002
    folded = keyed.fold(keys[0], torch.arange(1000))
    assert len(folded.unique()) == 1000
    assert keyed.fold(keys[0], 3) == folded[3]


def test_uniform_agrees_in_both_precisions() -> None:
    key = torch.tensor(keyed.key(1, "x"))
    one, two = keyed.uniform(key, (100,)), keyed.uniform(key, (100,), torch.float64)
    assert float((one.double() - two).abs().max()) < 2**-23


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([[0], []], "at least one sample each, got none for client 1"),
        ([[0], np.array([True, False])], "integer indices, got bool for client 1; turn a mask"),
        ([[0], [1.0]], "integer indices, got float64 for client 1"),
        ([[0, 1], [5], [2, 6, 7]], r"indices below 6, got 2\.\.\.7 for client 2"),
        ([[0, 1], [-1, 5]], r"indices below 6, got -1\.\.\.5 for client 1"),
        ([[0], [[1, 2]]], "a list of indices, got 2 axes for client 1"),
    ],
)
def test_bad_parts_name_the_client(parts: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        ud.Clients.split(torch.zeros(6, 2), torch.arange(6), parts)


def test_parts_may_be_lists_and_arrays_of_any_integers() -> None:
    parts = [[5, 0], np.array([2], dtype=np.int32), (1, 3), np.array([4], dtype=np.uint8)]
    split = ud.Clients.split(torch.zeros(6, 2), torch.arange(6), parts)
    assert split.index.tolist() == [5, 0, 2, 1, 3, 4]
    assert split.index.dtype == np.int64
    assert split.sizes.tolist() == [2, 1, 2, 1]


def test_many_parts_are_split_in_little_time() -> None:
    parts = list(np.arange(300_000).reshape(-1, 1))
    begin = time.process_time()
    split = ud.Clients.split(torch.zeros(300_000, 1), torch.zeros(300_000), parts)
    assert len(split) == 300_000
    assert time.process_time() - begin < 0.8, "2.4 s before"
