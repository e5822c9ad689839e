"""Files that unpack to far more than they are, refused before they fill the memory.

`python -m benchmarks.bombs` makes each of them and measures what it takes to refuse it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from benchmarks.bombs import BOMBS, Bomb, memory

from tests.jobs.kills import in_copy
from undrift.errors import UndriftError

SIZE = 192 << 20  # bytes unpacked, six times what any small file may unpack to
MOST = 128 << 20  # bytes of memory to refuse a file

pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.name.replace(" ", "-"))
def test_a_bomb_is_refused_in_little_memory(bomb: Bomb, tmp_path: Path) -> None:
    if bomb.name == "Parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    if bomb.name.startswith("skops"):
        pytest.importorskip("skops.io", reason="skops is not installed")
    bomb.make(tmp_path, SIZE)

    def refused() -> tuple[str, int]:
        before = memory("VmRSS")
        try:
            bomb.read(tmp_path)
        except (UndriftError, ValueError) as error:
            return str(error), memory("VmHWM") - before
        return "", memory("VmHWM") - before

    _, told = in_copy(refused)  # which counts memory that Python knows nothing of, too
    message, taken = told
    assert re.search(bomb.message, message)
    assert taken < MOST
