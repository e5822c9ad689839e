"""Workers that are killed or stopped: the job goes on from its checkpoints, or says who is hung."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import undrift as ud
from tests.support.system import listeners
from undrift.config.experiment import Experiment
from undrift.engine.checkpoint import store
from undrift.runs.folder import read_experiment

ROUNDS = 120
COMMON = ["--clients", "6", "--rounds", str(ROUNDS), "--evaluate-every", "40", "--quiet", "--json"]
METHODS = {
    "scaffold": ["--work", "steps:10", "--lr", "0.05"],
    "marsit": ["--lr", "0.05", "--server-lr", "0.002", "--period", "50"],  # a ring in every round
    "netfleet": ["--topology", "ring", "--work", "steps:5", "--lr", "0.02"],
}


class Job:
    """`undrift run METHOD --processes 2` on its way."""

    def __init__(self, folder: Path, method: str, *options: str) -> None:
        self.records = folder / "out" / "records.jsonl"
        command = [sys.executable, "-m", "undrift", "run", method, *METHODS[method], *COMMON]
        command += ["--processes", "2", "--out", str(folder / "out"), *options]
        self.output = folder / "output"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                cwd=folder,
            )

    def workers(self) -> list[int]:
        pid = self.process.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def rounds(self) -> int:
        return len(self.records.read_text().splitlines()) if self.records.exists() else 0

    def await_rounds(self, count: int, seconds: float) -> float:
        """Seconds until so many rounds are recorded."""
        start = time.monotonic()
        while self.rounds() < count:
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() - start < seconds, self.output.read_text()
            time.sleep(0.02)
        return time.monotonic() - start

    def finish(self, seconds: float = 120) -> dict[str, object]:
        assert self.process.wait(seconds) == 0, self.output.read_text()
        lines = [line for line in self.output.read_text().splitlines() if line.startswith("{")]
        return json.loads(lines[-1])

    def stop(self) -> None:
        for pid in [*self.workers(), self.process.pid] if self.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The hash that every interrupted run of a method must end with."""
    made: dict[str, object] = {}

    def hash_of(method: str, experiment: Experiment) -> object:
        if method not in made:
            (trial,) = ud.run(experiment, out=tmp_path_factory.mktemp(method)).trials
            assert trial.facts["processes"] == 2
            made[method] = trial.model_sha256
        return made[method]

    return hash_of


def killed_and_recovered(
    folder: Path, method: str, victim: int, after: int, wait: float
) -> tuple[object, Experiment]:
    """Kill one of the workers after so many rounds and some milliseconds.

    Return the final hash and the experiment.
    """
    checkpoints = ["--checkpoint", str(folder / "saved"), "--checkpoint-every", "5"]
    job = Job(folder, method, *checkpoints, "--timeout", "60")
    try:
        job.await_rounds(after, 90)
        time.sleep(wait)
        os.kill(job.workers()[victim], signal.SIGKILL)
        killed = time.monotonic()
        while "going on from round" not in job.output.read_text():
            assert time.monotonic() - killed < 30, job.output.read_text()
            time.sleep(0.05)
        job.await_rounds(min(ROUNDS, after + 10), 30)  # which it had not reached before
        seconds = time.monotonic() - killed
        print(f"rank {victim} killed, back after {seconds:.1f} s")
        assert seconds < 30
        final = job.finish()
    finally:
        job.stop()
    assert "going on from round" in job.output.read_text()
    rounds = [json.loads(line)["round"] for line in job.records.read_text().splitlines()]
    assert rounds == list(range(1, ROUNDS + 1))
    return final["model_sha256"], read_experiment(folder / "out")


def test_a_killed_worker_is_started_again_and_the_run_ends_with_the_same_hash(
    tmp_path, uninterrupted
):
    found, experiment = killed_and_recovered(tmp_path, "marsit", victim=1, after=23, wait=0.013)
    assert found == uninterrupted("marsit", experiment)


TRIALS = [  # ten kills of a worker and ten of rank 0
    (method, victim, random.Random(i).randrange(5, 60), 0.007 * i)
    for victim in (1, 0)
    for i, method in enumerate(["scaffold", "marsit", "netfleet"] * 3 + ["marsit"])
]


@pytest.mark.long
@pytest.mark.parametrize(("method", "victim", "after", "wait"), TRIALS)
def test_ten_kills_of_a_worker_and_ten_of_rank_0_recover(
    tmp_path, uninterrupted, method, victim, after, wait
):
    found, experiment = killed_and_recovered(tmp_path, method, victim, after, wait)
    assert found == uninterrupted(method, experiment)


@pytest.mark.long
@pytest.mark.parametrize("trial", range(10))
def test_a_stopped_worker_is_found_within_the_timeout_named_and_replaced(tmp_path, trial):
    timeout, victim = 6.0, trial % 2
    saving = ["--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "5"]
    options = [*saving, "--rounds", "100000", "--timeout", str(timeout)]
    job = Job(tmp_path, "scaffold", *options)
    try:
        job.await_rounds(5 + trial, 90)
        os.kill(job.workers()[victim], signal.SIGSTOP)
        start = time.monotonic()
        while "has not answered" not in job.output.read_text():
            assert time.monotonic() - start < timeout + 15, job.output.read_text()
            time.sleep(0.1)
        seconds = time.monotonic() - start
        assert seconds < timeout + 5
        reached = job.rounds()
        back = job.await_rounds(reached + 10, 30)
        print(f"noticed after {seconds:.1f} s, back after {back:.1f} s")
    finally:
        job.stop()
    told = " ".join(job.output.read_text().split())
    named = rf"Error: Rank {victim} has not answered for 6 s; .*checkpoint is intact\."
    assert re.search(named, told), told


def test_sigterm_saves_the_same_round_of_all_processes_and_a_resume_goes_on(
    tmp_path, uninterrupted
):
    """Both stop after the same round, although nobody asked for checkpoints."""
    job = Job(tmp_path, "marsit")
    try:
        job.await_rounds(5, 90)
        workers = job.workers()
        found = listeners(job.process.pid, *workers)
        assert found
        assert {address for address in found if not address.startswith("127.")} == set()
        job.process.terminate()
        assert job.process.wait(60) == 143, job.output.read_text()
    finally:
        job.stop()
    told = job.output.read_text()
    assert "Traceback" not in told
    assert f"go on with undrift run --resume {tmp_path / 'out'}" in " ".join(told.split())
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    place = tmp_path / "out" / "checkpoints" / "records"
    saved = [store.saved_rounds(place / f"rank-{rank}-of-2") for rank in range(2)]
    assert saved[0] == saved[1] == [job.rounds()]
    assert job.rounds() < ROUNDS
    before = job.records.read_text()
    (trial,) = ud.run(resume=tmp_path / "out").trials
    assert trial.model_sha256 == uninterrupted("marsit", read_experiment(tmp_path / "out"))
    assert job.records.read_text().startswith(before)
    assert not place.parent.exists()
