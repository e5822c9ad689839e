"""Partitions: what each promises, their label laws, the published loops, and every error."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from undrift import keyed
from undrift.data import Clients, label_mixes, partition
from undrift.data.label_mixes import LAWS, REDRAWS
from undrift.data.partition import (
    classes_per_client,
    dirichlet,
    iid,
    natural,
    parse,
    quantity,
    replicated,
    shards,
)

Parts = list[Any]
ALPHAS = (5e-324, 1e-300, 1e-3, 0.3, 1.0, 1e6, 1.7e308)

DEALS: dict[str, Callable[[Tensor, int, int], Parts]] = {
    "iid": lambda t, m, seed: iid(t, m, seed=seed),
    "shards": lambda t, m, seed: shards(t, m, per_client=1, seed=seed),
    "equal": lambda t, m, seed: dirichlet(t, m, 0.3, seed=seed),
    "sequential": lambda t, m, seed: dirichlet(t, m, 0.3, law="sequential", seed=seed),
    "per-class": lambda t, m, seed: dirichlet(t, m, 0.3, law="per-class", seed=seed),
    "classes": lambda t, m, seed: classes_per_client(t, m, 1, seed=seed),
    "classes-uneven": lambda t, m, seed: classes_per_client(t, m, 1, law="uneven", seed=seed),
    "natural": lambda t, m, seed: natural(torch.arange(len(t)) % (m + 2), m, seed=seed),
    "quantity": lambda t, m, seed: quantity(t, m, 0.3, seed=seed),
}
USES_ALL = ("iid", "shards", "per-class", "quantity")
EQUAL_SIZES = ("equal", "sequential")


def random_labels(samples: int, classes: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, classes, samples))


def histogram(targets: Tensor, parts: Parts, classes: int) -> Any:
    """(clients, classes)"""
    return np.stack([np.bincount(targets.numpy()[part], minlength=classes) for part in parts])


def log_gammas(rng: np.random.Generator, rows: int, columns: int, alpha: float) -> Any:
    """Unnormalised Dir(alpha) of each row, as it is drawn for every law."""
    boosted = np.log(rng.gamma(alpha + 1, size=(rows, columns)))
    return boosted + np.log(1.0 - rng.random(size=(rows, columns))) / alpha


def assert_dealt(parts: Parts, samples: int, clients: int) -> None:
    """Each sample at most once, each client with at least one, ascending, as int64."""
    assert len(parts) == clients
    assert all(part.dtype == np.int64 and part.ndim == 1 and len(part) for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < samples


# What every partition promises ------------------------------------------------------------------


@pytest.mark.parametrize("name", DEALS)
@settings(deadline=None, max_examples=40)
@given(
    clients=st.integers(1, 12),
    more=st.integers(0, 150),
    classes=st.integers(1, 8),
    seed=st.integers(0, 2**31),
)
def test_every_sample_goes_to_at_most_one_client(
    name: str, clients: int, more: int, classes: int, seed: int
) -> None:
    samples = clients + 2 + more
    targets = random_labels(samples, classes, seed) * 7 - 3  # any integers will do
    parts = DEALS[name](targets, clients, seed)
    assert_dealt(parts, samples, clients)
    sizes = [len(part) for part in parts]
    if name in USES_ALL:
        assert sum(sizes) == samples
    if name in EQUAL_SIZES:
        assert sizes == [samples // clients] * clients
    if name in ("iid", "shards", "classes"):
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", DEALS)
def test_a_partition_is_a_function_of_its_seed(name: str) -> None:
    targets = random_labels(400, 5)
    one, again, other = (DEALS[name](targets, 6, seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, one, again))
    assert not all(map(np.array_equal, one, other))


@pytest.mark.parametrize("name", DEALS)
def test_arrays_serve_like_tensors_even_when_read_only(name: str) -> None:
    targets = random_labels(300, 5)
    array = targets.numpy().astype(np.uint8)
    array.setflags(write=False)
    assert all(map(np.array_equal, DEALS[name](targets, 6, 3), DEALS[name](array, 6, 3)))  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("law", LAWS)
@settings(deadline=None, max_examples=12)
@given(
    clients=st.integers(1, 9),
    more=st.integers(0, 80),
    classes=st.integers(1, 6),
    seed=st.integers(0, 2**31),
)
def test_any_alpha_keeps_the_promises(
    law: Any, alpha: float, clients: int, more: int, classes: int, seed: int
) -> None:
    samples = clients + more
    targets = random_labels(samples, classes, seed)
    parts = dirichlet(targets, clients, alpha, law=law, seed=seed)
    assert_dealt(parts, samples, clients)
    if law == "per-class":
        assert sum(map(len, parts)) == samples
        present = len(targets.unique())
        assert min(map(len, parts)) >= min(present, samples // (2 * clients))
    else:
        assert {len(part) for part in parts} == {samples // clients}
    assert_dealt(quantity(samples, clients, alpha, seed=seed), samples, clients)


# Never hanging: the number of draws is bounded ---------------------------------------------------


@pytest.mark.parametrize("alpha", [1e-300, 1e-3])
@pytest.mark.parametrize(("law", "most"), [("equal", 1), ("sequential", 1), ("per-class", REDRAWS)])
def test_tiny_alpha_takes_a_bounded_number_of_draws(
    law: Any, most: int, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[float] = []
    draw = label_mixes.log_dirichlet

    def counted(rng: Any, rows: int, columns: int, alpha: float) -> Any:
        draws.append(alpha)
        return draw(rng, rows, columns, alpha)

    monkeypatch.setattr(label_mixes, "log_dirichlet", counted)
    parts = dirichlet(random_labels(600, 10), 50, alpha, law=law, minimum=12)
    assert len(draws) == most  # a dozen samples for each of fifty is never met by chance
    assert [len(part) for part in parts] == [12] * 50


@settings(deadline=None, max_examples=30)
@given(
    clients=st.integers(1, 8),
    each=st.integers(1, 9),
    over=st.integers(0, 40),
    classes=st.integers(1, 5),
    seed=st.integers(0, 999),
)
def test_the_minimum_is_met_wherever_it_can_be(
    clients: int, each: int, over: int, classes: int, seed: int
) -> None:
    samples = clients * each + over
    targets = random_labels(samples, classes, seed)
    per_class = dirichlet(targets, clients, 0.05, law="per-class", minimum=each, seed=seed)
    by_size = quantity(targets, clients, 0.05, minimum=each, seed=seed)
    for parts in (per_class, by_size):
        assert_dealt(parts, samples, clients)
        assert sum(map(len, parts)) == samples
        assert min(map(len, parts)) >= each


def test_the_repair_moves_no_more_than_is_missing() -> None:
    counts = np.array([[9, 0, 1], [0, 0, 0], [2, 5, 0], [1, 0, 0]])
    repaired = label_mixes._repaired(counts, 2)
    assert repaired.sum(axis=0).tolist() == counts.sum(axis=0).tolist()
    assert repaired.tolist() == [[6, 0, 1], [2, 0, 0], [2, 5, 0], [2, 0, 0]]


def test_the_draw_that_lacks_fewest_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[Any] = []
    divide = label_mixes._divided

    def recorded(log_mix: Any, supply: Any) -> Any:
        draws.append(divide(log_mix, supply))
        return draws[-1]

    monkeypatch.setattr(label_mixes, "_divided", recorded)
    targets = random_labels(200, 5)
    table = histogram(targets, dirichlet(targets, 10, 0.1, law="per-class", minimum=15), 5)
    missing = [int(np.maximum(15 - draw.sum(axis=1), 0).sum()) for draw in draws]
    assert len(draws) == REDRAWS
    assert min(missing) < missing[-1]
    best = draws[missing.index(min(missing))]
    assert np.maximum(table - best, 0).sum() == min(missing)


# Label laws --------------------------------------------------------------------------------------


def share_variance(alpha: float, categories: int) -> float:
    """Of one share under Dir(alpha): (C - 1) / (C^2 (C alpha + 1))."""
    return (categories - 1) / (categories**2 * (categories * alpha + 1))


@pytest.mark.parametrize("alpha", [0.5, 5.0])
@pytest.mark.parametrize("law", ["equal", "sequential"])
def test_client_mixes_have_the_moments_of_the_dirichlet(law: Any, alpha: float) -> None:
    """Of n = 20 samples each, while the pool is nearly full: the mix's variance and sampling's."""
    targets = torch.arange(3000) % 5
    rows = []
    for seed in range(60 if law == "sequential" else 4):
        parts = dirichlet(targets, 150, alpha, law=law, seed=seed)
        # In turns nobody is late; one after the other, only the first find every class.
        rows.append(histogram(targets, parts[:10] if law == "sequential" else parts, 5) / 20)
    shares = np.concatenate(rows)
    spread = share_variance(alpha, 5)
    expected = spread + (0.2 * 0.8 - spread) / 20
    assert np.abs(shares.mean(axis=0) - 0.2).max() < 5 * math.sqrt(expected / len(shares))
    assert shares.var(axis=0).mean() == pytest.approx(expected, rel=0.12)


def test_sequential_weighs_a_class_by_its_samples() -> None:
    """One sample each, three times as many of label 0, p uniform on (0, 1): for the first client

    E[3p / (3p + 1 - p)] = 3/2 - 3/4 ln 3 = 0.676, where drawing by the mix alone has 1/2.
    """
    targets, draws = torch.tensor([0] * 9 + [1] * 3), 1500
    zeros = [
        int(targets[dirichlet(targets, 12, 1.0, law="sequential", seed=seed)[0]]) == 0
        for seed in range(draws)
    ]
    assert abs(np.mean(zeros) - (1.5 - 0.75 * math.log(3))) < 4 * 0.47 / math.sqrt(draws)


def test_the_race_is_the_weighted_draw_without_replacement() -> None:
    """Against all sequences of three draws from 3, 2 and 1 samples of weights 5, 3 and 2."""
    left, weights, size = (3, 2, 1), (5.0, 3.0, 2.0), 3
    exact: Counter[tuple[int, ...]] = Counter()
    for sequence in itertools.product(range(3), repeat=size):
        remaining, chance = list(left), 1.0
        for label in sequence:
            chance *= weights[label] * remaining[label] / np.dot(weights, remaining)
            remaining[label] -= 1 if remaining[label] else 0
        exact[tuple(sequence.count(c) for c in range(3))] += chance  # type: ignore[assignment]
    assert sum(exact.values()) == pytest.approx(1)
    rng, draws = keyed.generator(1, "test"), 12_000
    mix = np.log(weights)
    seen = Counter(
        tuple(label_mixes._weighted(rng, np.array(left), mix, size).tolist()) for _ in range(draws)
    )
    possible = [counts for counts, chance in exact.items() if chance > 0]
    assert set(seen) == set(possible)
    assert len(possible) == 6
    chi2 = sum((seen[c] - draws * exact[c]) ** 2 / (draws * exact[c]) for c in possible)
    assert chi2 < 20.5  # 0.1 % point with 5 degrees of freedom


def test_without_skew_a_sequential_client_is_a_plain_sample() -> None:
    """alpha = 1e6: of 6 + 4 samples, the first client's five are hypergeometric."""
    targets, draws = torch.tensor([0] * 6 + [1] * 4), 2000
    seen = Counter(
        int((targets[dirichlet(targets, 2, 1e6, law="sequential", seed=seed)[0]] == 0).sum())
        for seed in range(draws)
    )
    chances = {k: math.comb(6, k) * math.comb(4, 5 - k) / math.comb(10, 5) for k in range(1, 6)}
    assert set(seen) <= set(chances)
    chi2 = sum((seen[k] - draws * p) ** 2 / (draws * p) for k, p in chances.items())
    assert chi2 < 18.5  # 0.1 % point with 4 degrees of freedom


