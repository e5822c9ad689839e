"""Graphs and mixing matrices of gossip, against closed forms, and links that change."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift import topology as tp
from undrift.topology import Cycle, DroppedLinks, Links, Topology, Varying

SIZES = (1, 2, 3, 4, 5, 8, 12)
MAKERS: dict[str, Callable[..., Topology]] = {
    "ring": tp.ring,
    "complete": tp.complete,
    "star": tp.star,
    "exponential": tp.exponential,
    "torus": lambda m, **options: tp.torus(*tp.near_square(m), **options),
    "grid": lambda m, **options: tp.grid(*tp.near_square(m), **options),
    "erdos_renyi": lambda m, **options: tp.erdos_renyi(m, 0.5, **options),
    "barabasi_albert": lambda m, **options: tp.barabasi_albert(m, min(2, m - 1), **options),
    "small_world": lambda m, **options: tp.small_world(m, 2, 0.3, **options),
}
LEAST = {"barabasi_albert": 2, "small_world": 3}
CASES = [(name, m) for name in MAKERS for m in SIZES if m >= LEAST.get(name, 1)]
SOME = {
    "ring": tp.ring(7),
    "ring-metropolis": tp.ring(7, mixing="metropolis"),
    "star": tp.star(6),
    "torus": tp.torus(3, 4, mixing="metropolis"),
    "erdos-renyi": tp.erdos_renyi(10, 0.4, seed=3),
}


def assert_sound(topology: Topology) -> None:
    """Exactly symmetric, doubly stochastic, with weights where the links are."""
    W, m = topology.W, topology.size
    assert W.shape == (m, m)
    assert W.dtype == np.float64
    assert not W.flags.writeable
    assert np.array_equal(W, W.T)
    assert (W >= 0).all()
    assert np.abs(W.sum(axis=1) - 1).max() < 1e-15
    linked = nx.to_numpy_array(topology.graph, nodelist=range(m)) > 0
    assert np.array_equal((W > 0) & ~np.eye(m, dtype=bool), linked)
    assert list(topology.graph.nodes) == list(range(m))
    assert topology.links == topology.graph.number_of_edges()
    assert topology.degrees.tolist() == [topology.graph.degree[i] for i in range(m)]


def edges(topology: Topology) -> set[tuple[int, int]]:
    return {(min(pair), max(pair)) for pair in topology.graph.edges}


def second(W: Any) -> float:
    """The largest modulus among the eigenvalues but the first, the slow way."""
    m = len(W)
    return float(np.linalg.norm(W - np.full((m, m), 1 / m), 2))


@pytest.mark.parametrize("mixing", tp.MIXINGS)
@pytest.mark.parametrize(("name", "m"), CASES)
def test_every_maker_gives_a_connected_graph_and_a_sound_matrix(
    name: str, m: int, mixing: str
) -> None:
    topology = MAKERS[name](m, mixing=mixing)
    assert topology.size == m
    assert nx.is_connected(topology.graph)
    assert nx.number_of_selfloops(topology.graph) == 0
    assert_sound(topology)
    assert topology.spectral_gap == pytest.approx(1 - second(topology.W), abs=1e-12)


@pytest.mark.parametrize(("name", "m"), [(name, m) for name, m in CASES if m > 1])
def test_laplacian_mixing_has_smallest_eigenvalue_one_third(name: str, m: int) -> None:
    topology = MAKERS[name](m)
    laplacian = np.diag(topology.degrees) - nx.to_numpy_array(topology.graph, nodelist=range(m))
    largest = np.linalg.eigvalsh(laplacian)[-1]
    assert np.abs(topology.W - (np.eye(m) - 2 * laplacian / (3 * largest))).max() < 1e-12
    assert np.linalg.eigvalsh(topology.W)[0] == pytest.approx(1 / 3, abs=1e-12)


@pytest.mark.parametrize(("name", "m"), CASES)
def test_metropolis_weights_are_those_of_the_larger_degree(name: str, m: int) -> None:
    topology = MAKERS[name](m, mixing="metropolis")
    for i, j in topology.graph.edges:
        larger = max(topology.degrees[i], topology.degrees[j])
        assert topology.W[i, j] == pytest.approx(1 / (1 + larger), rel=1e-15)


@pytest.mark.parametrize("m", SIZES)
def test_links_and_degrees_in_closed_form(m: int) -> None:
    around = {1: 0, 2: 1}.get(m, 2)
    assert tp.ring(m).degrees.tolist() == [around] * m
    assert tp.complete(m).degrees.tolist() == [m - 1] * m
    assert tp.star(m).degrees.tolist() == [m - 1] + [1] * (m - 1)
    assert tp.grid(1, m).links == m - 1
    hops = {2**k for k in range(10) if 2**k < m}
    assert tp.exponential(m).degrees.tolist() == [len(hops | {m - hop for hop in hops})] * m
    assert tp.isolated(m).links == 0
    assert np.array_equal(tp.isolated(m).W, np.eye(m))


@pytest.mark.parametrize("x", range(1, 6))
@pytest.mark.parametrize("y", range(1, 6))
def test_a_torus_is_a_product_of_rings_and_a_grid_of_paths(x: int, y: int) -> None:
    for maker, side in ((tp.torus, tp.ring), (tp.grid, lambda m: tp.grid(1, m))):
        product = nx.cartesian_product(side(x).graph, side(y).graph)
        expected = {tuple(sorted((a * y + b, c * y + d))) for (a, b), (c, d) in product.edges}
        assert edges(maker(x, y)) == expected
        assert_sound(maker(x, y))


@pytest.mark.parametrize("m", [3, 4, 5, 16, 31])
def test_ring_gaps_in_closed_form(m: int) -> None:
    cosines = np.cos(2 * np.pi * np.arange(m) / m)
    metropolis = tp.ring(m, mixing="metropolis")
    expected = np.sort(1 / 3 + 2 / 3 * cosines)
    assert np.abs(np.linalg.eigvalsh(metropolis.W) - expected).max() < 1e-13
    gap = 1 - np.abs(1 / 3 + 2 / 3 * cosines[1:]).max()
    assert metropolis.spectral_gap == pytest.approx(gap, abs=1e-13)
    laplacian = 2 - 2 * cosines
    gap = 2 * laplacian[1] / (3 * laplacian.max())
    assert tp.ring(m).spectral_gap == pytest.approx(gap, abs=1e-12)


@pytest.mark.parametrize("m", [2, 3, 5, 16])
def test_complete_and_star_gaps_in_closed_form(m: int) -> None:
    mean = tp.complete(m, mixing="metropolis")
    assert np.abs(mean.W - 1 / m).max() < 1e-15
    assert mean.spectral_gap == pytest.approx(1, abs=1e-14)
    assert tp.complete(m).spectral_gap == pytest.approx(2 / 3, abs=1e-12)
    if m > 2:
        assert tp.star(m).spectral_gap == pytest.approx(2 / (3 * m), abs=1e-12)
        assert tp.star(m, mixing="metropolis").spectral_gap == pytest.approx(1 / m, abs=1e-12)


@pytest.mark.parametrize(("x", "y"), [(3, 3), (4, 4), (3, 5)])
def test_torus_gaps_in_closed_form(x: int, y: int) -> None:
    rows = np.cos(2 * np.pi * np.arange(x) / x)[:, None]
    columns = np.cos(2 * np.pi * np.arange(y) / y)[None, :]
    mixed = ((1 + 2 * rows + 2 * columns) / 5).ravel()[1:]
    assert tp.torus(x, y, mixing="metropolis").spectral_gap == pytest.approx(
        1 - np.abs(mixed).max(), abs=1e-12
    )
    laplacian = (4 - 2 * rows - 2 * columns).ravel()[1:]
    gap = 2 * laplacian.min() / (3 * laplacian.max())
    assert tp.torus(x, y).spectral_gap == pytest.approx(gap, abs=1e-12)


def test_gaps_at_the_ends() -> None:
    assert tp.ring(1).spectral_gap == 1.0
    assert tp.isolated(1).spectral_gap == 1.0
    assert tp.isolated(4).spectral_gap == 0.0
    swap = Topology(np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert swap.spectral_gap == pytest.approx(0, abs=1e-15), "-1 counts as much as 1"


@pytest.mark.parametrize("name", SOME)
def test_a_gossip_contracts_by_at_most_the_second_eigenvalue_and_reaches_it(name: str) -> None:
    topology = SOME[name]
    rate, W = 1 - topology.spectral_gap, topology.W
    X = np.random.default_rng(0).normal(size=(topology.size, 5))
    for _ in range(10):
        mixed = W @ X
        before, after = X - X.mean(axis=0), mixed - mixed.mean(axis=0)
        assert np.abs(mixed.mean(axis=0) - X.mean(axis=0)).max() < 1e-14
        assert np.linalg.norm(after) <= rate * np.linalg.norm(before) * (1 + 1e-12)
        X = mixed
    values, vectors = np.linalg.eigh(W)
    slowest = vectors[:, np.argsort(np.abs(values))[-2]]
    assert np.linalg.norm(W @ slowest) == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize("mixing", tp.MIXINGS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_other_labels_permute_the_matrix(mixing: str, seed: int) -> None:
    m = 7
    graph = tp.erdos_renyi(m, 0.5, seed=seed).graph
    order = np.random.default_rng(seed).permutation(m)
    renamed = nx.relabel_nodes(graph, dict(enumerate(order.tolist())))
    old = tp.from_graph(graph, mixing=mixing)
    new = tp.from_graph(renamed, mixing=mixing)
    P = np.eye(m)[order].T
    assert np.abs(new.W - P @ old.W @ P.T).max() < 1e-13
    assert new.spectral_gap == pytest.approx(old.spectral_gap, abs=1e-12)


RANDOM: dict[str, Callable[[int], Topology]] = {
    "erdos_renyi": lambda seed: tp.erdos_renyi(20, 0.3, seed=seed),
    "barabasi_albert": lambda seed: tp.barabasi_albert(20, 2, seed=seed),
    "small_world": lambda seed: tp.small_world(20, 4, 0.3, seed=seed),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_graphs_depend_on_the_seed_and_nothing_else(name: str) -> None:
    first = RANDOM[name](7)
    np.random.default_rng(1).random(5)
    assert first == RANDOM[name](7)
    assert first.digest() == RANDOM[name](7).digest()
    assert len({RANDOM[name](seed).digest() for seed in range(5)}) == 5


def test_random_graphs_have_their_numbers_of_links() -> None:
    for seed in range(5):
        assert tp.barabasi_albert(20, 3, seed=seed).links == 3 * 17
        assert tp.small_world(20, 4, 0.3, seed=seed).links == 40
    assert tp.barabasi_albert(4, 3).links == 3
    assert edges(tp.small_world(9, 2, 0.0)) == edges(tp.ring(9))
    assert edges(tp.erdos_renyi(6, 1.0)) == edges(tp.complete(6))
    # 190 pairs, 200 graphs: five standard deviations of the mean are 5 sqrt(.25 / 38000) = 0.013;
    # at this size practically none is drawn again for being disconnected.
    share = np.mean([tp.erdos_renyi(20, 0.5, seed=seed).links for seed in range(200)]) / 190
    assert abs(share - 0.5) < 0.013


@pytest.mark.parametrize("seed", range(10))
def test_erdos_renyi_with_few_links_is_drawn_until_connected(seed: int) -> None:
    topology = tp.erdos_renyi(12, 0.15, seed=seed)
    assert nx.is_connected(topology.graph)
    assert_sound(topology)


def test_it_is_a_value() -> None:
    topology = tp.ring(5)
    assert topology == tp.from_graph(nx.cycle_graph(5))
    assert hash(topology) == hash(tp.ring(5))
    assert topology != tp.ring(5, mixing="metropolis")
    assert topology != tp.ring(6)
    assert topology != "ring(5)"
    assert topology.digest() == tp.ring(5).digest() != tp.star(5).digest()
    assert re.fullmatch("[0-9a-f]{32}", topology.digest())
    assert topology.at(0) is topology
    assert topology.at(99) is topology
    for again in (pickle.loads(pickle.dumps(topology)), copy.deepcopy(topology)):
        assert again == topology
        assert repr(again) == "ring(5)"
        assert not again.W.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        topology.W[0, 0] = 1
    with pytest.raises(nx.NetworkXError, match=r"(?i)frozen"):
        topology.graph.add_edge(0, 2)
    with pytest.raises(AttributeError):
        topology.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("topology", "name"),
    [
        (tp.ring(4), "ring(4)"),
        (tp.torus(2, 3, mixing="metropolis"), "torus(2, 3, mixing='metropolis')"),
        (tp.erdos_renyi(5, 0.5), "erdos_renyi(5, 0.5, seed=0)"),
        (tp.small_world(6, 2, 0.1, seed=4), "small_world(6, 2, 0.1, seed=4)"),
        (tp.barabasi_albert(5, 2, seed=1), "barabasi_albert(5, 2, seed=1)"),
        (tp.complete(2, mixing=[[0.5, 0.5], [0.5, 0.5]]), "complete(2, mixing=array)"),
        (tp.from_graph(nx.path_graph(3)), "from_graph(3 nodes, 2 links)"),
        (tp.isolated(3), "isolated(3)"),
        (Topology(np.eye(2)), "Topology(2 nodes, 0 links)"),
    ],
    ids=str,
)
def test_the_repr_is_the_call(topology: Topology, name: str) -> None:
    assert repr(topology) == topology.name == name


def test_numpy_integers_are_whole_numbers() -> None:
    for name, m in CASES:
        assert MAKERS[name](np.int64(m)) == MAKERS[name](m)


def test_own_graph_is_relabelled_in_sorted_order() -> None:
    graph = nx.Graph([("c", "a"), ("a", "b"), ("b", "d")])
    assert edges(tp.from_graph(graph)) == {(0, 1), (0, 2), (1, 3)}
    mixed = nx.Graph([("c", 1), (1, (2, 3))])
    assert edges(tp.from_graph(mixed)) == {(0, 1), (1, 2)}, "not sortable: in the graph's order"
    backwards = nx.Graph([(2, 1), (1, 0)])
    assert edges(tp.from_graph(backwards)) == {(0, 1), (1, 2)}
    weighted = nx.Graph()
    weighted.add_edge(0, 1, weight=0.0)
    assert tp.from_graph(weighted) == tp.ring(2), "weights of edges are ignored"


def test_own_graph_is_copied() -> None:
    graph = nx.path_graph(3)
    topology = tp.from_graph(graph)
    graph.add_edge(0, 2)
    assert topology.links == 2


def test_own_graph_may_be_disconnected_on_purpose() -> None:
    graph = nx.Graph([(0, 1), (2, 3)])
    with pytest.raises(
        ValueError, match=r"from_graph needs a connected graph, got one of 2 components; add links"
    ):
        tp.from_graph(graph)
    for mixing in tp.MIXINGS:
        topology = tp.from_graph(graph, connected=False, mixing=mixing)
        assert_sound(topology)
        assert topology.spectral_gap == pytest.approx(0, abs=1e-12)
    alone = tp.from_graph(nx.empty_graph(3), connected=False)
    assert alone == tp.isolated(3)


def test_own_matrix_is_taken_as_given() -> None:
    W = np.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]])
    topology = tp.grid(1, 3, mixing=W)
    assert np.array_equal(topology.W, W)
    W[0, 0] = 9
    assert topology.W[0, 0] == 0.5
    assert tp.grid(1, 3, mixing=topology.W) == topology
    dusty = topology.W.copy()
    dusty[0, 2] = dusty[2, 0] = 1e-17
    dusty[0, 1] += 1e-12
    repaired = tp.grid(1, 3, mixing=dusty)
    assert_sound(repaired)
    assert repaired.links == 2, "dust of rounding is no link"


PATH = [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]]


def changed(*changes: tuple[int, int, float]) -> list[list[float]]:
    W = [list(row) for row in PATH]
    for i, j, value in changes:
        W[i][j] = value
    return W


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        pytest.param(np.eye(2), r"needs shape \(3, 3\), got \(2, 2\); give", id="size"),
        pytest.param(np.ones(3), r"needs shape \(3, 3\), got \(3,\); give", id="flat"),
        pytest.param(np.ones((3, 4)), r"needs shape \(3, 3\), got \(3, 4\); give", id="shape"),
        pytest.param([[1], [1, 2]], "needs a square array of numbers, got", id="ragged"),
        pytest.param([["a"]], "needs a square array of numbers, got", id="text"),
        pytest.param(
            changed((1, 2, float("nan"))),
            r"needs finite weights, got nan for the pair \(1, 2\)",
            id="nan",
        ),
        pytest.param(
            changed((0, 0, float("inf"))),
            r"needs finite weights, got inf for the pair \(0, 0\)",
            id="inf",
        ),
        pytest.param(
            changed((1, 1, -0.2), (0, 1, 0.7), (1, 0, 0.7), (0, 0, 0.3)),
            r"needs weights >= 0, got -0.2 for the pair \(1, 1\)",
            id="negative",
        ),
        pytest.param(
            changed((0, 1, 0.4), (0, 0, 0.6)),
            r"needs the same weight at both ends of a link, got 0.4 for the pair \(0, 1\)",
            id="asymmetric",
        ),
        pytest.param(
            changed((2, 2, 0.6)),
            r"needs rows that sum to one, got 1.1 in row 2; put the rest",
            id="sum",
        ),
        pytest.param(
            changed((2, 2, 0.5 + 1e-8)),
            r"needs rows that sum to one, got 1.00000001 in row 2; put the rest",
            id="sum-slightly",
        ),
        pytest.param(
            changed((0, 2, 0.1), (2, 0, 0.1), (0, 0, 0.4), (2, 2, 0.4)),
            r"needs no weight where there is no link, got 0.1 for the pair \(0, 2\); add",
            id="stray",
        ),
        pytest.param(
            changed((0, 1, 0.0), (1, 0, 0.0), (0, 0, 1.0), (1, 1, 0.5)),
            r"needs a positive weight for every link, got 0 for the pair \(0, 1\); remove",
            id="bare",
        ),
    ],
)
def test_bad_matrices(matrix: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^A mixing matrix {message}.*\\.$"):
        tp.grid(1, 3, mixing=matrix)


def test_a_topology_made_by_hand_is_checked_too() -> None:
    with pytest.raises(ValueError, match=r"needs a square shape, got \(2, 3\)"):
        Topology(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"needs a square shape, got \(0, 0\)"):
        Topology(np.ones((0, 0)))
    with pytest.raises(ValueError, match="rows that sum to one"):
        Topology(np.ones((2, 2)))
    by_hand = Topology(np.array(PATH), "mine")
    assert repr(by_hand) == "mine"
    assert edges(by_hand) == {(0, 1), (1, 2)}


def later(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: function(*arguments, **options)


LOOP = nx.Graph([(0, 1), (1, 1)])
BAD_CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "ring-0": (later(tp.ring, 0), r"ring needs at least one node, got 0\."),
    "complete-0": (later(tp.complete, 0), "complete needs at least one node, got 0"),
    "star-negative": (later(tp.star, -3), "star needs at least one node, got -3"),
    "exponential-half": (
        later(tp.exponential, 2.5),
        r"exponential needs a whole number of nodes, got 2\.5",
    ),
    "ring-bool": (later(tp.ring, True), "ring needs a whole number of nodes, got True"),
    "ring-text": (later(tp.ring, "8"), "ring needs a whole number of nodes, got '8'"),
    "isolated-0": (later(tp.isolated, 0), "isolated needs at least one node, got 0"),
    "torus-0": (
        later(tp.torus, 0, 3),
        r"torus needs whole sides of at least one node, got \(0, 3\)",
    ),
    "grid-half": (
        later(tp.grid, 2, 1.5),
        r"grid needs whole sides of at least one node, got \(2, 1\.5\)",
    ),
    "near-square-0": (later(tp.near_square, 0), "near_square needs at least one node, got 0"),
    "mixing": (
        later(tp.ring, 4, mixing="laplace"),
        "ring needs mixing to be one of laplacian, metropolis, got 'laplace'; the nearest is "
        "'laplacian'",
    ),
    "erdos-renyi-p": (
        later(tp.erdos_renyi, 4, 0),
        r"erdos_renyi needs a probability p in \(0, 1\], got 0",
    ),
    "erdos-renyi-nan": (
        later(tp.erdos_renyi, 4, float("nan")),
        r"erdos_renyi needs a probability p in \(0, 1\], got nan",
    ),
    "erdos-renyi-seed": (
        later(tp.erdos_renyi, 4, 0.5, seed=0.5),
        r"erdos_renyi needs a whole seed, got 0\.5",
    ),
    "erdos-renyi-vain": (
        later(tp.erdos_renyi, 12, 1e-3),
        "erdos_renyi needs a connected graph, got none in 1000 attempts; raise p",
    ),
    "barabasi-albert-1": (
        later(tp.barabasi_albert, 1, 1),
        "barabasi_albert needs at least two nodes, got 1",
    ),
    "barabasi-albert-k": (
        later(tp.barabasi_albert, 5, 5),
        "barabasi_albert needs a whole k between 1 and 4, got 5",
    ),
    "small-world-2": (
        later(tp.small_world, 2, 2, 0.1),
        "small_world needs at least three nodes, got 2",
    ),
    "small-world-odd": (
        later(tp.small_world, 9, 3, 0.1),
        "small_world needs an even k between 2 and 8, got 3",
    ),
    "small-world-p": (
        later(tp.small_world, 9, 4, 1.1),
        r"small_world needs a probability p in \[0, 1\], got 1\.1",
    ),
    "graph-pairs": (
        later(tp.from_graph, [(0, 1)]),
        "from_graph needs a networkx Graph, got a list; make one",
    ),
    "graph-directed": (
        later(tp.from_graph, nx.DiGraph([(0, 1)])),
        "from_graph needs an undirected graph, got a directed one; use graph.to_undirected",
    ),
    "graph-multiple": (
        later(tp.from_graph, nx.MultiGraph([(0, 1)])),
        "from_graph needs at most one link for a pair, got a multigraph; use networkx.Graph",
    ),
    "graph-loop": (
        later(tp.from_graph, LOOP),
        "from_graph needs a graph without self loops, got one at node 1; remove it",
    ),
    "graph-empty": (later(tp.from_graph, nx.Graph()), "from_graph needs at least one node, got 0"),
    "cycle-empty": (later(Cycle, ()), "Cycle needs at least one topology, got 0"),
    "cycle-sizes": (
        later(Cycle, (tp.ring(3), tp.ring(4))),
        r"Cycle needs topologies of one size, got \[3, 4\]",
    ),
    "cycle-other": (later(Cycle, ("ring",)), "Cycle needs topologies, got 'ring'"),
    "dropped-p": (
        later(DroppedLinks, tp.ring(3), 1.5),
        r"DroppedLinks needs a probability p in \[0, 1\], got 1\.5",
    ),
    "dropped-text": (
        later(DroppedLinks, tp.ring(3), "0.5"),
        r"DroppedLinks needs a probability p in \[0, 1\], got '0\.5'",
    ),
    "dropped-seed": (
        later(DroppedLinks, tp.ring(3), 0.5, seed="a"),
        "DroppedLinks needs a whole seed, got 'a'",
    ),
    "dropped-other": (
        later(DroppedLinks, "ring", 0.5),
        "DroppedLinks needs a topology, got 'ring'",
    ),
    "varying-function": (later(Varying, 3, 3, "x"), "Varying needs a function of the round, got 3"),
    "varying-size": (later(Varying, tp.ring, 0, "x"), "Varying needs at least one node, got 0"),
    "varying-text": (later(Varying, tp.ring, 3, ""), "Varying needs a text that names it, got ''"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls(case: str) -> None:
    attempt, message = BAD_CALLS[case]
    with pytest.raises(ValueError, match=f"^{message}") as error:
        attempt()
    assert str(error.value).endswith(".")


INNER: dict[str, Links] = {
    "ring": tp.ring(9),
    "metropolis": tp.erdos_renyi(9, 0.5, mixing="metropolis"),
    "cycle": Cycle((tp.ring(9), tp.star(9))),
}


@pytest.mark.parametrize("name", INNER)
def test_dropped_links_stay_doubly_stochastic_on_a_subset_of_the_links(name: str) -> None:
    inner = INNER[name]
    law = DroppedLinks(inner, 0.4, seed=2)
    assert law.size == 9
    for t in range(40):
        now, before = law.at(t), inner.at(t)
        assert_sound(now)
        assert edges(now) <= edges(before)
        for i, j in edges(now):
            assert now.W[i, j] == before.W[i, j]
        for i in range(9):
            lost = sum(before.W[i, j] for j in range(9) if j != i and now.W[i, j] == 0)
            assert now.W[i, i] == pytest.approx(before.W[i, i] + lost, abs=1e-15)


@pytest.mark.parametrize("name", INNER)
def test_dropped_links_at_the_ends_of_p(name: str) -> None:
    inner = INNER[name]
    for t in range(5):
        assert DroppedLinks(inner, 0.0).at(t) == inner.at(t)
        assert DroppedLinks(inner, 1.0).at(t) == tp.isolated(9)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_links_fail_with_probability_p_independently(p: float) -> None:
    """Binomial counts within five standard deviations, for each link and each pair of links."""
    rounds, inner = 2000, tp.ring(6)
    law = DroppedLinks(inner, p, seed=1)
    pairs = sorted(edges(inner))
    drawn = [law.at(t).W for t in range(rounds)]
    failed = np.array([[W[pair] == 0 for pair in pairs] for W in drawn])

    def bound(chance: float) -> float:
        return 5 * float(np.sqrt(chance * (1 - chance) / rounds))

    assert np.abs(failed.mean(axis=0) - p).max() < bound(p)
    together = failed.astype(float).T @ failed / rounds
    apart = ~np.eye(len(pairs), dtype=bool)
    assert np.abs(together[apart] - p**2).max() < bound(p**2)
    consecutive = (failed[1:] & failed[:-1]).mean(axis=0)
    # Products of neighbouring rounds overlap, which at most triples their variance.
    assert np.abs(consecutive - p**2).max() < bound(p**2) * np.sqrt(3)


def test_moments_of_dropped_links() -> None:
    """E W_t = I + (1-p)(W - I) and E W_t^2 = (E W_t)^2 + p(1-p) sum over links of (w l l^T)^2."""
    p, rounds, inner = 0.3, 4000, tp.star(5)
    law = DroppedLinks(inner, p, seed=4)
    drawn = np.array([law.at(t).W for t in range(rounds)])
    mean = np.eye(5) + (1 - p) * (inner.W - np.eye(5))
    square = mean @ mean
    for i, j in inner.graph.edges:
        link = np.eye(5)[i] - np.eye(5)[j]
        square += 2 * p * (1 - p) * inner.W[i, j] ** 2 * np.outer(link, link)
    for values, expected in ((drawn, mean), (drawn @ drawn, square)):
        spread = values.std(axis=0) / np.sqrt(rounds)
        assert (np.abs(values.mean(axis=0) - expected) <= 5 * spread + 1e-14).all()


def test_dropped_links_are_keyed_by_the_round_the_seed_and_the_ends() -> None:
    law = DroppedLinks(tp.complete(8), 0.5, seed=1)
    fifth = law.at(5)
    for t in (9, 0, 5, 3):
        law.at(t)
    assert law.at(5) == fifth
    assert DroppedLinks(tp.complete(8), 0.5, seed=1).at(5) == fifth
    assert law.at(6) != fifth
    assert DroppedLinks(tp.complete(8), 0.5, seed=2).at(5) != fifth
    on_ring = DroppedLinks(tp.ring(8), 0.5, seed=1).at(5)
    assert edges(on_ring) == edges(fifth) & edges(tp.ring(8)), "whatever other links there are"


def test_digests_tell_laws_apart() -> None:
    laws: list[Links] = [
        tp.ring(8),
        tp.star(8),
        Cycle((tp.ring(8),)),
        Cycle((tp.ring(8), tp.star(8))),
        Cycle((tp.star(8), tp.ring(8))),
        DroppedLinks(tp.ring(8), 0.1),
        DroppedLinks(tp.ring(8), 0.2),
        DroppedLinks(tp.ring(8), 0.1, seed=1),
        DroppedLinks(tp.star(8), 0.1),
        Varying(shrinking, 8, "shrinking"),
        Varying(shrinking, 8, "other"),
    ]
    assert len({law.digest() for law in laws}) == len(laws)
    assert DroppedLinks(tp.ring(8), 0.1).digest() == DroppedLinks(tp.ring(8), 0.1).digest()
    assert DroppedLinks(tp.ring(8), 1).digest() == DroppedLinks(tp.ring(8), 1.0).digest()
    for law in laws:
        assert isinstance(law, Links)
        assert law.size == 8
    assert not isinstance("ring", Links)


def test_cycle() -> None:
    one, two, three = tp.ring(6), tp.star(6), tp.isolated(6)
    cycle = Cycle([one, two, three])  # type: ignore[arg-type]
    assert [cycle.at(t) for t in range(7)] == [one, two, three, one, two, three, one]
    assert cycle == Cycle((one, two, three))
    assert repr(cycle) == "Cycle(topologies=(ring(6), star(6), isolated(6)))"


def test_rounds_that_are_disconnected_agree_when_their_links_together_connect() -> None:
    halves = [[(0, 1), (2, 3)], [(1, 2), (3, 0)]]
    cycle = Cycle(
        tuple(
            tp.from_graph(nx.Graph(pairs), connected=False, mixing="metropolis") for pairs in halves
        )
    )
    assert [each.spectral_gap for each in cycle.topologies] == pytest.approx([0, 0], abs=1e-12)
    assert np.abs(cycle.at(1).W @ cycle.at(0).W - 1 / 4).max() < 1e-15, "pairs of pairs: the mean"


def shrinking(t: int) -> Topology:
    return tp.ring(8 - t // 3)


def test_varying_calls_the_function_and_checks_the_size() -> None:
    law = Varying(shrinking, 8, "shrinking")
    assert law.at(2) == tp.ring(8)
    assert repr(law) == "shrinking"
    with pytest.raises(
        ValueError, match=r"Varying needs a topology of 8 nodes in round 4, got ring\(7\)\."
    ):
        law.at(3)
    with pytest.raises(ValueError, match="needs a topology of 8 nodes in round 1, got 'ring'"):
        Varying(lambda t: "ring", 8, "text").at(0)  # type: ignore[arg-type, return-value]


@given(m=st.integers(1, 3000))
@settings(max_examples=100, deadline=None)
def test_near_square_is_the_most_square(m: int) -> None:
    x, y = tp.near_square(m)
    assert x * y == m
    assert x <= y
    assert not any(m % d == 0 for d in range(x + 1, int(m**0.5) + 1))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ring", "ring(20)"),
        ("torus", "torus(4, 5)"),
        ("torus:2x10", "torus(2, 10)"),
        ("complete", "complete(20)"),
        ("star", "star(20)"),
        ("grid", "grid(4, 5)"),
        ("grid:20x1", "grid(20, 1)"),
        ("erdos-renyi", "erdos_renyi(20, 0.5, seed=3)"),
        ("erdos-renyi:0.3", "erdos_renyi(20, 0.3, seed=3)"),
        ("exponential", "exponential(20)"),
        ("barabasi-albert", "barabasi_albert(20, 2, seed=3)"),
        ("barabasi-albert:3", "barabasi_albert(20, 3, seed=3)"),
        ("small-world", "small_world(20, 4, 0.1, seed=3)"),
        ("small-world:6:0.2", "small_world(20, 6, 0.2, seed=3)"),
        ("ring+metropolis", "ring(20, mixing='metropolis')"),
        ("ring+laplacian", "ring(20)"),
        ("torus:4x5+metropolis", "torus(4, 5, mixing='metropolis')"),
        ("erdos-renyi:0.3+metropolis", "erdos_renyi(20, 0.3, seed=3, mixing='metropolis')"),
    ],
)
def test_parse(text: str, name: str) -> None:
    topology = tp.parse(text, 20, 3)
    assert repr(topology) == name
    options = {"mixing": "metropolis"} if text.endswith("+metropolis") else {}
    body = name.replace(", mixing='metropolis'", "")
    maker, arguments = body.rstrip(")").split("(")
    values = [
        float(each) if "." in each else int(each) for each in re.findall(r"[\d.]+", arguments)
    ]
    if "seed" in arguments:
        options["seed"] = values.pop()
    assert topology == getattr(tp, maker)(*values, **options)


def test_parse_lowers_its_own_k_for_few_clients() -> None:
    assert repr(tp.parse("small-world", 4, 0)) == "small_world(4, 2, 0.1, seed=0)"
    assert repr(tp.parse("barabasi-albert", 2, 0)) == "barabasi_albert(2, 1, seed=0)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rng", "its name to be one of ring, .*, got 'rng'; the nearest is 'ring'"),
        ("", "its name to be one of ring, .*, got ''"),
        (
            "ring+metro",
            "its mixing to be one of laplacian, metropolis, got 'metro'; the nearest is",
        ),
        ("ring+", "its mixing to be one of laplacian, metropolis, got ''"),
        ("torus:3x5", "sides whose product is the number of clients, 20, got 3x5"),
        ("grid:-4x-5", "sides whose product is the number of clients, 20, got -4x-5"),
        ("torus:4", "torus or sides such as torus:4x5, got 'torus:4'"),
        ("torus:4x", "torus or sides such as torus:4x5, got 'torus:4x'"),
        ("grid:4x5:2", "grid or sides such as grid:4x5, got 'grid:4x5:2'"),
        ("ring:3", "ring, got 'ring:3'"),
        ("erdos-renyi:half", "erdos-renyi or a probability such as .*, got 'erdos-renyi:half'"),
        ("barabasi-albert:1.5", "barabasi-albert or its k such as .*, got 'barabasi-albert:1.5'"),
        ("small-world:4", "small-world or its k and p such as .*, got 'small-world:4'"),
    ],
)
def test_parse_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^topology needs {message}.*\\.$"):
        tp.parse(text, 20, 0)


def test_parse_leaves_ranges_to_the_makers() -> None:
    with pytest.raises(ValueError, match=r"erdos_renyi needs a probability p in \(0, 1\], got 7"):
        tp.parse("erdos-renyi:7", 20, 0)
    with pytest.raises(ValueError, match="ring needs at least one node, got 0"):
        tp.parse("ring", 0, 0)
    with pytest.raises(ValueError, match="near_square needs at least one node, got 0"):
        tp.parse("torus", 0, 0)
