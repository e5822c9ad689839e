"""Programs are started again, ended together, and given up when there is no hope."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from undrift.config.federation import Federation
from undrift.deployment import serve, supervise, supervised_run
from undrift.deployment.accounts import Account, relay_account
from undrift.deployment.environment import FlowerEnvironment
from undrift.deployment.folders import CentreFolder
from undrift.deployment.supervise import Hopeless, SupervisedProgram, Supervisor
from undrift.deployment.supervised_run import supervise_run
from undrift.errors import UndriftError
from undrift.federation.sockets import listen

PATIENCE = 30.0
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs as others")


def python(name: str, code: str, **options: object) -> SupervisedProgram:
    return SupervisedProgram(name, [sys.executable, "-c", code], **options)  # type: ignore[arg-type]


def test_a_program_that_is_killed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "PAUSE", 0.01)
    said: list[str] = []
    log = tmp_path / "logs" / "one.log"

    def starts() -> list[str]:
        return log.read_text().split() if log.exists() else []

    with Supervisor(tmp_path / "logs", said.append) as supervisor:
        code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
        supervisor.start(python("one", code))
        end = time.monotonic() + PATIENCE
        supervisor.watch(lambda: bool(starts()) or time.monotonic() > end)
        os.kill(int(starts()[0]), signal.SIGKILL)
        supervisor.watch(lambda: len(starts()) == 2 or time.monotonic() > end)
        second = int(starts()[1])
    assert said[0].startswith("one: ")  # the command, for an operator
    assert "one ended with -9; it is started again." in said
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


def test_a_program_without_hope_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "PAUSE", 0.01)
    said: list[str] = []
    hopeless = {"refused": Hopeless("A site needs another key.", 1.0)}
    end = time.monotonic() + PATIENCE
    with Supervisor(tmp_path, said.append) as supervisor:
        supervisor.start(python("one", "print('refused')", hopeless=hopeless))
        with pytest.raises(UndriftError, match="another key"):
            supervisor.watch(lambda: time.monotonic() > end)
    assert said.count("A site needs another key. It is tried for 1 s.") == 1
    assert said[-1] == "one ended with 0; it is started again."


def test_a_program_may_say_itself_why_there_is_no_hope(tmp_path: Path) -> None:
    hopeless = {"error: ": Hopeless()}
    end = time.monotonic() + PATIENCE
    with Supervisor(tmp_path, lambda text: None) as supervisor:
        supervisor.start(python("one", "print('error: No table.')", hopeless=hopeless))
        with pytest.raises(UndriftError, match=r"^No table\. The log is .*one\.log\.$"):
            supervisor.watch(lambda: time.monotonic() > end)


def test_the_gate_opens_when_the_superlink_knows_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = "import time; time.sleep(60)"
    knows: list[bool] = []

    def update(self: serve.Registry) -> None:
        if len(knows) == 2:
            raise ValueError("north.pub needs a public key")
        knows.append(True)
        self.ready = len(knows) > 3

    monkeypatch.setattr(serve, "superlink", lambda *each: python("superlink", sleep))
    monkeypatch.setattr(serve, "gate", lambda *each: python("gate", sleep))
    monkeypatch.setattr(serve.Registry, "update", update)
    said: list[str] = []

    def until() -> bool:
        if len(knows) == 2 and len(said) > 1:
            assert said[1:] == ["north.pub needs a public key"]
            knows.append(True)
        return len(said) == 3

    flower = FlowerEnvironment(tmp_path)
    serve.serve(CentreFolder(tmp_path), flower, Federation(), said.append, until)
    assert [text.partition(":")[0] for text in said] == [
        "superlink",
        "north.pub needs a public key",
        "gate",
    ]


def test_a_program_that_has_given_up_is_ended_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "PAUSE", 0.01)
    said: list[str] = []
    end = time.monotonic() + PATIENCE
    with Supervisor(tmp_path, said.append) as supervisor:
        code = "import time; print('Giving up', flush=True); time.sleep(60)"
        supervisor.start(python("one", code, stuck=("Giving up",)))
        again = "one ended with -9; it is started again."
        supervisor.watch(lambda: again in said or time.monotonic() > end)
    assert again in said


def test_programs_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from undrift.deployment.supervise import SupervisedProgram, Supervisor
with Supervisor(Path({str(tmp_path)!r}), lambda text: None) as supervisor:
    sleep = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    supervisor.start(SupervisedProgram("one", [sys.executable, "-c", sleep]))
    supervisor.watch()
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    log, end = tmp_path / "one.log", time.monotonic() + PATIENCE
    while not (log.exists() and log.read_text().strip()):
        assert time.monotonic() < end
        time.sleep(0.05)
    pid = int(log.read_text())
    process.kill()
    process.wait()
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)


@AS_ROOT
def test_a_table_that_the_relays_user_can_read_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and parent.name.startswith(("pytest-", "popen-")):
            parent.chmod(0o755)
    table = tmp_path / "patients.csv"
    table.write_text("age\n1\n")
    table.chmod(0o644)
    root = Account.of(0)
    with pytest.raises(UndriftError, match="chmod 600"):
        relay_account("nobody", root, table)
    table.chmod(0o600)
    assert relay_account("nobody", root, table).uid != 0
    with pytest.raises(UndriftError, match="needs two users"):
        relay_account("root", root, table)
    with pytest.raises(UndriftError, match="needs a user of this system"):
        relay_account("nobody-of-this-name", root, table)


def test_a_group_may_connect_where_the_site_allows_it(tmp_path: Path) -> None:
    with listen(tmp_path / "a.sock", group=True), listen(tmp_path / "b.sock"):
        assert stat.S_IMODE((tmp_path / "a.sock").stat().st_mode) == 0o660
        assert stat.S_IMODE((tmp_path / "b.sock").stat().st_mode) == 0o600


def test_one_key_of_two_sites_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for name in ("north", "south"):
        (tmp_path / "sites" / f"{name}.pub").write_text("ecdsa-sha2-nistp384 AAAA\n")
    with pytest.raises(UndriftError, match="got the same for north and south"):
        CentreFolder(tmp_path).keys()
    (tmp_path / "sites" / "south.pub").write_text("ssh-rsa AAAA\n")
    with pytest.raises(ValueError, match="a public key as ssh-keygen"):
        CentreFolder(tmp_path).keys()


RUN = """
import os, signal, sys, time
from pathlib import Path
words, folder = sys.argv[1:], Path(sys.argv[1])
with open(folder / "starts", "a") as starts:
    starts.write(" ".join(words[1:]) + "\\n")
