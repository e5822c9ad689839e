"""Data that needs no download: handwritten digits, which are a part of the package.

They are the 1,797 digits of scikit-learn (the test set of E. Alpaydin and C. Kaynak's Optical
Recognition of Handwritten Digits, UCI Machine Learning Repository, CC BY 4.0), 4 bits a value.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import require
from undrift.data.dataset import Dataset

DIGITS = 1797
PIXELS = 64


def digits(*, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Return 1,797 handwritten digits, 8 x 8 grey values in [0, 1], flattened."""
    require(0 < test_fraction < 1, "digits", "test_fraction in (0, 1)", test_fraction)
    pixels, classes = _digits()
    inputs = torch.tensor(pixels, dtype=torch.float32) / 16
    targets = torch.tensor(classes, dtype=torch.int64)
    order = torch.from_numpy(keyed.generator(seed, "digits").permutation(len(targets)))
    cut = round(len(targets) * test_fraction)
    test, train = order[:cut], order[cut:]
    pairs = (inputs[train], targets[train]), (inputs[test], targets[test])
    return Dataset(*pairs, classes=10, name="digits")


@cache
def _digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the grey values 0...16 of each digit, and its class.

    The file has two values a byte, first all pixels and then all classes. Grey values need 17
    numbers: 15 stands for 15 and for 16, and one bit for each of them follows that says which.
    """
    content = np.frombuffer(Path(__file__).with_name("digits.bin").read_bytes(), dtype=np.uint8)
    packed = DIGITS * PIXELS // 2
    labels = (DIGITS + 1) // 2
    pixels = _halves(content[:packed])
    darkest = pixels == 15
    pixels[darkest] += np.unpackbits(content[packed + labels :], count=int(darkest.sum()))
    return pixels.reshape(DIGITS, PIXELS), _halves(content[packed : packed + labels])[:DIGITS]


def _halves(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the two values of each byte."""
    return np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)
