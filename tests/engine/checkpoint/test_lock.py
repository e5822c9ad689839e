"""A folder has one writer: a second is told who it is, and a killed one is no hindrance."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from undrift.engine.checkpoint.lock import LOCK, FolderLock
from undrift.errors import UndriftError

# It needs no torch, so it starts at once.
HOLDER = """
import sys, time
from pathlib import Path
from undrift.engine.checkpoint.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Return another process that has the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_the_owner_and_a_killed_one_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    with holder(folder) as process:
        owner = f"which process {process.pid} on {socket.gethostname()} since 20.* is writing to"
        with pytest.raises(UndriftError, match=rf"^A run needs .*x', {owner}; wait for its end, "):
            FolderLock(folder)
        assert json.loads((folder / LOCK).read_text())["process"] == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (folder / LOCK).exists(), "a kill leaves the file"
        with closing(FolderLock(folder)):
            assert json.loads((folder / LOCK).read_text())["process"] == os.getpid()
    assert list(folder.iterdir()) == []


def test_the_lock_of_another_machine_is_refused_with_the_remedy(tmp_path: Path) -> None:
    owner = {"host": "elsewhere", "process": 7, "started": "2026-01-01T00:00:00+00:00"}
    (tmp_path / LOCK).write_text(json.dumps(owner))
    with pytest.raises(UndriftError, match=r"process 7 on elsewhere .*; remove .*undrift\.lock if"):
        FolderLock(tmp_path)
    assert json.loads((tmp_path / LOCK).read_text()) == owner
    with closing(FolderLock(tmp_path, again=True)):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_process_does_not_lock_itself_out(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    second.close()
    second.close()
    assert (tmp_path / LOCK).exists(), "the first still has it"
    first.close()
    assert not (tmp_path / LOCK).exists()


def test_a_torn_or_hostile_file_does_not_hide_that_the_folder_is_in_use(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        for text in ('{"ho', "[" * 100_000, "7", "[[[], 1]]"):
            (tmp_path / LOCK).write_text(text)
            with pytest.raises(UndriftError, match="which another process is writing to"):
                FolderLock(tmp_path)
        process.kill()
