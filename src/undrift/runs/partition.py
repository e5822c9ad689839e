"""The labels of each client are counted from the data, written to the folder, and read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.config.experiment import Data
from undrift.data import Clients
from undrift.results.filenames import LABEL_COUNTS
from undrift.results.trial import write_result
from undrift.runs.build import build_clients
from undrift.runs.load import load_dataset
from undrift.untrusted import read_json

MOST_CLIENTS = 1000  # A heat map of more clients cannot be read.


@dataclass(frozen=True)
class PartitionCounts:
    """Holds how many samples of each label each client has."""

    counts: NDArray[np.int64]  # (clients, labels)
    labels: Sequence[str]  # the labels' names

    def write(self, folder: Path) -> None:
        """Write the counts into the folder, so that a report of it needs no data."""
        values = {"labels": list(self.labels), "samples": self.counts.tolist()}
        write_result(folder / LABEL_COUNTS, json.dumps(values) + "\n")


def label_counts(clients: Clients, classes: int) -> NDArray[np.int64]:
    """Return (clients, classes) how many samples of each label each client holds."""
    targets = clients.targets.numpy()
    rows = [np.bincount(targets[clients.of(i)], minlength=classes) for i in range(len(clients))]
    return np.stack(rows)


def count_partition(data: Data, seed: int) -> PartitionCounts | None:
    """Return who holds what with this seed, or None if there are too many clients to show.

    Targets that are no labels, as a program's own may be, are not counted either, nor those of
    ranks with data of their own.
    """
    clients = build_clients(data, seed)
    if clients.rank_census is not None:
        return None
    labels_only = clients.targets.ndim == 1 and not clients.targets.is_floating_point()
    if len(clients) > MOST_CLIENTS or not labels_only:
        return None
    dataset = load_dataset(data)
    labels = dataset.labels or map(str, range(dataset.classes))
    return PartitionCounts(label_counts(clients, dataset.classes), tuple(labels))


def read_partition(folder: Path) -> PartitionCounts | None:
    """Return the partition that a folder of results holds, or None if it holds no sound one."""
    path = folder / LABEL_COUNTS
    if not path.is_file():
        return None
    try:
        values: dict[str, Any] = read_json(path)
        counts, labels = np.array(values["samples"], dtype=np.int64), values["labels"]
    except (ArithmeticError, ValueError, KeyError, TypeError, OSError):
        return None
    named = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    sound = counts.ndim == 2 and counts.size > 0 and (counts >= 0).all()
    if not named or not sound or counts.shape[1] != len(labels) or len(counts) > MOST_CLIENTS:
        return None
    return PartitionCounts(counts, tuple(labels))