def test_the_last_sequential_clients_get_what_is_left() -> None:
    """Whose favourite is what they hold most of: the first all, the last only by luck."""
    targets = torch.arange(4000) % 10
    agree = np.zeros(100)
    for seed in range(10):
        rng = keyed.generator(seed, "partition")
        for c in range(10):
            rng.permutation(np.flatnonzero(targets.numpy() == c))
        favourites = log_gammas(rng, 100, 10, 0.05).argmax(axis=1)
        parts = dirichlet(targets, 100, 0.05, law="sequential", seed=seed)
        agree += histogram(targets, parts, 10).argmax(axis=1) == favourites
    assert agree[:5].mean() > 9
    assert agree[-20:].mean() < 6


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_per_class_divides_a_class_by_the_dirichlet(alpha: float) -> None:
    """The first class, which no balancing touches: shares over 5 clients."""
    targets = torch.arange(5000) % 10
    rows = np.stack(
        [
            histogram(targets, dirichlet(targets, 5, alpha, law="per-class", seed=seed), 10)[:, 0]
            for seed in range(400)
        ]
    )
    shares, spread = rows / 500, share_variance(alpha, 5)
    assert np.abs(shares.mean(axis=0) - 0.2).max() < 5 * math.sqrt(spread / 400)
    assert shares.var(axis=0).mean() == pytest.approx(spread, rel=0.12)