plan = (folder / "plan").read_text().split()
step = plan[min(len((folder / "starts").read_text().splitlines()), len(plan)) - 1]
if step != "early":
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out" / "experiment.toml").write_text("")
if step in ("early", "late"):
    os.kill(os.getpid(), signal.SIGKILL)
if step == "waits":
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
sys.exit(int(step))
"""


def supervised(folder: Path, plan: str, first: list[str]) -> tuple[int, list[str], list[str]]:
    """Return the code of a run, the options of its starts, and what was said."""
    (folder / "plan").write_text(plan)
    said: list[str] = []
    command = [sys.executable, "-c", RUN, str(folder)]
    code = supervise_run(command, first, folder / "out", folder / "logs", said.append)
    return code, (folder / "starts").read_text().splitlines(), said


@pytest.mark.parametrize(
    ("plan", "code", "starts"),
    [
        ("0", 0, ["FIRST"]),
        ("1", 1, ["FIRST"]),
        ("late 0", 0, ["FIRST", "RESUME"]),
        ("early late late 3", 3, ["FIRST", "FIRST", "RESUME", "RESUME"]),
    ],
)
@pytest.mark.parametrize("stale", [False, True])
def test_a_run_that_is_killed_goes_on_and_an_error_is_left_to_the_operator(
    plan: str, code: int, starts: list[str], stale: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """A folder with results of an earlier run, which is to be replaced, is not gone on with."""
    monkeypatch.setattr(supervise, "PAUSE", 0.01)
    out = tmp_path / "out"
    if stale:
        out.mkdir()
        (out / "experiment.toml").write_text("")
    first = ["--out", str(out), "--force"]
    named = {"FIRST": " ".join(first), "RESUME": f"--resume {out}"}
    found = supervised(tmp_path, plan, first)
    assert found[:2] == (code, [named[each] for each in starts])
    again = [text for text in found[2] if "it is started again" in text]
    assert len(again) == len(starts) - 1


def test_newcomers_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "PAUSE", 0.01)
    resume = ["--resume", str(tmp_path / "out")]
    found = supervised(tmp_path, "early 0", [*resume, "--newcomer=north"])
    assert found[1] == [" ".join([*resume, "--newcomer=north"]), " ".join(resume)]


def test_a_run_that_is_killed_again_and_again_is_left_to_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "PAUSE", 0.01)
    monkeypatch.setattr(supervise, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(supervised_run, "RESTARTS", 2)
    with pytest.raises(UndriftError, match=r"got killed 3 times; .* go on with `--resume "):
        supervised(tmp_path, "late", ["--out", str(tmp_path / "out")])
    assert len((tmp_path / "starts").read_text().splitlines()) == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_handed_on_to_the_run(number: int, code: int, tmp_path: Path) -> None:
    """Ctrl-C reaches the supervisor alone, since what it starts has a session of its own."""
    (tmp_path / "plan").write_text("waits")
    program = f"""
import sys
from pathlib import Path
from undrift.deployment.supervised_run import supervise_run
folder = Path({str(tmp_path)!r})
words = [sys.executable, "-c", {RUN!r}, str(folder)]
sys.exit(supervise_run(words, ["--out", "x"], folder / "out", folder / "logs", print))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.DEVNULL,
        # A shell starts what runs in its background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = time.monotonic() + PATIENCE
    while not (tmp_path / "out" / "experiment.toml").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(PATIENCE) == code
