"""The partition as a picture of clients and labels, and as a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.report.comparison import Comparison
from undrift.report.numerals import grouped

LEVELS = 6
CELLS = 20_000  # that are drawn at most
IN_TABLE = 2_000  # cells at most for a table of numbers
NAMED = 40  # labels at most for names at the side


@dataclass(frozen=True)
class PartitionMap:
    """Holds paths that shade cells by their number of samples; empty cells stay blank."""

    clients: list[int]  # the clients that are drawn
    labels: list[str]
    counts: NDArray[np.int64]  # (labels, clients)
    paths: list[str]  # by level
    ranges: list[str]  # samples at each level
    ticks: list[tuple[float, int]]  # share of the width, client
    words: str
    everybody: bool  # whether all clients are drawn

    @property
    def named(self) -> bool:
        """Return whether labels have their names at the side."""
        return len(self.labels) <= NAMED

    @property
    def tabled(self) -> bool:
        """Return whether a table shows the numbers."""
        return self.counts.size <= IN_TABLE

    @property
    def data(self) -> dict[str, Any]:
        """Return what the page's script shows."""
        return {"clients": self.clients, "labels": self.labels, "counts": self.counts.tolist()}


def partition_map(comparison: Comparison) -> PartitionMap | None:
    """Return the picture of a partition, or None if the comparison has no partition."""
    if comparison.partition is None:
        return None
    counts = np.asarray(comparison.partition, np.int64)
    clients, labels = counts.shape
    most = max(1, CELLS // labels)
    drawn = np.unique(np.linspace(0, clients - 1, min(clients, most)).round().astype(np.int64))
    cells = counts[drawn].T
    top = max(int(cells.max()), 1)
    edges = [level * top // LEVELS for level in range(LEVELS + 1)]  # level k: above edges[k]
    levels = np.searchsorted(edges, cells, side="left") - 1  # -1: no sample
    used = [level for level in range(LEVELS) if edges[level] < edges[level + 1]]
    return PartitionMap(
        clients=drawn.tolist(),
        labels=comparison.label_names,
        counts=cells,
        paths=[_path(levels == level) if level in used else "" for level in range(LEVELS)],
        ranges=[_range(edges[k] + 1, edges[k + 1]) if k in used else "" for k in range(LEVELS)],
        ticks=_ticks(drawn.tolist()),
        words=_words(counts),
        everybody=len(drawn) == clients,
    )


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _path(cells: NDArray[np.bool_]) -> str:
    """Return an SVG path that draws adjacent cells of a row as one rectangle."""
    parts = []
    for y, row in enumerate(cells):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
        for left, right in zip(edges[::2], edges[1::2], strict=True):
            parts.append(f"M{left} {y}h{right - left}v1h-{right - left}z")
    return "".join(parts)


def _ticks(clients: list[int]) -> list[tuple[float, int]]:
    """Return the places of at most eight ticks and their clients."""
    count = len(clients)
    step = next(s * 10**p for p in range(9) for s in (1, 2, 5) if count / (s * 10**p) <= 8)
    return [((place + 0.5) / count, clients[place]) for place in range(0, count, step)]


def _words(counts: NDArray[np.int64]) -> str:
    """Return a sentence on the sizes and labels of the clients."""
    samples, held = counts.sum(axis=1), (counts > 0).sum(axis=1)
    clients, labels = counts.shape
    return (
        f"{clients} client{'s hold' if clients > 1 else ' holds'} {grouped(int(samples.sum()))} "
        f"samples of {labels} label{'s' if labels > 1 else ''}. "
        f"Samples of a client: {_span(samples)}; labels of a client: {_span(held)}."
    )


def _span(values: NDArray[np.int64]) -> str:
    low, high = int(values.min()), int(values.max())
    if low == high:
        return f"{grouped(low)} each"
    return f"{grouped(low)} to {grouped(high)}, median {np.median(values):g}"
