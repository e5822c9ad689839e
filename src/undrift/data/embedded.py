"""Data that needs no download."""

from __future__ import annotations

from functools import cache
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
    table = _table_of_digits()
    inputs = torch.tensor(table[:, :64], dtype=torch.float32) / 16
    targets = torch.tensor(table[:, 64], dtype=torch.int64)
    order = torch.from_numpy(keyed.generator(seed, "digits").permutation(len(targets)))
    cut = round(len(targets) * test_fraction)
    test, train = order[:cut], order[cut:]
    pairs = (inputs[train], targets[train]), (inputs[test], targets[test])
    return Dataset(*pairs, classes=10, name="digits")


@cache
def _table_of_digits() -> NDArray[Any]:
    """Return a row for each digit, its 64 grey values and its class."""
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        # The file is read without its package, whose import takes seconds.
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    raw = optional("sklearn.datasets", "digits", "digits", package="scikit-learn").load_digits()
    return np.column_stack([raw.data, raw.target])
