"""Sites and centre as real processes over Unix sockets: killed, cut off, slow, and refused."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import undrift as ud
from tests.support.bad_replies import BAD
from tests.support.federation import NAMES, experiment, own
from tests.support.system import ROOT
from undrift.errors import UndriftError
from undrift.federation import Centre, Site, SiteServer, SocketTransport
from undrift.federation.frames import FrameError, receive_frame, send_frame
from undrift.federation.messages import Refusal, decode

PATIENCE = 120.0  # seconds for a process to start on a busy machine
SITES = 2


class Federation:
    """Starts, kills and watches the processes of a federation in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.lines: list[str] = []

    def start(self, name: str, *arguments: object) -> subprocess.Popen[str]:
        if name in self.processes:
            self.kill(name)
        command = [sys.executable, "-m", "tests.jobs.federation", *map(str, arguments)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.processes[name] = process
        return process

    def site(self, i: int, *death: object) -> None:
        process = self.start(f"site{i}", "site", self.folder, i, *death)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def centre(
        self, *death: object, deadline: float = PATIENCE, quorum: float = 0.5
    ) -> Iterator[str]:
        """Start a centre and return what it prints, line by line."""
        process = self.start("centre", "centre", self.folder, deadline, quorum, *death)
        assert process.stdout is not None
        return (self.noted(line.strip()) for line in process.stdout)

    def noted(self, line: str) -> str:
        self.lines.append(line)
        return line

    def ended(self, name: str) -> int:
        """Return what a process has ended with."""
        return self.processes[name].wait(PATIENCE)

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.kill()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for name in self.processes:
            self.kill(name)
        self.processes.clear()


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    started = Federation(tmp_path)
    yield started
    started.close()


@cache
def expected(without: int | None = None) -> str:
    """Return the hash of the simulation, in one round without site 1."""
    pool = ud.Clients([own(i)[0] for i in range(SITES)], prepare=own(0).prepare)
    described = experiment(ud.Scaffold(lr=0.1))
    run = ud.simulate(
        described.algorithm,
        described.model,
        pool,
        mode="loop",
        kernels=False,
        loss=described.loss,
        work=ud.Steps(3),
        batch_size=20,
        rounds=6,
        seed=3,
        participation=[[0] if t == without else [0, 1] for t in range(6)],
    )
    list(run)
    return run.model_sha256


def test_all_processes_killed_at_once_end_with_the_same_hash(federation: Federation) -> None:
    for i in range(SITES):
        federation.site(i)
    assert "round 3 clients 2" in federation.centre()  # which reads no further
    federation.close()
    for i in range(SITES):
        federation.site(i)
    assert list(federation.centre())[-1] == f"sha256 {expected()}"


@pytest.mark.long
@pytest.mark.parametrize("round", [1, 3, 5])
def test_a_site_that_is_killed_and_started_again_ends_with_the_same_hash(
    federation: Federation, round: int
) -> None:
    for i in range(SITES):
        federation.site(i)
    for line in federation.centre():
        if line == f"round {round} clients 2":
            federation.kill("site1")
            federation.site(1)
    assert federation.lines[-1] == f"sha256 {expected()}"


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "inside", "after"])
def test_a_site_killed_at_its_write_ends_with_the_same_hash(
    federation: Federation, moment: str
) -> None:
    federation.site(0)
    federation.site(1, moment, 3)
    lines = federation.centre()
    assert federation.ended("site1") == -signal.SIGKILL
    federation.site(1)
    assert list(lines)[-1] == f"sha256 {expected()}"
    assert "round 3 clients 2" in federation.lines


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "inside", "after"])
def test_a_centre_killed_at_its_checkpoint_ends_with_the_same_hash(
    federation: Federation, moment: str
) -> None:
    for i in range(SITES):
        federation.site(i)
    assert list(federation.centre(moment, 3)) == ["round 1 clients 2", "round 2 clients 2"]
    assert federation.ended("centre") == -signal.SIGKILL
    lines = list(federation.centre())
    assert lines[0] == f"round {4 if moment == 'after' else 3} clients 2"
    assert lines[-1] == f"sha256 {expected()}"


