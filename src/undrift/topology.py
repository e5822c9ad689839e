"""Who is linked with whom in gossip between peers, and with which weights.

A `Topology` is a symmetric doubly stochastic matrix W; its positive off-diagonal weights are the
links. Row i says how node i mixes what it holds with what its neighbours send. Being doubly
stochastic, W keeps the mean over the nodes, and its spectral gap says how fast they agree.

Links may change with the round: whatever satisfies `Links` gives a topology for each round
(`Cycle`, `DroppedLinks`, `Varying`). docs/topology.md has the table of makers and their gaps.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import is_whole, require, require_choice

if TYPE_CHECKING:  # it takes a third of a second, and who has no graph need not wait for it
    import networkx as nx  # type: ignore[import-untyped]

Floats = NDArray[np.float64]
Mixing = str | NDArray[Any] | Sequence[Sequence[float]]
N = TypeVar("N", int, float)

MIXINGS = ("laplacian", "metropolis")
TOLERANCE = 1e-9
ATTEMPTS = 1000
_WHO = "A mixing matrix"


@runtime_checkable
class Links(Protocol):
    """Links that may change with the round; a `Topology` is one that does not."""

    @property
    def size(self) -> int:
        """The number of nodes, the same in every round."""
        ...

    def at(self, t: int) -> Topology:
        """Round t's links; the same answer whenever and however often it is asked."""
        ...

    def digest(self) -> str:
        """What a checkpoint keeps, so that a run is not resumed over other links."""
        ...


