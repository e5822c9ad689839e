"""A topology says who is linked with whom in gossip between peers, and with which weights.

A `Topology` is a symmetric doubly stochastic matrix W; its positive off-diagonal weights are the
links. Row i says how node i mixes what it holds with what its neighbours send. Being doubly
stochastic, W keeps the mean over the nodes, and its spectral gap says how fast they agree.

Links may change with the round: whatever satisfies `Links` gives a topology for each round
(`Cycle`, `DroppedLinks`, `Varying`). docs/topology.md has the table of makers and their gaps.
"""

from undrift.topology.graphs import (
    barabasi_albert,
    complete,
    erdos_renyi,
    exponential,
    from_graph,
    grid,
    isolated,
    ring,
    small_world,
    star,
    torus,
)
from undrift.topology.matrix import Links, Topology
from undrift.topology.mixing import MIXINGS, Mixing
from undrift.topology.parsing import near_square, parse
from undrift.topology.varying import Cycle, DroppedLinks, Varying

__all__ = [
    "MIXINGS",
    "Cycle",
    "DroppedLinks",
    "Links",
    "Mixing",
    "Topology",
    "Varying",
    "barabasi_albert",
    "complete",
    "erdos_renyi",
    "exponential",
    "from_graph",
    "grid",
    "isolated",
    "near_square",
    "parse",
    "ring",
    "small_world",
    "star",
    "torus",
]
