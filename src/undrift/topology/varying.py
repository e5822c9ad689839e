"""Links that change with the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from undrift import keyed
from undrift.check import is_probability, is_whole, require
from undrift.topology.graphs import check_nodes
from undrift.topology.matrix import Links, Topology, hexed


@dataclass(frozen=True)
class Cycle:
    """Round t uses topology t modulo their number, as in `Cycle((ring(8), star(8)))`."""

    topologies: tuple[Topology, ...]

    def __post_init__(self) -> None:
        listed = isinstance(self.topologies, list | tuple)
        require(listed, "Cycle", "a list of topologies", self.topologies)
        object.__setattr__(self, "topologies", tuple(self.topologies))
        require(len(self.topologies) >= 1, "Cycle", "at least one topology", 0)
        for topology in self.topologies:
            require(isinstance(topology, Topology), "Cycle", "topologies", topology)
        sizes = [topology.size for topology in self.topologies]
        require(len(set(sizes)) == 1, "Cycle", "topologies of one size", sizes)

    @property
    def size(self) -> int:
        """Return the number of nodes."""
        return self.topologies[0].size

    def at(self, t: int) -> Topology:
        """Return round t's links."""
        return self.topologies[t % len(self.topologies)]

    def digest(self) -> str:
        """Return a hash of the rule by which links change."""
        return hexed("/".join(["cycle", *(each.digest() for each in self.topologies)]).encode())


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
        instance = isinstance(self.topology, Links) and not isinstance(self.topology, type)
        require(instance, "DroppedLinks", "a topology", self.topology)
        require(is_probability(self.p), "DroppedLinks", "a probability p in [0, 1]", self.p)
        require(is_whole(self.seed), "DroppedLinks", "a whole seed", self.seed)

    @property
    def size(self) -> int:
        """Return the number of nodes."""
        return self.topology.size

    def at(self, t: int) -> Topology:
        """Return round t's links."""
        inner = self.topology.at(t)
        draws = keyed.generator(self.seed, "dropped-links", t).random(inner.W.shape)
        up = np.triu(draws >= self.p, 1)
        W = np.where(up | up.T, inner.W, 0.0)
        np.fill_diagonal(W, 1 - W.sum(axis=1))
        return Topology(W, f"{inner!r} in round {t + 1} of DroppedLinks({self.p}, {self.seed})")

    def digest(self) -> str:
        """Return a hash of the rule by which links change."""
        law = f"dropped/{self.topology.digest()}/{float(self.p)!r}/{self.seed}"
        return hexed(law.encode())


@dataclass(frozen=True, repr=False)
class Varying:
    """Round t uses what your own function returns; `text` names it in its repr and in checkpoints.

    The function must give the same topology whenever it is asked for the same round; give another
    text to a function that draws other links, since a checkpoint cannot look inside.
    """

    function: Callable[[int], Topology]
    size: int
    text: str

    def __post_init__(self) -> None:
        require(callable(self.function), "Varying", "a function of the round", self.function)
        check_nodes("Varying", self.size)
        named = isinstance(self.text, str) and self.text != ""
        require(named, "Varying", "a text that names it", self.text)

    def at(self, t: int) -> Topology:
        """Return round t's links."""
        topology = self.function(t)
        right = isinstance(topology, Topology) and topology.size == self.size
        require(right, "Varying", f"a topology of {self.size} nodes in round {t + 1}", topology)
        return topology

    def digest(self) -> str:
        """Return a hash of the rule by which links change."""
        return hexed(f"varying/{self.size}/{self.text}".encode())

    def __repr__(self) -> str:
        return self.text
