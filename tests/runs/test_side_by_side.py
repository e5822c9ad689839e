"""Jobs side by side: the same results as one after the other, and nothing lost when stopped."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from undrift.config.experiment import Experiment, Method
from undrift.results.trial import RecordingError
from undrift.runs import side_by_side
from undrift.runs.build import build_run
from undrift.runs.folder import read
from undrift.runs.jobs import jobs
from undrift.runs.run_job import Recorder

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


def test_an_execution_is_chosen_once_for_jobs_that_differ_in_numbers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[str, Any]] = []

    def build(experiment: Experiment, method: Method, seed: int, **options: Any) -> Any:
        built.append((method.name, method.settings.get("rule", "sgd")))
        return build_run(experiment, method, seed, **options)

    monkeypatch.setattr(side_by_side, "build_run", build)
    settings = {
        **SETTINGS,
        "sweep": {
            "grid": {
                "method.lr": [0.1, 0.2, "exponential(0.1, 0.99)"],
                "fedavg.rule": ["sgd", "adam"],
            }
        },
    }
    planned = jobs(Experiment.of(settings))
    recorder = Recorder(tmp_path)
    found = list(side_by_side._executions(planned, recorder, 1, {}))
    assert len(found) == len(planned) == 18
    assert sorted(built) == [("fedavg", "adam"), ("fedavg", "sgd"), ("scaffold", "sgd")]


class OfTwo(Exception):
    """An error that cannot be read back from its own text."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("lr needs"), ValueError, "^lr needs$"),
        (RecordingError("x could not be written"), ud.errors.UndriftError, "^x could"),
        (OfTwo("a", "b"), RuntimeError, r"(?s)A job failed:.*in fail.*OfTwo: a b"),
    ],
)
def test_an_error_of_any_kind_reaches_another_process(
    error: Exception, kind: type[Exception], text: str
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        fail()
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        theirs.send(side_by_side._sendable(caught.value))
        received = ours.recv()
    assert type(received) is kind
    assert re.search(text, str(received))


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
