"""Files that unpack to far more than they are, refused before they fill the memory.

`python -m benchmarks.bombs` makes each of them and measures what it takes to refuse it.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from benchmarks.bombs import BOMBS, Bomb

from undrift.errors import UndriftError

SIZE = 40 << 20  # bytes unpacked, a little more than any file may unpack to

pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.name.replace(" ", "-"))
def test_a_bomb_is_refused_in_little_memory(bomb: Bomb, tmp_path: Path) -> None:
    if bomb.name == "Parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    bomb.make(tmp_path, SIZE)
    tracemalloc.start()
    try:
        with pytest.raises((UndriftError, ValueError), match=bomb.message):
            bomb.read(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 160 * 2**20
