"""Data that needs no download."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import require
from undrift.data.dataset import Dataset
from undrift.errors import optional


def digits(*, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits, 8 x 8 grey values in [0, 1], flattened."""
    require(0 < test_fraction < 1, "digits", "test_fraction in (0, 1)", test_fraction)
    images, labels = _published_digits()
    inputs = torch.tensor(images, dtype=torch.float32) / 16
    targets = torch.tensor(labels, dtype=torch.int64)
    order = torch.from_numpy(keyed.generator(seed, "digits").permutation(len(targets)))
    cut = round(len(targets) * test_fraction)
    test, train = order[:cut], order[cut:]
    pairs = (inputs[train], targets[train]), (inputs[test], targets[test])
    return Dataset(*pairs, classes=10, name="digits")


def _published_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return images and labels from scikit-learn's file, since importing it takes seconds."""
    package = find_spec("sklearn")
    for folder in [] if package is None else package.submodule_search_locations or []:
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1], table[:, -1]
    raw = optional("sklearn.datasets", "digits", "digits", package="scikit-learn").load_digits()
    return raw.data, raw.target
