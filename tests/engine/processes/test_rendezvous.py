"""Processes that do not come, or die while they are being met: named, and nobody waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.support.forks import free_port


def rank(number: int, size: int, port: int, program: list[str]) -> subprocess.Popen[str]:
    """One process with the environment that torchrun would give it."""
    world = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(size)}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *program],
        env={**os.environ, **world},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def undrift_program(folder: Path, number: int, timeout: int) -> list[str]:
    given = f"-m undrift run fedavg --clients 4 --rounds 2 --quiet --timeout {timeout}"
    return [*given.split(), "--out", str(folder / f"out-{number}")]


def ended(process: subprocess.Popen[str]) -> tuple[int, str, float]:
    start = time.monotonic()
    output, _ = process.communicate(timeout=240)
    return process.returncode, " ".join(output.split()), time.monotonic() - start


DIES = """
import os
from datetime import timedelta
from torch.distributed import TCPStore, PrefixStore
store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, False, timedelta(seconds=30))
store = PrefixStore("undrift", store)
store.set(store.get("call").decode() + "/here/1", "here 1 1")
os._exit(9)
"""


@pytest.mark.long  # A start has two minutes, whatever the timeout.
@pytest.mark.parametrize(
    ("comes", "said"),
    [
        pytest.param(
            [0],
            "Error: A run of 2 processes needs all of them, got nothing from rank 1 within",
        ),
        pytest.param([1], "Error: Rank 1 needs to reach rank 0 at 127.0.0.1:"),
        ([0, "dies"], "Error: Rank 0 needs to connect to all others, got no connection to rank 1"),
    ],
    ids=["rank 1 never comes", "rank 0 never comes", "rank 1 dies while it is met"],
)
def test_who_is_missing_is_named(tmp_path, comes, said):
    port = free_port()
    processes = [
        rank(1, 2, port, ["-c", textwrap.dedent(DIES)])
        if each == "dies"
        else rank(each, 2, port, undrift_program(tmp_path, each, 5))
        for each in comes
    ]
    code, told, seconds = ended(processes[0])
    for other in processes[1:]:
        ended(other)
    assert code == 1
    assert said in told
    assert "Traceback" not in told
    assert seconds < 200


@pytest.mark.long
def test_processes_started_by_hand_make_a_run(tmp_path):
    port = free_port()
    both = [rank(each, 2, port, undrift_program(tmp_path, each, 60)) for each in (0, 1)]
    codes, outputs, _ = zip(*map(ended, both), strict=True)
    assert codes == (0, 0), outputs
    assert "2 processes" in outputs[0]
    assert outputs[1] == ""  # rank 0 speaks and writes for all
    assert (tmp_path / "out-0" / "records.jsonl").exists()
    assert not (tmp_path / "out-1").exists()


COMPILER = """
import gc, sys, weakref
import torch.distributed as dist
from undrift.engine.processes.rendezvous import meet

world = meet(dist.HashStore(), 0, 1, 30)
assert "torch._dynamo" not in sys.modules, "starting has waited for torch's compiler"
import torch._dynamo
group = weakref.ref(dist.group.WORLD)
world.close()
gc.collect()
assert group() is None, "torch's compiler holds the group"
"""


def test_torchs_compiler_is_not_imported_before_it_is_used_and_never_holds_the_group():
    done = subprocess.run([sys.executable, "-c", COMPILER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
