"""The launcher's small parts: arguments it passes on, and exit codes it hears of."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore

from undrift.engine.processes import elastic, group
from undrift.errors import WorkerError


def test_without_option_drops_an_option_and_its_value() -> None:
    given = ["run", "fedavg", "--processes", "2", "--lr", "0.1", "--processes=3", "--quiet"]
    assert elastic.without_option(given, "--processes") == [
        "run", "fedavg", "--lr", "0.1", "--quiet",
    ]  # fmt: skip


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Leave as a worker of an attempt would; the exit code that its process has."""

    def leave(rank: int, attempt: int, code: int, error: BaseException | None = None) -> int:
        monkeypatch.setenv("UNDRIFT_RESULT", str(tmp_path))
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "29500")
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        with pytest.raises(SystemExit) as end:
            elastic.leave(code, error)
        return int(end.value.code or 0)

    return leave


def test_an_error_that_would_come_again_is_reported_and_not_retried(worker, tmp_path) -> None:
    assert worker(1, 0, 2, ValueError("lr")) == 0  # so that nobody is started again
    assert elastic._reported(tmp_path) == 2


def test_a_retried_attempt_that_succeeds_decides_the_exit_code(worker, tmp_path) -> None:
    assert worker(0, 0, 1, WorkerError("Rank 1 was lost", ranks=[1])) == 1  # is started again
    assert elastic._reported(tmp_path) is None
    assert worker(1, 1, 0) == 0
    assert worker(0, 1, 0) == 0
    assert elastic._reported(tmp_path) == 0


def test_a_retried_attempt_that_fails_decides_the_exit_code(worker, tmp_path) -> None:
    worker(0, 0, 1, WorkerError("Rank 1 was lost", ranks=[1]))
    assert worker(1, 1, 2, ValueError("lr")) == 0
    assert worker(0, 1, 0) == 0, "rank 0 does not overwrite what another reported"
    assert elastic._reported(tmp_path) == 2


def test_whoever_speaks_a_little_later_is_not_taken_for_lost(monkeypatch) -> None:
    store = HashStore()
    monkeypatch.setattr(group, "GRACE", 1.0)
    late = threading.Timer(0.3, lambda: store.set("alive/2", "1"))
    late.start()
    notes, silent = group.ask_around(store, 0, 3)
    late.join()
    assert (notes, silent) == ({}, [1])


def test_a_note_ends_the_wait_at_once() -> None:
    store = HashStore()
    store.set("failed/2", "no more coffee")
    start = time.monotonic()
    assert group.ask_around(store, 0, 3) == ({2: "no more coffee"}, [])
    assert time.monotonic() - start < group.GRACE