@pytest.mark.parametrize("alpha", [0.5, 5.0])
@pytest.mark.parametrize("minimum", [1, 60])
def test_quantity_has_the_moments_of_the_dirichlet(alpha: float, minimum: int) -> None:
    sizes = np.stack(
        [
            [len(part) for part in quantity(1000, 5, alpha, minimum=minimum, seed=seed)]
            for seed in range(800)
        ]
    )
    spread = share_variance(alpha, 5) * (1000 - 5 * minimum) ** 2
    assert np.abs(sizes.mean(axis=0) - 200).max() < 1 + 5 * math.sqrt(spread / 800)
    assert sizes.var(axis=0).mean() == pytest.approx(spread, rel=0.12)
    assert sizes.min() >= minimum


@pytest.mark.parametrize("name", ["iid", "quantity"])
def test_labels_are_independent_of_the_clients(name: str) -> None:
    """Chi-square of the clients x labels table: its mean over 200 splits is (N / (N - 1)) df."""
    targets = torch.tensor([0] * 500 + [1] * 300 + [2] * 200)
    total, degrees = 0.0, 0
    for seed in range(200):
        parts = iid(targets, 8, seed=seed) if name == "iid" else quantity(targets, 8, 2, seed=seed)
        table = histogram(targets, parts, 3)
        expected = table.sum(axis=1)[:, None] * np.array([0.5, 0.3, 0.2])
        total += float(((table - expected) ** 2 / expected).sum())
        degrees += 7 * 2
    assert total / degrees == pytest.approx(1000 / 999, abs=4 * math.sqrt(2 / degrees))


