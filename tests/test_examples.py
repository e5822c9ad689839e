"""The examples and the README's Python run as they stand."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_the_readmes_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) == 20
    accuracy = names["record"].accuracy  # type: ignore[attr-defined]
    assert accuracy > 0.8


def test_every_method_has_its_page() -> None:
    from undrift.cli import METHODS

    pages = {path.stem for path in (ROOT / "docs" / "algorithms").glob("*.md")}
    assert pages == set(METHODS)


def test_every_page_shows_the_methods_signature() -> None:
    """As `undrift.Name(lr, other=default, ...)`, for the pages that spell it out."""
    from undrift.cli import METHODS

    shown = 0
    for name, cls in METHODS.items():
        text = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()
        for line in re.findall(rf"`undrift\.{cls.__name__}\((lr.*?)\)`", text):
            own = str(inspect.signature(cls))
            for setting in re.findall(r"(\w+)=(\w[\w.]*|'\w+'|\"\w+\")", line):
                default = inspect.signature(cls).parameters[setting[0]].default
                written = setting[1].strip("'\"")
                assert str(default) in (written, f"{written}()") or written in repr(default), own
                shown += 1
    assert shown > 10
