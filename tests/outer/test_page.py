"""The Python of docs/outer.md runs as it stands."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.support.system import ROOT

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
OPTIONAL = ("lightning", "transformers")


@pytest.mark.filterwarnings("ignore")
def test_the_blocks_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "outer.md").read_text())
    names: dict[str, object] = {"__name__": "page"}
    lines = []
    for block in blocks:
        needed = [name for name in OPTIONAL if f"import {name}\n" in block]
        if all(importlib.util.find_spec(name) is not None for name in needed):
            exec(compile(block, "docs/outer.md", "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        lines += [] if needed else printed
    assert len(lines) == 5
    assert len(blocks) == 8
