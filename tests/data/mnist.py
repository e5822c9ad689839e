"""Files in the form of MNIST, small enough for a test."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def idx(array: np.ndarray) -> bytes:
    """Return an array of bytes in the IDX format."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, seed: int = 0) -> dict[str, bytes]:
    """Write twenty training and ten test images, each label twice and once; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    files = {}
    for part, count in (("train", 20), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 28, 28))
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(images), mtime=0)
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(np.arange(count) % 10), mtime=0)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return files