# The published loops, transcribed ----------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1e-4, 0.3, 10.0])
def test_equal_is_the_published_loop(alpha: float) -> None:
    """In random turns, one label by the client's mix over the classes that are left."""
    targets = random_labels(157, 4)
    rng = keyed.generator(5, "partition")
    pools = [list(rng.permutation(np.flatnonzero(targets.numpy() == c))) for c in range(4)]
    mix = log_gammas(rng, 7, 4, alpha)
    parts: Parts = [[] for _ in range(7)]
    for _ in range(157 // 7):
        for i in rng.permutation(7):
            noise = rng.gumbel(size=4)
            label = max((c for c in range(4) if pools[c]), key=lambda c: mix[i, c] + noise[c])
            parts[i].append(pools[label].pop())
    dealt = dirichlet(targets, 7, alpha, seed=5)
    assert [part.tolist() for part in dealt] == [sorted(part) for part in parts]


def test_equal_partitions_are_stable_across_releases() -> None:
    """Frozen values: published runs depend on them."""
    parts = dirichlet(torch.arange(24) % 3, 4, 0.3, seed=0)
    assert [part.tolist() for part in parts] == [
        [2, 3, 5, 13, 14, 20],
        [9, 12, 15, 18, 21, 23],
        [1, 4, 7, 11, 16, 22],
        [0, 6, 8, 10, 17, 19],
    ]


def test_sequential_at_the_limit_takes_class_after_class() -> None:
    """alpha -> 0: a client takes all of its first class that is left, then of its second, ..."""
    targets = random_labels(90, 4, seed=2)
    rng = keyed.generator(4, "partition")
    for c in range(4):
        rng.permutation(np.flatnonzero(targets.numpy() == c))
    mix = log_gammas(rng, 9, 4, 1e-9)
    left = np.bincount(targets.numpy()).tolist()
    expected = []
    for i in range(9):
        row, wanted = [0] * 4, 10
        for label in sorted(range(4), key=lambda c: -mix[i, c]):
            row[label] = min(left[label], wanted)
            left[label] -= row[label]
            wanted -= row[label]
        expected.append(row)
    dealt = dirichlet(targets, 9, 1e-9, law="sequential", seed=4)
    assert histogram(targets, dealt, 4).tolist() == expected


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_per_class_is_the_published_loop(alpha: float) -> None:
    """Shares over the clients below N / M, cut at floor(cumulated * n_k), until all have enough."""
    targets = random_labels(311, 6, seed=1)
    supply = np.bincount(targets.numpy())
    rng = keyed.generator(8, "partition")
    sizes = [0]
    while min(sizes) < 6:
        mix = log_gammas(rng, 6, 5, alpha)
        table, sizes = np.zeros((5, 6), dtype=int), [0] * 5
        for k in range(6):
            below = [j for j in range(5) if sizes[j] < 311 / 5]
            top = max(mix[k, j] for j in below)
            shares = [math.exp(mix[k, j] - top) for j in below]
            cuts = [
                int(c * supply[k]) for c in itertools.accumulate(s / sum(shares) for s in shares)
            ]
            cuts[-1] = int(supply[k])
            for j, start, stop in zip(below, [0, *cuts], cuts, strict=False):
                table[j, k] = stop - start
                sizes[j] += stop - start
    dealt = dirichlet(targets, 5, alpha, law="per-class", seed=8)
    assert histogram(targets, dealt, 6).tolist() == table.tolist()


def test_shards_are_cut_from_the_sorted_samples() -> None:
    """NET-FLEET's way: 2 of 200 for each; here 2 of 5 of 53 sorted samples, three left over."""
    targets = random_labels(53, 4)
    order = sorted(range(53), key=lambda j: (int(targets[j]), j))
    cut = [tuple(sorted(order[i : i + 5])) for i in range(0, 50, 5)]
    parts = shards(targets, 4, per_client=2, size=5, seed=1)
    assert_dealt(parts, 53, 4)
    for part in parts:
        pairs = [{*one, *two} for one, two in itertools.combinations(cut, 2)]
        assert set(part.tolist()) in pairs


# Classes per client ------------------------------------------------------------------------------


def could_all_have_one_more(table: Any, supply: list[int]) -> bool:
    """Whether all could have one sample more than the smallest, with the labels they hold."""
    more = table.sum(axis=1).min() + 1 - (table > 0).sum(axis=1)
    graph = nx.DiGraph()
    for label, n in enumerate(supply):
        graph.add_edge("source", ("label", label), capacity=n - (table[:, label] > 0).sum())
    for i, label in np.argwhere(table > 0).tolist():
        graph.add_edge(("label", label), ("client", i))
    for i, missing in enumerate(more.tolist()):
        graph.add_edge(("client", i), "sink", capacity=missing)
    return bool(nx.maximum_flow_value(graph, "source", "sink") == more.sum())


@pytest.mark.parametrize("law", ["equal", "uneven"])
@settings(deadline=None, max_examples=150)
@given(
    supply=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    clients=st.integers(1, 9),
    classes=st.integers(1, 6),
    seed=st.integers(0, 999),
)
def test_each_client_holds_exactly_so_many_classes(
    law: Any, supply: list[int], clients: int, classes: int, seed: int
) -> None:
    targets = torch.tensor([label for label, n in enumerate(supply) for _ in range(n)])
    targets = targets[torch.from_numpy(np.random.default_rng(seed).permutation(len(targets)))]
    feasible = (
        classes <= len(supply)
        and sum(supply) >= clients
        and sum(min(n, clients) for n in supply) >= clients * classes
    )
    if not feasible:
        with pytest.raises(ValueError, match=r"lower classes|fewer clients"):
            classes_per_client(targets, clients, classes, law=law, seed=seed)
        return
    parts = classes_per_client(targets, clients, classes, law=law, seed=seed)
    assert_dealt(parts, len(targets), clients)
    table = histogram(targets, parts, len(supply))
    assert ((table > 0).sum(axis=1) == classes).all()
    if law == "equal":
        sizes = table.sum(axis=1)
        assert sizes.max() - sizes.min() <= 1
        assert not could_all_have_one_more(table, supply)
        return
    for label, n in enumerate(supply):
        held = table[:, label][table[:, label] > 0]
        if len(held):
            assert held.sum() == n
            assert held.max() - held.min() <= 1
    if clients * classes >= len(supply):
        assert (table > 0).any(axis=0).all()


@pytest.mark.parametrize("clients", [10, 20])
def test_five_of_ten_equal_classes_are_shared_out_whole(clients: int) -> None:
    """The thesis's DP2: clients have five classes, the same volume, and together all samples."""
    targets = torch.arange(10).repeat(60)
    for seed in range(5):
        table = histogram(targets, classes_per_client(targets, clients, 5, seed=seed), 10)
        assert (table.sum(axis=1) == 600 // clients).all()
        assert set(table.ravel().tolist()) == {0, 120 // clients}
        assert table.sum(axis=0).tolist() == [60] * 10


def test_clients_hand_over_what_others_lack() -> None:
    """With 14 holders of ten labels some clients share both labels and others none."""
    targets = torch.arange(10).repeat(50)
    for seed in range(10):
        table = histogram(targets, classes_per_client(targets, 7, 2, seed=seed), 10)
        assert not could_all_have_one_more(table, [50] * 10)


def test_holders_are_in_proportion_to_the_samples() -> None:
    """Five places for 70, 20 and 8 samples go to the largest of 70, 35, 23.3, 20, 17.5, 14, 8."""
    targets = torch.tensor([0] * 70 + [1] * 20 + [2] * 8)
    table = histogram(targets, classes_per_client(targets, 5, 1), 3)
    assert (table > 0).sum(axis=0).tolist() == [4, 1, 0]
    assert sorted(table.sum(axis=1).tolist()) == [17, 17, 18, 18, 18]


def test_many_samples_of_unequal_classes_are_nearly_all_used() -> None:
    shares = np.random.default_rng(0).dirichlet(np.ones(30))
    targets = np.random.default_rng(1).choice(30, 20_000, p=shares)
    sizes = [len(part) for part in classes_per_client(targets, 100, 5, seed=0)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) > 0.97 * 20_000


@pytest.mark.parametrize(
    ("supply", "clients", "classes"),
    [((3, 1, 1, 1), 3, 2), ((4, 4, 2, 1, 1), 4, 3), ((5, 2, 2, 1), 5, 2), ((9, 9, 1, 2), 6, 2)],
    ids=["one-ample", "two-ample", "graded", "loose"],
)
def test_scarce_labels_are_spread_so_that_all_get_theirs(
    supply: tuple[int, ...], clients: int, classes: int
) -> None:
    """A client that took two scarce labels would leave another without its second."""
    targets = torch.tensor([label for label, n in enumerate(supply) for _ in range(n)])
    for seed in range(25):
        parts = classes_per_client(targets, clients, classes, law="uneven", seed=seed)
        table = histogram(targets, parts, len(supply))
        assert ((table > 0).sum(axis=1) == classes).all()
        assert table.sum(axis=0).tolist() == list(supply)


@pytest.mark.parametrize("law", ["equal", "uneven"])
def test_labels_are_drawn_alike_once_all_are_held(law: Any) -> None:
    """Two of four labels: the last of six clients has any of the six pairs equally often."""
    targets, draws = torch.arange(48) % 4, 900
    last = (classes_per_client(targets, 6, 2, law=law, seed=seed)[-1] for seed in range(draws))
    seen = Counter(tuple(targets[part].unique().tolist()) for part in last)
    assert len(seen) == 6
    assert sum((n - draws / 6) ** 2 / (draws / 6) for n in seen.values()) < 20.5  # 5 degrees


# Natural clients and copies ----------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    owners=st.lists(st.integers(-3, 8), min_size=1, max_size=60),
    minimum=st.integers(1, 6),
    clients=st.none() | st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_natural_clients_are_the_ids(
    owners: list[int], minimum: int, clients: int | None, seed: int
) -> None:
    held = {owner: [j for j, o in enumerate(owners) if o == owner] for owner in sorted(set(owners))}
    enough = [samples for samples in held.values() if len(samples) >= minimum]
    if len(enough) < (clients or 1):
        with pytest.raises(ValueError, match=r"lower minimum|use fewer clients"):
            natural(np.array(owners), clients, minimum=minimum, seed=seed)
        return
    parts = [
        part.tolist() for part in natural(np.array(owners), clients, minimum=minimum, seed=seed)
    ]
    if clients is None:
        assert parts == enough
    else:
        assert len(parts) == clients
        assert [part for part in enough if part in parts] == parts  # in the order of the ids


def test_natural_clients_are_chosen_alike() -> None:
    owners, draws = torch.arange(20) // 4, 1000
    seen = Counter(
        int(owners[part[0]]) for seed in range(draws) for part in natural(owners, 2, seed=seed)
    )
    expected = draws * 2 / 5
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < 18.5  # 4 degrees


def test_replicas_are_one_array_of_everything() -> None:
    parts = replicated(torch.rand(30), 50)
    assert len(parts) == 50
    assert len({id(part) for part in parts}) == 1
    assert parts[0].tolist() == list(range(30))
    clients = Clients.split(torch.rand(30, 2), torch.zeros(30), parts)
    assert clients.sizes.tolist() == [30] * 50


# The command line's words ------------------------------------------------------------------------


OWNERS = torch.arange(300) % 12
WORDS: dict[str, Callable[[Tensor], Parts]] = {
    "iid": lambda t: iid(t, 6, seed=4),
    "dirichlet": lambda t: dirichlet(t, 6, 0.7, seed=4),
    "dirichlet:0.2": lambda t: dirichlet(t, 6, 0.2, seed=4),
    "dirichlet-sequential:0.2": lambda t: dirichlet(t, 6, 0.2, law="sequential", seed=4),
    "dirichlet-per-class:1e-1": lambda t: dirichlet(t, 6, 0.1, law="per-class", seed=4),
    "dirichlet-per-class": lambda t: dirichlet(t, 6, 0.7, law="per-class", seed=4),
    "shards": lambda t: shards(t, 6, per_client=2, seed=4),
    "shards:3": lambda t: shards(t, 6, per_client=3, seed=4),
    "shards:3x7": lambda t: shards(t, 6, per_client=3, size=7, seed=4),
    "classes:2": lambda t: classes_per_client(t, 6, 2, seed=4),
    "classes-uneven:2": lambda t: classes_per_client(t, 6, 2, law="uneven", seed=4),
    "natural": lambda t: natural(OWNERS, 6, seed=4),
    "quantity:0.5": lambda t: quantity(t, 6, 0.5, seed=4),
    "replicated": lambda t: replicated(t, 6),
    " iid ": lambda t: iid(t, 6, seed=4),
}


@pytest.mark.parametrize("text", WORDS)
def test_a_word_names_a_partition(text: str) -> None:
    targets = random_labels(300, 5)
    partition.validate_shorthand(text)
    parts = parse(text, targets, 6, alpha=0.7, owners=OWNERS, seed=4)
    assert [part.tolist() for part in parts] == [part.tolist() for part in WORDS[text](targets)]


def test_without_a_number_of_clients_natural_takes_all_ids() -> None:
    assert len(parse("natural", random_labels(300, 5), None, owners=OWNERS)) == 12


BAD_WORDS = {
    "dirichet:0.3": "the nearest is 'dirichlet'",
    "": "one of iid, dirichlet, dirichlet-sequential, dirichlet-per-class, shards, classes, ",
    "dirichlet:": "a form such as dirichlet:0.3 with alpha > 0, got 'dirichlet:'",
    "dirichlet:0": "such as dirichlet:0.3",
    "dirichlet:-1": "such as dirichlet:0.3",
    "dirichlet:nan": "such as dirichlet:0.3",
    "dirichlet:inf": "such as dirichlet:0.3",
    "dirichlet:0.3x2": "such as dirichlet:0.3",
    "dirichlet-sequential:a": "such as dirichlet-sequential:0.3",
    "dirichlet-per-class:0.3:1": "such as dirichlet-per-class:0.3",
    "shards:x": "a form such as shards:2 or shards:2x200 with whole numbers >= 1",
    "shards:0": "such as shards:2",
    "shards:2x": "such as shards:2",
    "shards:2x0": "such as shards:2",
    "shards:2x3x4": "such as shards:2",
    "shards:1.5": "such as shards:2",
    "classes": "such as classes:5",
    "classes:0": "such as classes:5",
    "classes:2x2": "such as classes:5",
    "classes-uneven": "such as classes-uneven:5",
    "quantity": "such as quantity:0.5 with alpha > 0",
    "quantity:0": "such as quantity:0.5",
    "iid:2": "a form such as iid, got 'iid:2'",
    "natural:3": "a form such as natural, got",
    "replicated:": "a form such as replicated, got",
}


@pytest.mark.parametrize("text", BAD_WORDS)
def test_a_wrong_word_is_refused_with_the_right_one(text: str) -> None:
    for refuse in (
        lambda: partition.validate_shorthand(text),
        lambda: parse(text, random_labels(300, 5), 6, owners=OWNERS),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 -- matched as plain text below
            refuse()
        message = str(caught.value)
        assert BAD_WORDS[text] in message
        assert message.startswith("partition needs ")
        assert message.endswith(".")
        assert "\n" not in message


LABELS = torch.arange(40) % 4
ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "iid clients": (
        lambda: iid(LABELS, 41),
        "one sample for each of 41 clients, got 40; use fewer",
    ),
    "iid none": (lambda: iid(LABELS, 0), "clients >= 1"),
    "iid fraction": (lambda: iid(LABELS, 2.5), "a whole number, got 2.5"),  # type: ignore[arg-type]
    "quantity clients": (lambda: quantity(3, 4, 1.0), "use fewer clients"),
    "quantity alpha": (lambda: quantity(LABELS, 4, 0.0), "alpha > 0"),
    "quantity nan": (lambda: quantity(LABELS, 4, math.nan), "alpha > 0"),
    "quantity minimum": (
        lambda: quantity(LABELS, 4, 1.0, minimum=11),
        "quantity needs 44 samples for 4 clients of at least minimum = 11, got 40",
    ),
    "quantity zero": (lambda: quantity(LABELS, 4, 1.0, minimum=0), "minimum >= 1"),
    "law": (
        lambda: dirichlet(LABELS, 4, 1.0, law="perclass"),  # type: ignore[arg-type]
        "one of equal, sequential, per-class, got 'perclass'; the nearest is 'per-class'",
    ),
    "classes above": (
        lambda: classes_per_client(LABELS, 4, 5),
        "at most the 4 classes there are, got 5; lower classes",
    ),
    "classes zero": (lambda: classes_per_client(LABELS, 4, 0), "classes >= 1"),
    "classes clients": (lambda: classes_per_client(LABELS, 41, 1), "use fewer clients"),
    "classes scarce": (
        lambda: classes_per_client(LABELS, 15, 3),
        "samples for 45 pairs of a client and one of its labels, got 40",
    ),
    "classes floats": (lambda: classes_per_client(torch.rand(9), 3, 1), "one integer label"),
    "shards floats": (lambda: shards(torch.rand(9), 3), "torch.float32 of shape (9,); use iid"),
    "shards two columns": (lambda: shards(torch.zeros(9, 2).long(), 3), "shape (9, 2)"),
    "shards per client": (lambda: shards(LABELS, 3, per_client=0), "per_client >= 1"),
    "shards size": (lambda: shards(LABELS, 3, size=0), "size >= 1"),
    "shards too many": (lambda: shards(LABELS, 21), "at least 42 samples"),
    "shards too large": (lambda: shards(LABELS, 4, size=6), "8 shards of 6 samples, got 6"),
    "natural fewer": (
        lambda: natural(LABELS, 3, minimum=11),
        "3 ids with at least 11 samples, got 0; lower minimum",
    ),
    "natural clients": (
        lambda: natural(LABELS, 5),
        "5 ids with at least 1 samples, got 4; use fewer clients",
    ),
    "natural none": (lambda: natural(LABELS, minimum=11), "got 0; lower minimum"),
    "natural empty": (lambda: natural(np.zeros(0, dtype=int)), "got 0; lower minimum"),
    "natural zero": (lambda: natural(LABELS, 0), "clients >= 1"),
    "natural minimum": (lambda: natural(LABELS, minimum=0), "minimum >= 1"),
    "natural floats": (lambda: natural(np.zeros(3)), "one integer id per sample, got float64"),
    "natural names": (lambda: natural(np.array(["a"])), "number the ids"),
    "replicated none": (lambda: replicated(LABELS, 0), "clients >= 1"),
    "replicated empty": (lambda: replicated(LABELS[:0], 2), "at least one sample"),
    "word natural": (lambda: parse("natural", LABELS, 2), "data with natural clients"),
    "word clients": (lambda: parse("iid", LABELS, None), "set clients"),
    "word lengths": (
        lambda: parse("natural", LABELS, 2, owners=LABELS[:7]),
        "one owner per sample, 40, got 7",
    ),
    **{
        f"{law} {case}": (build, text)
        for law in LAWS
        for case, (build, text) in {
            "clients": (lambda law=law: dirichlet(LABELS, 41, 1, law=law), "use fewer clients"),
            "zero": (lambda law=law: dirichlet(LABELS, 4, 0, law=law), "alpha > 0"),
            "negative": (lambda law=law: dirichlet(LABELS, 4, -1, law=law), "alpha > 0"),
            "nan": (lambda law=law: dirichlet(LABELS, 4, math.nan, law=law), "alpha > 0"),
            "infinite": (lambda law=law: dirichlet(LABELS, 4, math.inf, law=law), "alpha > 0"),
            "floats": (lambda law=law: dirichlet(LABELS / 2, 4, 1, law=law), "use iid for regr"),
            "minimum": (
                lambda law=law: dirichlet(LABELS, 4, 1, law=law, minimum=11),
                "44 samples for 4 clients of at least minimum = 11, got 40; use fewer clients or",
            ),
        }.items()
    },
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_cannot_be_met_is_refused_in_one_sentence(case: str) -> None:
    build, text = ERRORS[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- matched as plain text below
        build()
    message = str(caught.value)
    assert text in message
    assert message.endswith(".")
    assert "\n" not in message
    assert " needs " in message
    assert ", got " in message
