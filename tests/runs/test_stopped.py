"""Runs that are stopped or killed go on, keep every record, and end with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from tests.support.system import ROOT, names_in
from undrift.config.experiment import Experiment
from undrift.engine.checkpoint.store import saved_rounds
from undrift.errors import UndriftError
from undrift.runs.folder import read
from undrift.runs.jobs import Job

SLOW = str(ROOT / "tests" / "jobs" / "slow.py")
ROUNDS = 30
SINGLE: dict[str, Any] = {
    "methods": [{"name": "scaffold"}],
    "data": {"clients": 4, "test_samples": 50},
    "training": {"rounds": ROUNDS, "work": "steps:2"},
    "engine": {"mode": "loop"},
}
TWO = {**SINGLE, "methods": [{"name": "fedavg"}, {"name": "scaffold"}]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ud.ExperimentResult:
    """Return what nobody has stopped."""
    return ud.run(SINGLE, out=tmp_path_factory.mktemp("whole") / "x")


@contextmanager
def victim(
    folder: Path, *options: str, round: float = 0.1, saves: float = 60, save: float = 0
) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that runs SINGLE into the folder, from its second record on."""
    file = folder.with_suffix(".toml")
    file.write_text(Experiment.of(SINGLE).to_toml())
    command = [sys.executable, SLOW, str(round), str(saves), str(save), "run", str(file)]
    process = subprocess.Popen(
        [*command, "--out", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        # A suite started in the background ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(lambda: len(lines(folder)) >= 2, process)
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300  # which only a very busy machine needs
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def wait_for_end(processes: list[str]) -> None:
    """Wait until none of these processes is there."""
    deadline = time.monotonic() + 30
    while [each for each in processes if Path(f"/proc/{each}").exists()]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lines(folder: Path, name: str = "records") -> list[str]:
    """Return the complete lines of a trial's records."""
    path = folder / f"{name}.jsonl"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def rounds(folder: Path, name: str = "records") -> list[int]:
    return [json.loads(line)["round"] for line in lines(folder, name)]


def same(one: ud.ExperimentResult, other: ud.ExperimentResult) -> bool:
    """Return whether two results have the same models and scores."""

    def facts(result: ud.ExperimentResult) -> list[tuple[Any, ...]]:
        return [
            (t.label, t.seed, t.status, t.model_sha256, [(r.loss, r.accuracy) for r in t.records])
            for t in result.trials
        ]

    return facts(one) == facts(other)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_a_resume_goes_on(
    number: int, code: int, tmp_path: Path, whole: ud.ExperimentResult
) -> None:
    folder = tmp_path / "x"
    with victim(folder) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert f"what was done is kept, go on with undrift run --resume {folder}\n" in err
    before, place = lines(folder), folder / "checkpoints" / "records"
    assert saved_rounds(place) == [len(before)]
    assert read(folder).trials[0].status == "stopped"
    assert not list(folder.rglob("*.lock"))
    heard: list[int] = []
    resumed = ud.run(resume=folder, on_record=lambda job, record: heard.append(record.round))
    assert heard == list(range(len(before) + 1, ROUNDS + 1)), "nothing is run again"
    assert lines(folder)[: len(before)] == before
    assert same(resumed, whole)
    assert not place.parent.exists(), "what has ended needs no checkpoint"


def test_after_a_kill_every_record_is_kept(tmp_path: Path, whole: ud.ExperimentResult) -> None:
    folder = tmp_path / "x"
    place = folder / "checkpoints" / "records"
    with victim(folder, saves=0.5) as process:
        wait_for(lambda: place.is_dir() and saved_rounds(place), process)
        wait_for(lambda: len(lines(folder)) > saved_rounds(place)[0] + 1, process)
        process.kill()
        process.wait()
    before, saved = lines(folder), saved_rounds(place)[0]
    assert 0 < saved < len(before) < ROUNDS
    assert (folder / "undrift.lock").exists()
    heard: list[int] = []
    resumed = ud.run(resume=folder, on_record=lambda job, record: heard.append(record.round))
    assert heard == list(range(saved + 1, ROUNDS + 1)), "it goes on from the checkpoint"
    assert lines(folder)[: len(before)] == before, "with the seconds of the first start"
    assert rounds(folder) == list(range(1, ROUNDS + 1))
    assert same(resumed, whole)
    rows = (folder / "records.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["round", *map(str, range(1, ROUNDS + 1))]
    assert "undrift.lock" not in names_in(folder)


def test_a_second_signal_ends_at_once_and_a_second_run_is_refused(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    folder = tmp_path / "x"
    with victim(folder, save=100) as process:
        code, _, err = call("run", "--resume", str(folder), "--quiet")
        assert code == 1
        owner, told = f"which process {process.pid} on ", " ".join(err.split())
        assert owner in told
        assert "is writing to; wait for its end, or choose another folder." in told
        with pytest.raises(UndriftError, match=owner):
            ud.run(SINGLE, out=folder, force=True)
        written = len(lines(folder))
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: saved_rounds(folder / "checkpoints" / "records"), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
    assert len(lines(folder)) >= written


def test_records_without_a_checkpoint_are_moved_aside(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]], whole: ud.ExperimentResult
) -> None:
    folder = tmp_path / "x"
    unsaved = {**SINGLE, "engine": {"mode": "loop", "checkpoint_every": 0}}

    def interrupt(job: Job, record: ud.Record) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ud.run(unsaved, out=folder, on_record=interrupt)
    with (
        pytest.raises(KeyboardInterrupt),
        pytest.warns(UserWarning, match=r"no checkpoint; .* in records\.earlier-1\."),
    ):
        ud.run(resume=folder, on_record=interrupt)
    code, _, err = call("run", "--resume", str(folder), "--quiet")
    assert code == 0, err
    said = "Scaffold, seed 0, starts again, since it left no checkpoint; its earlier records are"
    assert f"{said} in records.earlier-2.jsonl.\n" in err
    assert rounds(folder) == list(range(1, ROUNDS + 1))
    assert all(rounds(folder, f"records.earlier-{n}") == [1, 2, 3] for n in (1, 2))
    assert same(read(folder), whole)
    ud.run(unsaved, out=folder, force=True)
    assert not list(folder.glob("*earlier*")), "they are the run's own files"


def test_the_shell_refuses_another_version_with_the_difference_unless_it_is_forced(
    tmp_path: Path,
    call: Callable[..., tuple[int, str, str]],
    whole: ud.ExperimentResult,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "x"

    def interrupt(job: Job, record: ud.Record) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ud.run(SINGLE, out=folder, on_record=interrupt)
    before = lines(folder)
    monkeypatch.setattr("undrift.engine.resume.code_digest", lambda: "other")
    code, _, err = call("run", "--resume", str(folder), "--quiet")
    assert code == 1
    told = " ".join(err.split())
    assert "got the code of undrift = other where the checkpoint has " in told
    assert "--force" in told
    assert "Traceback" not in err
    assert lines(folder) == before, "a refusal shortens no record"
    with pytest.warns(UserWarning, match="got the code of undrift = other"):
        code, _, err = call("run", "--resume", str(folder), "--quiet", "--force")
    assert code == 0, err
    assert lines(folder)[:3] == before
    assert same(read(folder), whole)


def test_a_short_run_leaves_neither_lock_nor_checkpoints(whole: ud.ExperimentResult) -> None:
    assert not [name for name in names_in(whole.folder) if "lock" in name or "check" in name]


def test_the_command_for_named_checkpoints_names_them(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from undrift.results.trial import Journal

    real, left = Journal.add, [3]

    def add(self: Journal, record: ud.Record) -> None:
        real(self, record)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "add", add)
    saved, out = tmp_path / "saved", tmp_path / "x"
    arguments = ["run", "fedavg", "--rounds", "5", "--clients", "4", "--work", "steps:1", "--quiet"]
    code, _, err = call(*arguments, "--checkpoint", str(saved), "--out", str(out))
    assert code == 130
    command = f"{' '.join(arguments)} --resume {saved} --out {out}"
    assert f"go on with undrift {command}\n" in err
    assert call(*command.split())[0] == 0
    assert rounds(out) == [1, 2, 3, 4, 5]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_sigterm_ends_the_processes_of_jobs_side_by_side(tmp_path: Path) -> None:
    folder, file = tmp_path / "x", tmp_path / "e.toml"
    settings = {**TWO, "training": {"rounds": 5000, "work": "steps:2"}}
    file.write_text(Experiment.of(settings).to_toml())
    process = subprocess.Popen(
        [sys.executable, "-m", "undrift", "run", str(file), "--jobs", "2", "--out", str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    names = ["fedavg-seed0", "scaffold-seed0"]
    try:
        wait_for(lambda: all(lines(folder, name) for name in names), process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.terminate()
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 143, err
    assert "Traceback" not in err
    wait_for_end(children)
    for name in names:
        (saved,) = saved_rounds(folder / "checkpoints" / name)
        # The signal may come when a round is done and its record is not written yet.
        assert saved - rounds(folder, name)[-1] in (0, 1)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_no_job_outlives_a_killed_command(tmp_path: Path) -> None:
    folder, file = tmp_path / "x", tmp_path / "e.toml"
    settings = {**TWO, "training": {"rounds": 100000, "work": "steps:2"}}
    file.write_text(Experiment.of(settings).to_toml())
    process = subprocess.Popen(
        [sys.executable, "-m", "undrift", "run", str(file), "--jobs", "2", "--out", str(folder)],
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        wait_for(lambda: lines(folder, "fedavg-seed0"), process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) >= 2
    finally:
        process.kill()
        process.wait()
    wait_for_end(children)


def test_what_stopped_before_anything_was_saved_starts_again(
    tmp_path: Path,
    call: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    out, place = tmp_path / "x", tmp_path / "saved"
    begun = ["run", "fedavg", "--rounds", "1", "--clients", "3", "--work", "steps:1"]
    for named in ([], ["--checkpoint", str(place)]):
        with monkeypatch.context() as patch:
            patch.setattr("undrift.runs.run_job.build_run", interrupt)
            arguments = [*begun, *named, "--out", str(out), "--force"]
            monkeypatch.setattr(sys, "argv", ["undrift", *arguments])
            code, _, err = call(*arguments)
        assert code == 130
        assert "kept" not in err
        said = "stopped before the end of its first round; start it again with undrift "
        command = err.partition(said)[2].splitlines()[0].split()
        assert command == (
            [*begun, *named, "--out", str(out), "--force"]
            if named
            else ["run", "--resume", str(out)]
        )
        code, _, err = call(*command)
        assert code == 0, err
