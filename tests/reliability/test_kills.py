"""Runs that are killed at any moment, also inside of saves, go on as if nobody had killed them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.system import ROOT


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
    assert done.returncode == 0, done.stderr
