"""Functions that make topologies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from undrift import keyed
from undrift.check import is_probability, is_whole, require
from undrift.topology.matrix import Topology, graph_of
from undrift.topology.mixing import Mixing, mixed

if TYPE_CHECKING:
    import networkx as nx  # type: ignore[import-untyped]

ATTEMPTS = 1000  # to draw a connected graph


def check_nodes(who: str, m: int) -> None:
    """Refuse a number of nodes that is not whole and positive."""
    require(is_whole(m), who, "a whole number of nodes", m)
    require(m >= 1, who, "at least one node", m)


def _check_sides(who: str, x: int, y: int) -> None:
    integers = is_whole(x) and is_whole(y)
    require(integers and x >= 1 and y >= 1, who, "whole sides of at least one node", (x, y))


def ring(m: int, *, mixing: Mixing = "laplacian") -> Topology:
    """Return a ring: everybody has two neighbours; two nodes have one link."""
    check_nodes("ring", m)
    return mixed("ring", graph_of(m, ((i, (i + 1) % m) for i in range(m))), mixing, m)


def _lattice(x: int, y: int, across: Iterable[int], down: Iterable[int]) -> nx.Graph:
    """Return a lattice with links to the next row from `down` and to the next column from `across`.

    Node i * y + j is at row i, column j.
    """
    rows = [(i * y + j, (i + 1) % x * y + j) for i in down for j in range(y)]
    columns = [(i * y + j, i * y + (j + 1) % y) for i in range(x) for j in across]
    return graph_of(x * y, rows + columns)


def torus(x: int, y: int, *, mixing: Mixing = "laplacian") -> Topology:
    """Return x rows of y nodes that wrap around; a side of 2 has one link, a side of 1 none."""
    _check_sides("torus", x, y)
    return mixed("torus", _lattice(x, y, range(y), range(x)), mixing, x, y)


def grid(x: int, y: int, *, mixing: Mixing = "laplacian") -> Topology:
    """Return x rows of y nodes that do not wrap around; `grid(1, m)` is a path."""
    _check_sides("grid", x, y)
    return mixed("grid", _lattice(x, y, range(y - 1), range(x - 1)), mixing, x, y)


def complete(m: int, *, mixing: Mixing = "laplacian") -> Topology:
    """Link everybody with everybody; with Metropolis weights one gossip is the mean."""
    import networkx as nx

    check_nodes("complete", m)
    return mixed("complete", nx.complete_graph(m), mixing, m)


def star(m: int, *, mixing: Mixing = "laplacian") -> Topology:
    """Link everybody with node 0 only."""
    check_nodes("star", m)
    return mixed("star", graph_of(m, ((0, i) for i in range(m))), mixing, m)


def exponential(m: int, *, mixing: Mixing = "laplacian") -> Topology:
    """Link node i with i + 1, i + 2, i + 4, ... modulo m, in both directions."""
    check_nodes("exponential", m)
    hops = [1 << k for k in range(int(m - 1).bit_length())]
    pairs = ((i, (i + hop) % m) for i in range(m) for hop in hops)
    return mixed("exponential", graph_of(m, pairs), mixing, m)


def isolated(m: int) -> Topology:
    """Return no links and W = I, a baseline in which everybody trains alone."""
    check_nodes("isolated", m)
    return Topology(np.eye(m), f"isolated({m})")


def _until_connected(
    draw: Callable[[np.random.Generator], nx.Graph], who: str, seed: int, remedy: str
) -> nx.Graph:
    import networkx as nx

    for attempt in range(ATTEMPTS):
        graph = draw(keyed.generator(seed, who.replace("_", "-"), attempt))
        if nx.is_connected(graph):
            return graph
    raise ValueError(f"{who} needs a connected graph, got none in {ATTEMPTS} attempts; {remedy}.")


def erdos_renyi(m: int, p: float, *, seed: int = 0, mixing: Mixing = "laplacian") -> Topology:
    """Draw every link independently with probability p, again until the graph is connected."""
    who = "erdos_renyi"
    check_nodes(who, m)
    require(is_probability(p) and p > 0, who, "a probability p in (0, 1]", p)
    require(is_whole(seed), who, "a whole seed", seed)

    def draw(rng: np.random.Generator) -> nx.Graph:
        return graph_of(m, np.argwhere(np.triu(rng.random((m, m)) < p, 1)).tolist())

    return mixed(who, _until_connected(draw, who, seed, "raise p"), mixing, m, p, seed=seed)


def barabasi_albert(m: int, k: int, *, seed: int = 0, mixing: Mixing = "laplacian") -> Topology:
    """Grow a graph from a star of k + 1: each new node links with k others, likelier with hubs."""
    import networkx as nx

    who = "barabasi_albert"
    check_nodes(who, m)
    require(m >= 2, who, "at least two nodes", m)
    require(is_whole(k) and 1 <= k < m, who, f"a whole k between 1 and {m - 1}", k)
    require(is_whole(seed), who, "a whole seed", seed)
    graph = nx.barabasi_albert_graph(m, k, seed=keyed.generator(seed, "barabasi-albert", 0))
    return mixed(who, graph, mixing, m, k, seed=seed)


def small_world(
    m: int, k: int, p: float, *, seed: int = 0, mixing: Mixing = "laplacian"
) -> Topology:
    """Return a Watts-Strogatz graph, drawn again until it is connected.

    It is a ring of k nearest neighbours, each link of which is rewired with probability p.
    """
    who = "small_world"
    check_nodes(who, m)
    require(m >= 3, who, "at least three nodes", m)
    even = is_whole(k) and k % 2 == 0
    require(even and 2 <= k < m, who, f"an even k between 2 and {m - 1}", k)
    require(is_probability(p), who, "a probability p in [0, 1]", p)
    require(is_whole(seed), who, "a whole seed", seed)

    def draw(rng: np.random.Generator) -> nx.Graph:
        import networkx as nx

        return nx.watts_strogatz_graph(m, k, p, seed=rng)

    graph = _until_connected(draw, who, seed, "raise k or lower p")
    return mixed(who, graph, mixing, m, k, p, seed=seed)


def from_graph(
    graph: nx.Graph, *, mixing: Mixing = "laplacian", connected: bool = True
) -> Topology:
    """Return the topology of any undirected graph; `mixing` gives the weights, not its edges.

    Labels become 0...m-1 in sorted order, or in the graph's own order where they cannot be sorted;
    the rows of a matrix given as `mixing` are in that order.
    """
    import networkx as nx

    who = "from_graph"
    if not isinstance(graph, nx.Graph):
        kind = type(graph).__name__
        raise ValueError(
            f"{who} needs a networkx Graph, got a {kind}; make one with networkx.Graph(pairs)."
        )
    if graph.is_directed():
        raise ValueError(
            f"{who} needs an undirected graph, got a directed one; use graph.to_undirected()."
        )
    if graph.is_multigraph():
        raise ValueError(
            f"{who} needs at most one link for a pair, got a multigraph; use networkx.Graph(graph)."
        )
    require(len(graph) >= 1, who, "at least one node", len(graph))
    loops = list(nx.nodes_with_selfloops(graph))
    if loops:
        raise ValueError(
            f"{who} needs a graph without self loops, got one at node {loops[0]!r}; remove it, "
            f"for self-weights come from the mixing."
        )
    number = {label: i for i, label in enumerate(_ordered(graph))}
    plain = graph_of(len(graph), ((number[a], number[b]) for a, b in graph.edges))
    components = nx.number_connected_components(plain)
    if connected and components > 1:
        raise ValueError(
            f"{who} needs a connected graph, got one of {components} components; add links, or "
            f"allow it with connected=False."
        )
    links = plain.number_of_edges()
    return mixed(who, plain, mixing, f"{len(plain)} nodes", f"{links} links")


def _ordered(graph: nx.Graph) -> list[Hashable]:
    try:
        return sorted(graph.nodes)
    except TypeError:
        return list(graph.nodes)