def _hex(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """A mixing matrix and the graph of its links, over nodes 0...m-1.

    W is checked, then made exactly symmetric, with each self-weight the rest of its row, so that
    errors of rounding do not move the mean. It is read-only; so is the graph.
    """

    W: Floats
    name: str = ""

    def __post_init__(self) -> None:
        given = _checked(self.W)
        weights = np.maximum((given + given.T) / 2, 0.0)
        np.fill_diagonal(weights, 0.0)
        # Summed without error, a row's self-weight does not depend on the order of the nodes.
        rest = [max(math.fsum((1.0, *(-row).tolist())), 0.0) for row in weights]
        np.fill_diagonal(weights, rest)
        weights.setflags(write=False)
        object.__setattr__(self, "W", weights)
        if not self.name:
            object.__setattr__(self, "name", f"Topology({self.size} nodes, {self.links} links)")

    @property
    def size(self) -> int:
        return len(self.W)

    @property
    def links(self) -> int:
        """How many undirected links there are."""
        return len(self._pairs)

    @property
    def degrees(self) -> NDArray[np.int64]:
        return np.bincount(self._pairs.ravel(), minlength=self.size)

    @cached_property
    def graph(self) -> nx.Graph:
        import networkx as nx

        return nx.freeze(_graph(self.size, self._pairs.tolist()))

    @cached_property
    def spectral_gap(self) -> float:
        """1 - max(|lambda_2|, |lambda_m|): 1 agrees in one gossip, 0 may never agree."""
        if self.size == 1:
            return 1.0
        others = np.linalg.eigvalsh(self.W)[:-1]
        return max(0.0, 1.0 - float(np.abs(others).max()))

    @cached_property
    def _pairs(self) -> NDArray[np.int64]:
        return np.argwhere(np.triu(self.W, 1) > 0)

    def at(self, t: int) -> Topology:
        return self

    def digest(self) -> str:
        return _hex(self.W.tobytes())

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and np.array_equal(self.W, other.W)

    def __hash__(self) -> int:
        return hash(self.digest())

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor, because a pickled array comes back writable.
        return Topology, (self.W, self.name)


def _refuse(W: Floats, wrong: NDArray[np.bool_], expected: str, remedy: str) -> None:
    """Name the first of the wrong pairs, if there are any."""
    if wrong.any():
        i, j = map(int, np.argwhere(wrong)[0])
        raise ValueError(
            f"{_WHO} needs {expected}, got {W[i, j]:g} for the pair ({i}, {j}); {remedy}."
        )


def _checked(matrix: Any, m: int | None = None) -> Floats:
    try:
        W = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{_WHO} needs a square array of numbers, got {matrix!r}.") from None
    square = W.ndim == 2 and W.shape[0] == W.shape[1] >= 1
    shape = f"shape ({m}, {m})" if m else "a square shape"
    right = square and m in (None, len(W))
    require(right, _WHO, shape, W.shape, "give one row and one column for each node")

    _refuse(W, ~np.isfinite(W), "finite weights", "see how it was computed")
    _refuse(W, W < -TOLERANCE, "weights >= 0", "lower the other weights of its row")
    uneven = np.abs(W - W.T) > TOLERANCE
    _refuse(W, uneven, "the same weight at both ends of a link", "make it equal to its transpose")
    sums = W.sum(axis=1)
    wrong = np.flatnonzero(np.abs(sums - 1) > TOLERANCE)
    if len(wrong):
        raise ValueError(
            f"{_WHO} needs rows that sum to one, got {sums[wrong[0]]:.10g} in row {wrong[0]}; "
            f"put the rest on the diagonal."
        )
    return W


def _graph(m: int, pairs: Iterable[Sequence[int]]) -> nx.Graph:
    """Nodes 0...m-1 in order; a pair of a node with itself is no link."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(m))
    graph.add_edges_from((i, j) for i, j in pairs if i != j)
    return graph


def _laplacian(linked: NDArray[np.bool_]) -> Floats:
    laplacian: Floats = np.diag(linked.sum(axis=1)) - linked.astype(np.float64)
    # The last digits differ between linear algebra libraries; a digest must not.
    largest = round(float(np.linalg.eigvalsh(laplacian)[-1]), 12)
    if largest == 0:
        return np.eye(len(linked))
    return np.eye(len(linked)) - 2 * laplacian / (3 * largest)


def _metropolis(linked: NDArray[np.bool_]) -> Floats:
    degrees = linked.sum(axis=1)
    weights: Floats = np.where(linked, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    return weights + np.diag(1 - weights.sum(axis=1))


def _own(linked: NDArray[np.bool_], matrix: Any) -> Floats:
    """A user's matrix, whose weights must be where the links are."""
    W = _checked(matrix, len(linked))
    beside = ~linked & ~np.eye(len(W), dtype=bool)
    stray, bare = beside & (W > TOLERANCE), linked & (W <= 0)
    _refuse(W, stray, "no weight where there is no link", "add the link or drop the weight")
    _refuse(W, bare, "a positive weight for every link", "remove the link or give it weight")
    return np.where(beside, 0.0, W)


def _mixed(who: str, graph: nx.Graph, mixing: Mixing, *arguments: Any, **options: Any) -> Topology:
    """The topology of a graph over 0...m-1, named after the call that made it."""
    import networkx as nx

    linked = nx.to_numpy_array(graph, nodelist=range(len(graph))) > 0
    said = [str(argument) for argument in arguments]
    said += [f"{name}={value}" for name, value in options.items()]
    if not isinstance(mixing, str):
        W, said = _own(linked, mixing), [*said, "mixing=array"]
    else:
        require_choice(who, "mixing", mixing, MIXINGS)
        W = _laplacian(linked) if mixing == "laplacian" else _metropolis(linked)
        said += [f"mixing={mixing!r}"] if mixing != "laplacian" else []
    return Topology(W, f"{who}({', '.join(said)})")


def _check_nodes(who: str, m: int) -> None:
    require(is_whole(m), who, "a whole number of nodes", m)
    require(m >= 1, who, "at least one node", m)


def _check_sides(who: str, x: int, y: int) -> None:
    whole = is_whole(x) and is_whole(y)
    require(whole and x >= 1 and y >= 1, who, "whole sides of at least one node", (x, y))


def _is_probability(p: Any) -> bool:
    return isinstance(p, Real) and not isinstance(p, bool) and 0 <= float(p) <= 1


def ring(m: int, *, mixing: Mixing = "laplacian") -> Topology:
    """Everybody has two neighbours; one link for two nodes."""
    _check_nodes("ring", m)
    return _mixed("ring", _graph(m, ((i, (i + 1) % m) for i in range(m))), mixing, m)


def _lattice(x: int, y: int, across: Iterable[int], down: Iterable[int]) -> nx.Graph:
    """Node i * y + j is at row i, column j; links go on from the rows and columns listed."""
    rows = [(i * y + j, (i + 1) % x * y + j) for i in down for j in range(y)]
    columns = [(i * y + j, i * y + (j + 1) % y) for i in range(x) for j in across]
    return _graph(x * y, rows + columns)


def torus(x: int, y: int, *, mixing: Mixing = "laplacian") -> Topology:
    """x rows of y nodes that wrap around; a side of 2 has one link, a side of 1 none."""
    _check_sides("torus", x, y)
    return _mixed("torus", _lattice(x, y, range(y), range(x)), mixing, x, y)


def grid(x: int, y: int, *, mixing: Mixing = "laplacian") -> Topology:
    """x rows of y nodes that do not wrap around; `grid(1, m)` is a path."""
    _check_sides("grid", x, y)
    return _mixed("grid", _lattice(x, y, range(y - 1), range(x - 1)), mixing, x, y)


def complete(m: int, *, mixing: Mixing = "laplacian") -> Topology:
    """Everybody with everybody; with Metropolis weights one gossip is the mean."""
    import networkx as nx

    _check_nodes("complete", m)
    return _mixed("complete", nx.complete_graph(m), mixing, m)


def star(m: int, *, mixing: Mixing = "laplacian") -> Topology:
    """Everybody with node 0 only."""
    _check_nodes("star", m)
    return _mixed("star", _graph(m, ((0, i) for i in range(m))), mixing, m)


def exponential(m: int, *, mixing: Mixing = "laplacian") -> Topology:
    """Node i with i + 1, i + 2, i + 4, ... modulo m, in both directions."""
    _check_nodes("exponential", m)
    hops = [1 << k for k in range(int(m - 1).bit_length())]
    pairs = ((i, (i + hop) % m) for i in range(m) for hop in hops)
    return _mixed("exponential", _graph(m, pairs), mixing, m)


def isolated(m: int) -> Topology:
    """No links and W = I: everybody trains alone, a baseline."""
    _check_nodes("isolated", m)
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
    """Every link independently with probability p, drawn again until the graph is connected."""
    who = "erdos_renyi"
    _check_nodes(who, m)
    require(_is_probability(p) and p > 0, who, "a probability p in (0, 1]", p)
    require(is_whole(seed), who, "a whole seed", seed)

    def draw(rng: np.random.Generator) -> nx.Graph:
        return _graph(m, np.argwhere(np.triu(rng.random((m, m)) < p, 1)).tolist())

    return _mixed(who, _until_connected(draw, who, seed, "raise p"), mixing, m, p, seed=seed)


def barabasi_albert(m: int, k: int, *, seed: int = 0, mixing: Mixing = "laplacian") -> Topology:
    """Grown from a star of k + 1: each newcomer links with k others, more likely with hubs."""
    import networkx as nx

    who = "barabasi_albert"
    _check_nodes(who, m)
    require(m >= 2, who, "at least two nodes", m)
    require(is_whole(k) and 1 <= k < m, who, f"a whole k between 1 and {m - 1}", k)
    require(is_whole(seed), who, "a whole seed", seed)
    graph = nx.barabasi_albert_graph(m, k, seed=keyed.generator(seed, "barabasi-albert", 0))
    return _mixed(who, graph, mixing, m, k, seed=seed)


def small_world(
    m: int, k: int, p: float, *, seed: int = 0, mixing: Mixing = "laplacian"
) -> Topology:
    """Watts-Strogatz: a ring of k nearest neighbours, each link rewired with probability p.

    Drawn again until the graph is connected.
    """
    who = "small_world"
    _check_nodes(who, m)
    require(m >= 3, who, "at least three nodes", m)
    even = is_whole(k) and k % 2 == 0
    require(even and 2 <= k < m, who, f"an even k between 2 and {m - 1}", k)
    require(_is_probability(p), who, "a probability p in [0, 1]", p)
    require(is_whole(seed), who, "a whole seed", seed)

    def draw(rng: np.random.Generator) -> nx.Graph:
        import networkx as nx

        return nx.watts_strogatz_graph(m, k, p, seed=rng)

    graph = _until_connected(draw, who, seed, "raise k or lower p")
    return _mixed(who, graph, mixing, m, k, p, seed=seed)


def from_graph(
    graph: nx.Graph, *, mixing: Mixing = "laplacian", connected: bool = True
) -> Topology:
    """Any undirected graph; weights of its edges are ignored, for `mixing` gives them.

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
    plain = _graph(len(graph), ((number[a], number[b]) for a, b in graph.edges))
    components = nx.number_connected_components(plain)
    if connected and components > 1:
        raise ValueError(
            f"{who} needs a connected graph, got one of {components} components; add links, or "
            f"allow it with connected=False."
        )
    links = plain.number_of_edges()
    return _mixed(who, plain, mixing, f"{len(plain)} nodes", f"{links} links")


def _ordered(graph: nx.Graph) -> list[Hashable]:
    try:
        return sorted(graph.nodes)
    except TypeError:
        return list(graph.nodes)


@dataclass(frozen=True)
class Cycle:
    """Round t uses topology t modulo their number: `Cycle((ring(8), star(8)))`."""

    topologies: tuple[Topology, ...]

    def __post_init__(self) -> None:
        several = isinstance(self.topologies, list | tuple)
        require(several, "Cycle", "a list of topologies", self.topologies)
        object.__setattr__(self, "topologies", tuple(self.topologies))
        require(len(self.topologies) >= 1, "Cycle", "at least one topology", 0)
        for topology in self.topologies:
            require(isinstance(topology, Topology), "Cycle", "topologies", topology)
        sizes = [topology.size for topology in self.topologies]
        require(len(set(sizes)) == 1, "Cycle", "topologies of one size", sizes)

    @property
    def size(self) -> int:
        return self.topologies[0].size

    def at(self, t: int) -> Topology:
        return self.topologies[t % len(self.topologies)]

    def digest(self) -> str:
        return _hex("/".join(["cycle", *(each.digest() for each in self.topologies)]).encode())


@dataclass(frozen=True)
class DroppedLinks:
    """In each round every link fails with probability p, independently of the others.

    A failed link's weight goes to the self-weights of its two ends, so that W stays symmetric and
    doubly stochastic. A link's fate depends on the seed, the round, its ends and the number of
    nodes, not on the other links. The inner links may themselves change with the round.
    """

    topology: Links
    p: float
    seed: int = 0

    def __post_init__(self) -> None:
        made = isinstance(self.topology, Links) and not isinstance(self.topology, type)
        require(made, "DroppedLinks", "a topology", self.topology)
        require(_is_probability(self.p), "DroppedLinks", "a probability p in [0, 1]", self.p)
        require(is_whole(self.seed), "DroppedLinks", "a whole seed", self.seed)

    @property
    def size(self) -> int:
        return self.topology.size

    def at(self, t: int) -> Topology:
        inner = self.topology.at(t)
        draws = keyed.generator(self.seed, "dropped-links", t).random(inner.W.shape)
        up = np.triu(draws >= self.p, 1)
        W = np.where(up | up.T, inner.W, 0.0)
        np.fill_diagonal(W, 1 - W.sum(axis=1))
        return Topology(W, f"{inner!r} in round {t + 1} of DroppedLinks({self.p}, {self.seed})")

    def digest(self) -> str:
        law = f"dropped/{self.topology.digest()}/{float(self.p)!r}/{self.seed}"
        return _hex(law.encode())


@dataclass(frozen=True, repr=False)
class Varying:
    """Your own function of the round; `text` names it, in its repr and in checkpoints.

    The function must give the same topology whenever it is asked for the same round; give another
    text to a function that draws other links, since a checkpoint cannot look inside.
    """

    function: Callable[[int], Topology]
    size: int
    text: str

    def __post_init__(self) -> None:
        require(callable(self.function), "Varying", "a function of the round", self.function)
        _check_nodes("Varying", self.size)
        named = isinstance(self.text, str) and self.text != ""
        require(named, "Varying", "a text that names it", self.text)

    def at(self, t: int) -> Topology:
        topology = self.function(t)
        right = isinstance(topology, Topology) and topology.size == self.size
        require(right, "Varying", f"a topology of {self.size} nodes in round {t + 1}", topology)
        return topology

    def digest(self) -> str:
        return _hex(f"varying/{self.size}/{self.text}".encode())

    def __repr__(self) -> str:
        return self.text


def near_square(m: int) -> tuple[int, int]:
    """(x, y) with x * y = m and x <= y as near to each other as m's divisors allow."""
    _check_nodes("near_square", m)
    x = next(x for x in range(math.isqrt(m), 0, -1) if m % x == 0)
    return x, m // x


_FORMS = {
    "ring": "ring",
    "torus": "torus or sides such as torus:4x5",
    "complete": "complete",
    "star": "star",
    "grid": "grid or sides such as grid:4x5",
    "erdos-renyi": "erdos-renyi or a probability such as erdos-renyi:0.3",
    "exponential": "exponential",
    "barabasi-albert": "barabasi-albert or its k such as barabasi-albert:2",
    "small-world": "small-world or its k and p such as small-world:4:0.1",
}


def parse(text: str, m: int, seed: int) -> Topology:
    """A topology of m nodes as on the command line: `ring`, `torus:4x5`, `star+metropolis`.

    Without arguments, sides are the most square ones, p = 0.5 for erdos-renyi, k = 2 for
    barabasi-albert, and k = 4, p = 0.1 for small-world, where a k too large for m is lowered.
    """
    body, plus, after = text.strip().partition("+")
    name, *arguments = body.split(":")
    require_choice("topology", "its name", name, _FORMS)
    mixing = after if plus else "laplacian"
    require_choice("topology", "its mixing", mixing, MIXINGS)

    malformed = ValueError(f"topology needs {_FORMS[name]}, got {text!r}.")

    def number(kind: type[N], argument: str) -> N:
        try:
            return kind(argument)
        except ValueError:
            raise malformed from None

    def sides() -> tuple[int, int]:
        if not arguments:
            return near_square(m)
        x, times, y = arguments[0].partition("x")
        if not times:
            raise malformed
        pair = number(int, x), number(int, y)
        if min(pair) < 1 or math.prod(pair) != m:
            raise ValueError(
                f"topology needs sides whose product is the number of clients, {m}, got "
                f"{arguments[0]}."
            )
        return pair

    match name, arguments:
        case "ring" | "complete" | "star" | "exponential", []:
            plain = {"ring": ring, "complete": complete, "star": star, "exponential": exponential}
            return plain[name](m, mixing=mixing)
        case "torus", [] | [_]:
            return torus(*sides(), mixing=mixing)
        case "grid", [] | [_]:
            return grid(*sides(), mixing=mixing)
        case "erdos-renyi", [] | [_]:
            chance = number(float, arguments[0]) if arguments else 0.5
            return erdos_renyi(m, chance, seed=seed, mixing=mixing)
        case "barabasi-albert", [] | [_]:
            k = number(int, arguments[0]) if arguments else min(2, m - 1)
            return barabasi_albert(m, k, seed=seed, mixing=mixing)
        case "small-world", [] | [_, _]:
            k = number(int, arguments[0]) if arguments else min(4, (m - 1) // 2 * 2)
            chance = number(float, arguments[1]) if arguments else 0.1
            return small_world(m, k, chance, seed=seed, mixing=mixing)
    raise malformed
