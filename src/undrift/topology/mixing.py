"""Weights for the links of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.check import require_choice
from undrift.topology.matrix import TOLERANCE, Floats, Topology, checked, refuse

if TYPE_CHECKING:
    import networkx as nx  # type: ignore[import-untyped]

Mixing = str | NDArray[Any] | Sequence[Sequence[float]]
MIXINGS = ("laplacian", "metropolis")


def mixed(who: str, graph: nx.Graph, mixing: Mixing, *arguments: Any, **options: Any) -> Topology:
    """Return the topology of a graph over 0...m-1, named after the call that made it."""
    import networkx as nx

    linked = nx.to_numpy_array(graph, nodelist=range(len(graph))) > 0
    shown = [str(argument) for argument in arguments]
    shown += [f"{name}={value}" for name, value in options.items()]
    if not isinstance(mixing, str):
        W, shown = _own(linked, mixing), [*shown, "mixing=array"]
    else:
        require_choice(who, "mixing", mixing, MIXINGS)
        W = _laplacian(linked) if mixing == "laplacian" else _metropolis(linked)
        shown += [f"mixing={mixing!r}"] if mixing != "laplacian" else []
    return Topology(W, f"{who}({', '.join(shown)})")


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
    """Return a user's matrix, whose weights must be where the links are."""
    W = checked(matrix, len(linked))
    beside = ~linked & ~np.eye(len(W), dtype=bool)
    stray, bare = beside & (W > TOLERANCE), linked & (W <= 0)
    refuse(W, stray, "no weight where there is no link", "add the link or drop the weight")
    refuse(W, bare, "a positive weight for every link", "remove the link or give it weight")
    return np.where(beside, 0.0, W)
