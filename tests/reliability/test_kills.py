"""Runs that are killed at any moment, also inside of saves, go on as if nobody had killed them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import undrift as ud
from tests.support.system import ROOT
from undrift.runs.folder import read_experiment

ROUNDS = 120
SETTINGS = ["--clients", "6", "--rounds", str(ROUNDS), "--evaluate-every", "40"]
COMMANDS = {  # with the options of each method
    "fedspeed": ["--work", "steps:5", "--lr", "0.05"],
    "scaffold": ["--work", "uniform:1:8", "--lr", "0.05"],
    "netfleet": ["--topology", "ring", "--work", "steps:5", "--lr", "0.02"],
}
POINTS = [
    pytest.param(method, processes, random.Random(seed), id=f"{method}-{processes}-{seed}")
    for processes in (1, 2)
    for seed, method in enumerate([*COMMANDS] * 3 + ["scaffold"])
]


@pytest.mark.parametrize(
    "points", [20, pytest.param(200, marks=pytest.mark.long)], ids=lambda n: f"{n} points"
)
def test_every_kill_is_survived(points: int) -> None:
    """`tests/jobs/kills.py` has the moments; the copies of one process spare the start of torch."""
    command = [sys.executable, "-m", "tests.jobs.kills", str(points), "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == points, done.stderr
    assert [each for each in outcomes if not each["survived"]] == [], done.stderr
    assert sum(each["torn"] for each in outcomes) >= points // 8, "lines of records were cut"
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str | None]:
    """Return a function that gives the hash of a folder's experiment if nobody kills it."""
    made: dict[str, str | None] = {}

    def hash_of(folder: Path) -> str | None:
        experiment = read_experiment(folder)
        key = experiment.to_toml()
        if key not in made:
            (trial,) = ud.run(experiment, out=tmp_path_factory.mktemp("whole")).trials
            made[key] = trial.model_sha256
        return made[key]

    return hash_of


def kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a command and the processes that it has started."""
    pids = [process.pid]
    with suppress(OSError):  # where it has ended by itself
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        pids += map(int, children.split())
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.mark.long
@pytest.mark.parametrize(("method", "processes", "rng"), POINTS)
def test_a_command_that_is_killed_goes_on(
    method: str,
    processes: int,
    rng: random.Random,
    tmp_path: Path,
    whole: Callable[[Path], str | None],
) -> None:
    """All of its processes are killed a while after a record, both drawn by chance."""
    folder = tmp_path / "out"
    records = folder / "records.jsonl"
    command = [sys.executable, "-m", "undrift", "run"]
    begin = [*command, method, *COMMANDS[method], *SETTINGS, "--processes", str(processes)]
    begin += ["--out", str(folder), "--quiet", "--checkpoint-every", "3"]
    after, wait = rng.randrange(1, ROUNDS // 2), rng.uniform(0, 0.02)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            begin, env=environment, text=True, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        while not records.exists() or records.read_text().count("\n") < after:
            assert process.poll() is None, (tmp_path / "output").read_text()
            time.sleep(0.001)
        time.sleep(wait)
    finally:
        kill_all(process)
    assert process.returncode == -signal.SIGKILL
    before = records.read_text().split("\n")[:-1]
    assert after <= len(before) < ROUNDS
    again = [*command, "--resume", str(folder), "--quiet", "--json"]
    done = subprocess.run(again, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (told,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert told["model_sha256"] == whole(folder)
    lines = records.read_text().splitlines()
    assert lines[: len(before)] == before
    assert [json.loads(line)["round"] for line in lines] == list(range(1, ROUNDS + 1))
