"""The examples and the README's Python run as they stand."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.system import ROOT
from undrift.config.hyperparameters import METHODS


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # where an example may write
    names = runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    CHECKS.get(path.stem, lambda _: None)(names)


def check_own_model_and_data(names: dict[str, Any]) -> None:
    """Both parts have a client for each value of their column, and learn far beyond guessing."""
    parts = (
        ("patients", "hospitals", 4, "table_record"),
        ("photographs", "cameras", 6, "image_record"),
    )
    for data, clients, expected, record in parts:
        dataset, dealt = names[data], names[clients]
        assert len(dealt) == expected
        assert all((dataset.client_ids[dealt.of(i)] == i).all() for i in range(expected))
        guessed = np.bincount(dataset.test[1]).max() / len(dataset.test[1])
        assert names[record].accuracy > guessed + 0.25


def check_trajectories(names: dict[str, Any]) -> None:
    """FedAvg ends on the side of the fast client, FedNova on that of the slow one, as printed."""
    ends = {name: path[-1] - names["optimum"] for name, path in names["paths"].items()}
    away = {name: float(np.linalg.norm(end)) for name, end in ends.items()}
    assert min(away["FedAvg"], away["FedNova"]) > 0.2
    assert max(away["FedLin"], away["SCAFFOLD"], away["FedaGrac"]) < 0.05
    slow, fast = (np.array(names["LINES"][i]) - names["optimum"] for i in (0, -1))
    assert ends["FedAvg"] @ fast > 0 > ends["FedAvg"] @ slow
    assert ends["FedNova"] @ slow > 0 > ends["FedNova"] @ fast
    assert names["picture"].stat().st_size > 10_000


CHECKS = {
    "own_model_and_data": check_own_model_and_data,
    "trajectories": check_trajectories,
}


def test_the_readmes_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) == 20
    accuracy = names["record"].accuracy  # type: ignore[attr-defined]
    assert accuracy > 0.8


def test_every_method_has_its_page() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "algorithms").glob("*.md")}
    assert pages == set(METHODS)


def test_every_page_shows_the_methods_signature() -> None:
    """As `undrift.Name(lr, other=default, ...)`, for the pages that spell it out."""
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
