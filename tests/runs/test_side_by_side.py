"""Jobs side by side: the same results as one after the other, and nothing lost when stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from undrift.config.experiment import Experiment
from undrift.runs.folder import read

SETTINGS: dict[str, Any] = {
    "seeds": [0, 1],
    "methods": [{"name": "fedavg"}, {"name": "scaffold"}],
    "data": {"clients": 4, "test_samples": 50},
    "training": {"rounds": 3, "work": "steps:2"},
}


def facts(result: ud.ExperimentResult) -> list[tuple[Any, ...]]:
    return [
        (t.label, t.seed, t.status, t.model_sha256, [r.accuracy for r in t.records])
        for t in result.trials
    ]


def test_results_are_those_of_one_job_at_a_time(tmp_path: Path) -> None:
    one = ud.run(SETTINGS, out=tmp_path / "one")
    heard: list[tuple[str, int, int]] = []
    two = ud.run(
        SETTINGS,
        out=tmp_path / "two",
        jobs=2,
        on_record=lambda job, record: heard.append((job.label, job.seed, record.round)),
    )
    assert facts(one) == facts(two)
    assert facts(read(tmp_path / "two")) == facts(one)
    assert len(heard) == 12


@pytest.mark.long
def test_an_error_of_a_job_is_raised(tmp_path: Path) -> None:
    """The records of the second method cannot be written, because their place is a folder."""
    settings = {**SETTINGS, "seeds": [0]}
    folder = tmp_path / "x"
    ud.run({**settings, "methods": [{"name": "fedavg"}, {"name": "fedprox"}]}, out=folder)
    (folder / "fedprox-seed0.json").unlink()
    (folder / "fedprox-seed0.jsonl").unlink()
    (folder / "fedavg-seed0.json").unlink()
    (folder / "fedprox-seed0.jsonl").mkdir()
    with pytest.raises(ud.errors.UndriftError, match="could not be written"):
        ud.run(resume=folder, jobs=2)


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({}, {"jobs": 0}, "jobs needs a whole number >= 1, got 0"),
        ({"engine": {"processes": 2}}, {"jobs": 2}, "jobs needs one process a job"),
    ],
)
def test_what_cannot_run_side_by_side(
    changes: dict[str, Any], options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        ud.run({**SETTINGS, **changes}, out=tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


@pytest.mark.long
def test_an_interrupt_keeps_what_was_done_and_resume_goes_on(tmp_path: Path) -> None:
    folder, whole = tmp_path / "x", tmp_path / "whole"
    settings = {**SETTINGS, "seeds": [0], "training": {"rounds": 200, "work": "steps:2"}}
    settings |= {"evaluation": {"every": 100}, "engine": {"checkpoint_every": 20, "mode": "loop"}}
    file = tmp_path / "e.toml"
    file.write_text(Experiment.of(settings).to_toml())
    command = [sys.executable, "-m", "undrift", "run", str(file), "--jobs", "2", "--out"]
    process = subprocess.Popen(
        [*command, str(folder)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    records = [folder / f"{name}-seed0.jsonl" for name in ("fedavg", "scaffold")]
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if all(path.is_file() and path.stat().st_size for path in records):
            break
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "stopped after round" in err
    assert "Traceback" not in err
    assert "stopped" in {trial.status for trial in read(folder).trials}
    resumed = ud.run(resume=folder, jobs=2)
    assert facts(resumed) == facts(ud.run(settings, out=whole))
