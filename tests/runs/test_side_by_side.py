"""Jobs side by side: the same results as one after the other, and nothing lost when stopped."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from undrift.config.experiment import Experiment, Method
from undrift.engine import simulate as simulation
from undrift.engine.settings import RunSize
from undrift.engine.tuning import calibrate
from undrift.engine.tuning.rules import Candidate
from undrift.engine.world import World
from undrift.results.trial import RecordingError
from undrift.runs import job_count, runner, side_by_side
from undrift.runs.build import build_run, resolve_experiment
from undrift.runs.executions import Executions
from undrift.runs.folder import read
from undrift.runs.job_count import default_jobs
from undrift.runs.jobs import Job, jobs
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
    executions = Executions((), Recorder(tmp_path))
    found = list(side_by_side._executions(planned, executions, 1, {}))
    assert len(found) == len(planned) == 18
    assert sorted(built) == [("fedavg", "adam"), ("fedavg", "sgd"), ("scaffold", "sgd")]


def executions(result: ud.ExperimentResult) -> list[tuple[Any, ...]]:
    return [(t.facts["mode"], t.facts["kernels"], t.facts["loops"]) for t in result.trials]


@pytest.fixture
def calibrations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has each calibration find another mode, as on a busy machine, and lists what they find."""
    found: list[str] = []

    def fastest(calibration: calibrate.Calibration) -> tuple[Candidate, None]:
        modes = sorted({each.mode for each in calibration.candidates})
        found.append(modes[len(found) % len(modes)])
        return next(each for each in calibration.candidates if each.mode == found[-1]), None

    monkeypatch.setattr(calibrate.Calibration, "fastest", fastest)
    monkeypatch.setattr(calibrate, "wanted", lambda rounds, planner, possible: len(possible) > 1)
    return found


def test_seeds_are_executed_alike_after_a_calibration_that_is_not_kept(
    tmp_path: Path, calibrations: list[str]
) -> None:
    settings = {**SETTINGS, "seeds": [0, 1, 2]}
    one = ud.run(settings, out=tmp_path / "one", jobs=1)
    assert calibrations == ["loop", "stacked"], "one for each method"
    assert [mode for mode, *_ in executions(one)] == ["loop"] * 3 + ["stacked"] * 3
    for name in ("fedavg-seed1.json", "fedavg-seed1.jsonl"):
        (tmp_path / "one" / name).unlink()
    calibrations.append("so that the next would find stacked")
    resumed = ud.run(resume=tmp_path / "one", jobs=1)
    assert len(calibrations) == 3
    assert executions(resumed) == executions(one)
    assert facts(resumed) == facts(one)


@pytest.mark.long
@pytest.mark.parametrize("kernels", [False, "always"])
def test_jobs_are_executed_as_they_are_one_at_a_time(
    kernels: Any, tmp_path: Path, calibrations: list[str]
) -> None:
    settings = {**SETTINGS, "engine": {"kernels": kernels}}
    one = ud.run(settings, out=tmp_path / "one", jobs=1)
    assert {used for _, used, _ in executions(one)} == {bool(kernels)}
    assert len(calibrations) == (0 if kernels else 2)
    calibrations.clear()
    two = ud.run(settings, out=tmp_path / "two", jobs=2)
    assert executions(two) == executions(one)
    assert facts(two) == facts(one)


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


def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the default see two cores; jobs still have a thread each."""
    monkeypatch.setattr(job_count, "get_num_threads", lambda: 2)


def planned(**training: Any) -> list[Job]:
    settings = {**SETTINGS, "training": {**SETTINGS["training"], **training}}
    return jobs(resolve_experiment(Experiment.of(settings)))


class TestDefault:
    def test_short_jobs_run_one_after_the_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        two_threads(monkeypatch)
        assert default_jobs(planned()) == 1

    def test_long_jobs_run_on_all_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Four jobs of 36,000 gradients each are estimated at 14 s or more."""
        long = planned(rounds=4500)
        assert default_jobs(long) == 1  # as there is one thread
        two_threads(monkeypatch)
        assert default_jobs(long) == 2
        assert default_jobs(long[:1]) == 1
        monkeypatch.setattr(job_count, "get_num_threads", lambda: 64)
        assert default_jobs(long) == 4

    def test_large_activations_run_one_after_the_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        two_threads(monkeypatch)
        monkeypatch.setattr(simulation, "THREADED_ELEMENTS", 100)
        assert default_jobs(planned(rounds=4500)) == 1

    def test_jobs_of_a_kind_are_sized_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        two_threads(monkeypatch)
        sized: list[str] = []

        def size(experiment: Any, method: Any, seed: int) -> RunSize:
            sized.append(method.name)
            return RunSize(2.5, False)

        monkeypatch.setattr(job_count, "run_size", size)
        assert default_jobs(planned()) == 2
        assert sized == ["fedavg", "scaffold"]
        monkeypatch.setattr(job_count, "WORTH", 10.1)
        assert default_jobs(planned()) == 1

    @pytest.mark.parametrize("given", [{"search": 2}, {"checkpoint": Path("x")}])
    def test_what_cannot_run_side_by_side_does_not(
        self, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runner, "default_jobs", lambda left: pytest.fail("asked"))
        options = runner.RunOptions(**given)
        search = object() if options.search else None
        world = World()
        made = runner._Runner(Experiment.of(SETTINGS), None, options, search, world)  # type: ignore[arg-type]
        assert made._count([]) == 1

    def test_it_is_what_a_run_does(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        counts: list[int] = []

        def pool(left: Any, count: int, *others: Any, **options: Any) -> Iterator[Any]:
            counts.append(count)
            yield from ()

        monkeypatch.setattr(runner, "default_jobs", lambda left: 3)
        monkeypatch.setattr(runner, "run_side_by_side", pool)
        ud.run(SETTINGS, out=tmp_path / "x")
        assert counts == [3]


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """The processes do not import the script, which would start the experiment once more."""
    script = tmp_path / "script.py"
    settings = {**SETTINGS, "seeds": [0], "training": {"rounds": 1, "work": "steps:1"}}
    script.write_text(
        "import undrift as ud\n"
        "print('started', flush=True)\n"
        f"result = ud.run({settings!r}, out={str(tmp_path / 'x')!r}, jobs=2)\n"
        "print([trial.status for trial in result.trials])\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout == "started\n['finished', 'finished']\n", ran.stderr
