"""What is started is printed, and a run leaves a log beside those of what serves it."""

from __future__ import annotations

import json
import shlex
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hospitals import NAMES, experiment, host
from undrift.deployment.environment import FlowerEnvironment
from undrift.deployment.folders import CentreFolder
from undrift.deployment.run import run_federation
from undrift.deployment.run_log import RunLog
from undrift.deployment.serve import Registry, start_relay
from undrift.deployment.supervise import SupervisedProgram, Supervisor
from undrift.errors import DataError, UndriftError
from undrift.federation import InProcess, Site
from undrift.runs.options import RunOptions
from undrift.runs.run_job import Observer


@pytest.fixture
def flower(tmp_path: Path) -> FlowerEnvironment:
    """Return an environment whose `flwr` notes what it was called with."""
    program = tmp_path / "flower" / "bin" / "flwr"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        "with open(os.environ['HOME'] + '/calls', 'a') as calls:\n"
        "    calls.write(json.dumps([os.environ['FLWR_HOME'], *sys.argv]) + '\\n')\n"
        "print(json.dumps({'node-id': 7}))\n"
    )
    program.chmod(0o755)
    return FlowerEnvironment(tmp_path / "flower")


@pytest.fixture
def centre(tmp_path: Path) -> CentreFolder:
    folder = CentreFolder(tmp_path / "centre")
    (folder.path / "sites").mkdir(parents=True)
    (folder.path / "sites" / "north.pub").write_text("ecdsa-sha2-nistp384 AAAA\n")
    folder.superlink(new=True)
    return folder


class Heard(Observer):
    """Keeps the rounds that an observer hears of."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def add(self, job: Any, record: Any) -> None:
        self.rounds.append(record.round)


class Named:
    """Gives a site of a deployment the name by which a transport in this process knows it."""

    def __init__(self, name: str, site: Any) -> None:
        self.name, self.answer = name, site.answer


def fail(logs: Path) -> None:
    with RunLog(logs, Heard(), quiet=True) as log:
        log.say("Waiting.")
        raise UndriftError("Site north needs its state.")


def called(centre: CentreFolder) -> list[Any]:
    return [json.loads(each) for each in (centre.home / "calls").read_text().splitlines()]


def repeated(said: list[str]) -> list[list[str]]:
    """Return the words of the commands that were printed, with the variable in front of them."""
    words = [shlex.split(text.partition("flwr: ")[2]) for text in said if text.startswith("flwr: ")]
    return [[each[0].partition("FLWR_HOME=")[2], *each[1:]] for each in words]


def test_keys_are_accepted_and_revoked_by_commands_that_are_printed(
    centre: CentreFolder, flower: FlowerEnvironment
) -> None:
    said: list[str] = []
    host, _, port = centre.superlink().rpartition(":")
    with socket.create_server((host, int(port))):
        registry = Registry(centre, flower, said.append)
        registry.update()
        (centre.path / "sites" / "north.pub").unlink()
        registry.update()
    verbs = [each[2:4] for each in called(centre)]
    assert verbs == [["supernode", "register"], ["supernode", "unregister"]]
    assert repeated(said) == called(centre)


def test_the_relay_is_started_by_a_command_that_is_printed(
    centre: CentreFolder, flower: FlowerEnvironment, tmp_path: Path
) -> None:
    said: list[str] = []
    start_relay(centre, flower, tmp_path / "app", tmp_path / "a b.sock", said.append)
    assert [each[2] for each in called(centre)] == ["run"]
    assert repeated(said) == called(centre)


def test_a_run_writes_what_happens_into_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = experiment(tmp_path)
    sites = InProcess(Named(name, host(described, tmp_path / "s", name)) for name in NAMES)
    shown = Heard()
    with RunLog(tmp_path / "logs", shown) as log:
        log.say("Waiting for the SuperLink.")
        run_federation(described, "x", sites, RunOptions(out=tmp_path / "out", observer=log))
    text = (tmp_path / "logs" / "run.log").read_text()
    lines = [line.split(" ", 2)[2] for line in text.splitlines()]
    assert lines[:2] == ["Waiting for the SuperLink.", "1 trials, 3 rounds"]
    assert sum("round    2" in line for line in lines) == 1
    assert lines[-1].endswith("finished after round 3")
    assert shown.rounds == [1, 2, 3], "the observer behind it hears the same"
    assert "Waiting for the SuperLink." in capsys.readouterr().err
    with pytest.raises(UndriftError):
        fail(tmp_path / "logs")
    assert capsys.readouterr().err == ""
    after = (tmp_path / "logs" / "run.log").read_text()
    assert after.startswith(text), "a resumed run goes on with the log"
    assert after.endswith(" error: Site north needs its state.\n")


def test_logs_are_their_owners_alone(tmp_path: Path) -> None:
    """What Flower runs at a site runs as another user, and an error in the log may quote a cell."""
    log = tmp_path / "logs" / "site.log"
    log.parent.mkdir()
    log.touch(mode=0o644)
    with Supervisor(tmp_path / "logs", lambda text: None) as supervisor:
        supervisor.start(SupervisedProgram("site", [sys.executable, "-c", ""]))
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_an_error_of_a_sites_data_is_in_its_log_and_in_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = "Row 1 of column 'hiv' needs a number, got 'no'; correct it."

    def fail(*arguments: Any) -> None:
        raise DataError(cell)

    monkeypatch.setattr(Site, "_run", fail)
    described, logged = experiment(tmp_path), list[str]()
    sites = {name: host(described, tmp_path / "s", name) for name in NAMES}
    sites["north"]._say = logged.append
    sites["north"]._site.cache_clear()  # The site was made with the other log.
    transport = InProcess(Named(name, each) for name, each in sites.items())
    result = run_federation(described, "x", transport, RunOptions(out=tmp_path / "out"))
    written = "".join(
        path.read_text(errors="replace") for path in (tmp_path / "out").rglob("*") if path.is_file()
    )
    assert sorted(result.trials[0].records[0].dropped or {}) == NAMES
    assert "hiv" not in written
    assert any("hiv" in line for line in logged)
