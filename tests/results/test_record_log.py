"""A log of records is a list whose memory does not grow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from undrift.results import record_log
from undrift.results.record import Record
from undrift.results.record_log import RecordLog


def record(round: int) -> Record:
    loss = float("nan") if round == 3 else 0.1 * round
    return Record(round, 2, loss, None, 1, 2, 3, 4, 0.1 * round)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 19, 20, 21, 57])
def test_a_log_is_a_list(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_log, "WINDOW", 10)
    log, plain = RecordLog(), [record(round) for round in range(1, count + 1)]
    for each in plain:
        log.append(each)
    assert len(log) == count
    assert bool(log) == bool(plain)
    # NaN differs from itself, so records are compared as text.
    assert list(map(str, log)) == list(map(str, plain))
    for i in (*range(count), *range(-count, 0)):
        assert str(log[i]) == str(plain[i])
    for part in (slice(-3, None), slice(2, 15), slice(None, None, -4), slice(None, -1)):
        assert list(map(str, log[part])) == list(map(str, plain[part]))
    for outside in (count, -count - 1):
        with pytest.raises(IndexError):
            log[outside]
    assert len(log._recent) < 20


def test_a_log_equals_a_list_of_the_same_records() -> None:
    log = RecordLog()
    assert log == []
    log.append(record(1))
    assert log == [record(1)]
    assert log != [record(2)]


def test_the_file_goes_with_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(record_log, "WINDOW", 2)
    monkeypatch.setattr(record_log.tempfile, "tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    log = RecordLog()
    for round in range(1, 40):
        log.append(record(round))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert not list(tmp_path.iterdir()), "it has no name"
    del log
    assert len(os.listdir("/proc/self/fd")) == before
