"""Atomic writes: full disks, kills, several writers, and what is flushed to disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.system import files_up_to, names_in
from undrift import files


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the path of everything that is flushed to disk, in order."""
    paths: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        paths.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        real(handle)

    monkeypatch.setattr(files.os, "fsync", fsync)
    return paths


@pytest.mark.parametrize("content", ["text \u00fc\n", b"\0\xff"], ids=["text", "bytes"])
def test_a_file_is_replaced(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    files.write_atomic(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert names_in(tmp_path) == ["a.json"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_atomic(path, "old")
    with files_up_to(10), pytest.raises(OSError, match="File too large"):
        files.write_atomic(path, "new" * 100)
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["a.json"]


def test_a_full_disk_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "round"
    with files.atomic_folder(path) as part:
        (part / "state").write_text("old")
    with (
        files_up_to(10),
        pytest.raises(OSError, match="File too large"),
        files.atomic_folder(path) as part,
    ):
        (part / "state").write_text("new" * 100)
    assert (path / "state").read_text() == "old"
    assert names_in(tmp_path) == ["round"]


KILLED = """
import os, signal, sys
from pathlib import Path
from undrift import files

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

Path.replace = Path.rename = die
target = Path(sys.argv[2])
if sys.argv[1] == "file":
    files.write_atomic(target, "new")
else:
    with files.atomic_folder(target) as part:
        (part / "state").write_text("new")
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_kill_before_the_rename_leaves_a_part_that_is_removed_when_stale(
    tmp_path: Path, kind: str
) -> None:
    target = tmp_path / "target"
    if kind == "file":
        target.write_text("old")
    command = [sys.executable, "-c", KILLED, kind, str(target)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert target.exists() == (kind == "file")
    assert kind == "folder" or target.read_text() == "old"
    (left,) = (path for path in tmp_path.iterdir() if path != target)
    assert files.target_name(left) == "target"
    files.write_atomic(tmp_path / "other", "fresh parts may belong to a running process")
    assert left.exists()
    os.utime(left, (0, 0))
    files.write_atomic(tmp_path / "other", "stale parts belong to nobody")
    assert names_in(tmp_path) == ["other", "target"][: 2 if kind == "file" else 1]


def test_a_folder_with_one_writer_removes_every_part(tmp_path: Path) -> None:
    left = files.part_of(tmp_path / "round-1")
    left.mkdir()
    (left / "state").write_text("half")
    with files.atomic_folder(tmp_path / "round-2", stale=0) as part:
        assert part.is_dir()
    assert names_in(tmp_path) == ["round-2"]


def test_only_parts_are_removed(tmp_path: Path) -> None:
    others = [".hidden", "a.part", ".a.part", ".a.1-xyz.part", "a.1-0123abcd.part"]
    for name in others:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
        assert files.target_name(tmp_path / name) is None
    files.remove_stale_parts(tmp_path)
    assert names_in(tmp_path) == sorted(others)


def test_several_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    contents = [str(number) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: files.write_atomic(path, content), contents))
    assert path.read_text() in contents
    assert names_in(tmp_path) == ["a.json"]


def test_a_file_is_flushed_before_its_rename_and_its_folder_after_it(
    tmp_path: Path, synced: list[str]
) -> None:
    files.write_atomic(tmp_path / "a.json", "text")
    part, folder = synced
    assert files.target_name(Path(part)) == "a.json"
    assert folder == tmp_path.name


def test_a_folder_is_flushed_with_its_files(tmp_path: Path, synced: list[str]) -> None:
    with files.atomic_folder(tmp_path / "round") as part:
        (part / "state").write_text("text")
        (part / "manifest").write_text("text")
    assert sorted(synced[:2]) == ["manifest", "state"]
    assert files.target_name(Path(synced[2])) == "round"
    assert synced[3:] == [tmp_path.name]


def test_a_system_that_cannot_flush_folders_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{handle}")).is_dir():
            raise OSError(22, os.strerror(22))
        real(handle)

    monkeypatch.setattr(files.os, "fsync", fsync)
    files.write_atomic(tmp_path / "a.json", "text")
    assert (tmp_path / "a.json").read_text() == "text"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interruption_leaves_no_part(tmp_path: Path, stop: type[BaseException]) -> None:
    def interrupted() -> None:
        with files.atomic_file(tmp_path / "a") as part:
            part.write_text("half")
            raise stop

    with pytest.raises(stop):
        interrupted()
    assert names_in(tmp_path) == []


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path))
    assert files.user_cache() == tmp_path
    monkeypatch.delenv("UNDRIFT_CACHE")
    assert files.user_cache().name == "undrift"
