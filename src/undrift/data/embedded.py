"""Data that needs no download."""

from __future__ import annotations

import torch

from undrift import keyed
from undrift.check import require
from undrift.data.dataset import Dataset
from undrift.errors import optional


def digits(*, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits, 8 x 8 grey values in [0, 1], flattened."""
    require(0 < test_fraction < 1, "digits", "test_fraction in (0, 1)", test_fraction)
    raw = optional("sklearn.datasets", "digits", "digits", package="scikit-learn").load_digits()
    inputs = torch.tensor(raw.data, dtype=torch.float32) / 16
    targets = torch.tensor(raw.target, dtype=torch.int64)
    order = torch.from_numpy(keyed.generator(seed, "digits").permutation(len(targets)))
    cut = round(len(targets) * test_fraction)
    test, train = order[:cut], order[cut:]
    pairs = (inputs[train], targets[train]), (inputs[test], targets[test])
    return Dataset(*pairs, classes=10, name="digits")
