"""Plain lines where the output is no terminal: one a minute, none of a short run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import undrift as ud
from undrift import testing
from undrift.cli import progress
from undrift.cli.progress import ProgressLines
from undrift.results.record import Record


def job(label: str, seed: int, rounds: int) -> Any:
    """Return what a line tells of a job."""
    training = SimpleNamespace(rounds=rounds)
    experiment = SimpleNamespace(training=training)
    return SimpleNamespace(label=label, seed=seed, name=f"{label}-{seed}", experiment=experiment)


def record(round: int, accuracy: float | None = None) -> Record:
    loss = None if accuracy is None else 1.0  # of a round that was tested
    return Record(round, 4, loss, accuracy, 100, 200, 8, 160, 0.5)


def test_a_line_a_minute_with_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines, fedavg = ProgressLines(), job("FedAvg", 3, 100)
    lines.plan(100)
    lines.begin(fedavg, 0)
    said = []
    for round in range(1, 31):
        now[0] += 10
        said.append(lines.add(fedavg, record(round, 0.5 if round == 4 else None)))
    every_minute = [i + 1 for i, line in enumerate(said) if line is not None]
    assert every_minute == [6, 12, 18, 24, 30]
    assert said[5] == "FedAvg, seed 3: round 6 of 100, accuracy 50.00 %; about 16 min left"
    assert said[29] == "FedAvg, seed 3: round 30 of 100, accuracy 50.00 %; about 12 min left"


def test_jobs_side_by_side_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines, first, second = ProgressLines(), job("A", 0, 10), job("B", 1, 10)
    lines.plan(30)
    lines.begin(first, 4)  # It goes on from a checkpoint.
    lines.begin(second, 0)
    lines.add(first, record(5))
    now[0] = 7200.0
    line = lines.add(second, record(1))
    assert line == "A, seed 0: round 5 of 10; B, seed 1: round 1 of 10; about 24.0 h left"
    lines.end(first, 10)  # It has diverged, so its five rounds are not run.
    now[0] = 14400.0
    assert lines.add(second, record(2)) == "B, seed 1: round 2 of 10; about 24.0 h left"


@pytest.mark.parametrize("quiet", [False, True])
def test_the_command_prints_lines_instead_of_a_bar(
    quiet: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., tuple[int, str, str]],
) -> None:
    arguments = ["run", "fedavg", "--rounds", "3", "--clients", "4", "--work", "steps:1"]
    arguments += ["--quiet"] if quiet else []
    _, _, err = call(*arguments, "--out", str(tmp_path / "short"))
    assert "seed 0: round" not in err, "it takes less than a minute"
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    _, _, err = call(*arguments, "--out", str(tmp_path / "long"))
    said = [line for line in err.splitlines() if line.startswith("FedAvg, seed 0: round ")]
    assert len(said) == (0 if quiet else 3)
    assert "\x1b" not in err
    if not quiet:
        assert "round 3 of 3, accuracy " in said[-1]
        assert said[-1].endswith("; about 0 min left")


def test_a_notebook_without_ipywidgets_has_a_line_of_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bar of rich needs ipywidgets there, and shows a warning in place of the rounds."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    for record in testing.start(ud.FedAvg(lr=0.1), rounds=3, progress=True):
        assert record.round <= 3
    shown = capsys.readouterr().err
    lines = shown.split("\r")
    assert [line.split()[:2] for line in lines[1:]] == [["FedAvg", f"{i}/3"] for i in (1, 2, 3)]
    assert shown.endswith("\n")
