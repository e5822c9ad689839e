"""The Python of docs/outer.md runs as it stands."""

from __future__ import annotations

import re

import pytest

from tests.support.system import ROOT


def test_the_blocks_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "outer.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/outer.md", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert len(blocks) == 5