@pytest.mark.parametrize(
    ("quorum", "counted"), [(0.5, 1), pytest.param(0.75, 0, marks=pytest.mark.long)]
)
def test_half_of_the_sites_gone_is_a_round_above_the_quorum_alone(
    federation: Federation, quorum: float, counted: int
) -> None:
    federation.site(0)
    federation.site(1, "before", 3)
    lines = federation.centre(deadline=10.0, quorum=quorum)
    assert [next(lines) for _ in range(3)] == [
        "round 1 clients 2",
        "round 2 clients 2",
        f"round 3 clients {counted}",
    ]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("nan", "NaN"),
        *(
            pytest.param(what, BAD[what][1], marks=pytest.mark.long)
            for what in ("shape", "dtype", "old round", "garbage", "cut")
        ),
    ],
)
def test_a_site_that_sends_something_bad_is_left_out_by_name(
    federation: Federation, what: str, reason: str
) -> None:
    federation.site(0)
    federation.site(1, "bad", what)
    lines = list(federation.centre())
    left_out = [line for line in lines if line.startswith("without")]
    assert len(left_out) == 1
    assert left_out[0].startswith(f"without {NAMES[1]}: ")
    assert reason in left_out[0]
    assert lines.index(left_out[0]) == lines.index("round 2 clients 1") + 1
    assert lines[-1] == f"sha256 {expected(without=1)}"


@pytest.mark.long
def test_a_second_reply_of_a_process_is_named_and_not_counted(federation: Federation) -> None:
    for i in range(SITES):
        federation.site(i)
    lines = list(federation.centre("twice", NAMES[1]))
    named = f"without {NAMES[1]}: a second reply, which does not count"
    rounds = [[f"round {t} clients {SITES}", named] for t in range(1, 7)]
    assert lines == [*(line for pair in rounds for line in pair), f"sha256 {expected()}"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "reason"),
    [("experiment", "its operator has accepted"), ("version", "needs the version of undrift")],
)
def test_another_experiment_or_version_is_refused(
    federation: Federation, what: str, reason: str
) -> None:
    federation.site(0)
    federation.site(1, "bad", what)
    (line,) = federation.centre()
    assert reason in line
    assert NAMES[1] in line


def test_a_site_that_is_too_slow_is_left_out(tmp_path: Path) -> None:
    described = experiment(ud.FedAvg(lr=0.1), rounds=1)
    site = Site(described, own(0), tmp_path / "state", name=NAMES[0])
    server = SiteServer(site, tmp_path / "sockets" / f"{NAMES[0]}.sock")
    stop = threading.Event()
    slow = threading.Event()
    answer = site.answer

    def answer_slowly(message: object) -> object:
        if slow.is_set():
            time.sleep(1.0)
        return answer(message)  # type: ignore[arg-type]

    site.answer = answer_slowly  # type: ignore[method-assign, assignment]
    thread = threading.Thread(target=server.serve, args=(stop.is_set,))
    thread.start()
    try:
        transport = SocketTransport(tmp_path / "sockets", deadline=PATIENCE)
        centre = Centre(described, transport)
        before = centre.x.clone()
        slow.set()
        transport._deadline = 0.3
        record = next(centre)
        assert record.clients == 0
        assert centre.left_out == {NAMES[0]: "no reply"}
        assert torch.equal(centre.x, before)
    finally:
        stop.set()
        thread.join()


def test_a_question_may_have_less_time_than_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "a.sock").touch()  # Nobody listens, so that the site is waited for.
    transport = SocketTransport(tmp_path, deadline=PATIENCE)
    begin = time.monotonic()
    assert list(transport.ask({"a": b""}, seconds=0.3)) == []
    assert time.monotonic() - begin < PATIENCE / 10


def test_the_socket_is_its_owners_alone(tmp_path: Path) -> None:
    described = experiment(ud.FedAvg(lr=0.1))
    site = Site(described, own(0), tmp_path / "state", name=NAMES[0])
    server = SiteServer(site, tmp_path / "sockets" / "a.sock")
    try:
        assert stat.S_IMODE((tmp_path / "sockets" / "a.sock").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "sockets").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        with pytest.raises(UndriftError, match="on which another process answers"):
            SiteServer(site, tmp_path / "sockets" / "a.sock")
    finally:
        server.close()


def test_a_site_answers_garbage_with_a_refusal(tmp_path: Path) -> None:
    described = experiment(ud.FedAvg(lr=0.1))
    site = Site(described, own(0), tmp_path / "state", name=NAMES[0])
    server = SiteServer(site, tmp_path / "a.sock")
    stop = threading.Event()
    thread = threading.Thread(target=server.serve, args=(stop.is_set,))
    thread.start()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "a.sock"))
            send_frame(connection, b"no message")
            assert isinstance(decode(receive_frame(connection)).header, Refusal)
        with socket.socket(socket.AF_UNIX) as connection:  # a length that nobody will send
            connection.connect(str(tmp_path / "a.sock"))
            connection.sendall((2**60).to_bytes(8, "little"))
            assert connection.recv(1) == b""
    finally:
        stop.set()
        thread.join()


def test_a_frame_is_read_whole_or_not_at_all() -> None:
    left, right = socket.socketpair()
    with left, right:
        send_frame(left, b"abc")
        assert receive_frame(right) == b"abc"
        left.sendall((10).to_bytes(8, "little") + b"short")
        left.close()
        with pytest.raises(FrameError, match="got the end of the connection"):
            receive_frame(right)
