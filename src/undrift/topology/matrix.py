"""A mixing matrix with the graph of its links, and what may stand for it in each round."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from undrift.check import require

if TYPE_CHECKING:  # importing networkx takes a third of a second, which most runs do not need
    import networkx as nx  # type: ignore[import-untyped]

Floats = NDArray[np.float64]
TOLERANCE = 1e-9
_WHO = "A mixing matrix"


@runtime_checkable
class Links(Protocol):
    """Gives the links of each round; those of a `Topology` stay the same."""

    @property
    def size(self) -> int:
        """Return the number of nodes, which is the same in every round."""
        ...

    def at(self, t: int) -> Topology:
        """Return round t's links, the same at every call."""
        ...

    def digest(self) -> str:
        """Return a hash that a checkpoint keeps, so that no run is resumed over other links."""
        ...


def hexed(content: bytes) -> str:
    """Return a hash of the bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """A topology holds a mixing matrix and the graph of its links, over nodes 0...m-1.

    W is checked, then made exactly symmetric, with each self-weight the rest of its row, so that
    errors of rounding do not move the mean. It is read-only; so is the graph.
    """

    W: Floats
    name: str = ""

    def __post_init__(self) -> None:
        W = checked(self.W)
        weights = np.maximum((W + W.T) / 2, 0.0)
        np.fill_diagonal(weights, 0.0)
        # `fsum` has no rounding error, so a self-weight does not depend on the order of the nodes.
        rest = [max(math.fsum((1.0, *(-row).tolist())), 0.0) for row in weights]
        np.fill_diagonal(weights, rest)
        weights.setflags(write=False)
        object.__setattr__(self, "W", weights)
        if not self.name:
            object.__setattr__(self, "name", f"Topology({self.size} nodes, {self.links} links)")

    @property
    def size(self) -> int:
        """Return the number of nodes."""
        return len(self.W)

    @property
    def links(self) -> int:
        """Return the number of undirected links."""
        return len(self._pairs)

    @property
    def degrees(self) -> NDArray[np.int64]:
        """Return the number of neighbours of every node."""
        return np.bincount(self._pairs.ravel(), minlength=self.size)

    @cached_property
    def graph(self) -> nx.Graph:
        """Return the graph of the links."""
        import networkx as nx

        return nx.freeze(graph_of(self.size, self._pairs.tolist()))

    @cached_property
    def spectral_gap(self) -> float:
        """Return 1 - max(|lambda_2|, |lambda_m|).

        With a gap of 1 nodes agree after one gossip, with 0 they may never agree.
        """
        if self.size == 1:
            return 1.0
        others = np.linalg.eigvalsh(self.W)[:-1]
        return max(0.0, 1.0 - float(np.abs(others).max()))

    @cached_property
    def _pairs(self) -> NDArray[np.int64]:
        return np.argwhere(np.triu(self.W, 1) > 0)

    def at(self, t: int) -> Topology:
        """Return this topology, whose links are those of every round."""
        return self

    def digest(self) -> str:
        """Return a hash of W."""
        return hexed(self.W.tobytes())

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and np.array_equal(self.W, other.W)

    def __hash__(self) -> int:
        return hash(self.digest())

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy goes through the constructor, because a pickled array comes back writable.
        return Topology, (self.W, self.name)


def refuse(W: Floats, wrong: NDArray[np.bool_], expected: str, remedy: str) -> None:
    """Raise with the first of the wrong pairs, if there are any."""
    if wrong.any():
        i, j = map(int, np.argwhere(wrong)[0])
        raise ValueError(
            f"{_WHO} needs {expected}, got {W[i, j]:g} for the pair ({i}, {j}); {remedy}."
        )


def checked(matrix: Any, m: int | None = None) -> Floats:
    """Return a mixing matrix (of m nodes) as floats; refuse one that is not doubly stochastic."""
    try:
        W = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{_WHO} needs a square array of numbers, got {matrix!r}.") from None
    square = W.ndim == 2 and W.shape[0] == W.shape[1] >= 1
    shape = f"shape ({m}, {m})" if m else "a square shape"
    right = square and m in (None, len(W))
    require(right, _WHO, shape, W.shape, "give one row and one column for each node")

    refuse(W, ~np.isfinite(W), "finite weights", "see how it was computed")
    refuse(W, W < -TOLERANCE, "weights >= 0", "lower the other weights of its row")
    uneven = np.abs(W - W.T) > TOLERANCE
    refuse(W, uneven, "the same weight at both ends of a link", "make it equal to its transpose")
    sums = W.sum(axis=1)
    wrong = np.flatnonzero(np.abs(sums - 1) > TOLERANCE)
    if len(wrong):
        raise ValueError(
            f"{_WHO} needs rows that sum to one, got {sums[wrong[0]]:.10g} in row {wrong[0]}; "
            f"put the rest on the diagonal."
        )
    return W


def graph_of(m: int, pairs: Iterable[Sequence[int]]) -> nx.Graph:
    """Return a graph of nodes 0...m-1 in order; a pair of a node with itself is no link."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(m))
    graph.add_edges_from((i, j) for i, j in pairs if i != j)
    return graph
