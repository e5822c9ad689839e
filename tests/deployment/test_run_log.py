"""What is started is printed, and a run leaves a log beside those of what serves it."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.flower import wait_for
from tests.support.hospitals import NAMES, experiment, host
from undrift.deployment.environment import PROGRAMS, VERSION, FlowerEnvironment
from undrift.deployment.folders import CentreFolder
from undrift.deployment.run import run_federation
from undrift.deployment.run_log import RunLog
from undrift.deployment.serve import Registry, start_relay, superlink
from undrift.deployment.supervise import SupervisedProgram, Supervisor
from undrift.errors import DataError, UndriftError
from undrift.federation import InProcess, Site
from undrift.runs.options import RunOptions
from undrift.runs.run_job import Observer

CHECKED = ["FLWR_HOME", "FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK", "HOME", "PATH"]
NOTING = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["HOME"] + "/calls", "a") as calls:
    named = {{name: os.environ.get(name) for name in {CHECKED}}}
    calls.write(json.dumps({{"words": sys.argv, **named}}) + "\\n")
print(json.dumps({{"node-id": 7}}))
"""


@pytest.fixture
def flower(tmp_path: Path) -> FlowerEnvironment:
    """Return an environment whose programs note what they were called with."""
    folder = tmp_path / "flo wer" / "bin"
    folder.mkdir(parents=True)
    for name in PROGRAMS:
        program = folder / name
        program.write_text(NOTING)
        program.chmod(0o755)
    return FlowerEnvironment(tmp_path / "flo wer")


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


def repeat(said: list[str], centre: CentreFolder) -> list[Any]:
    """Run what was printed, as a shell takes it, and return how it was called."""
    (centre.home / "calls").unlink()
    for text in said:
        name, _, command = text.partition(": ")
        if name in ("flwr", "superlink"):
            subprocess.run(["sh", "-c", command], check=True)
    return called(centre)


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
    calls = called(centre)
    verbs = [each["words"][1:3] for each in calls]
    assert verbs == [["supernode", "register"], ["supernode", "unregister"]]
    assert repeat(said, centre) == calls


def test_the_relay_is_started_by_a_command_that_is_printed(
    centre: CentreFolder, flower: FlowerEnvironment, tmp_path: Path
) -> None:
    said: list[str] = []
    start_relay(centre, flower, tmp_path / "app", tmp_path / "a b.sock", said.append)
    calls = called(centre)
    assert [each["words"][1] for each in calls] == ["run"]
    assert repeat(said, centre) == calls


def test_the_superlink_is_started_by_a_command_that_is_printed(
    centre: CentreFolder, flower: FlowerEnvironment
) -> None:
    said: list[str] = []
    with Supervisor(centre.logs, said.append) as supervisor:
        supervisor.start(superlink(centre, flower))
        noted = centre.home / "calls"
        wait_for(lambda: noted.exists() and noted.read_text(), "it does not start")
    calls = called(centre)
    assert calls[0]["FLWR_HOME"] == str(centre.home)
    assert calls[0]["FLWR_TELEMETRY_ENABLED"] == "0"
    assert repeat(said, centre) == calls


def test_an_environment_that_was_moved_is_said(
    centre: CentreFolder, flower: FlowerEnvironment
) -> None:
    """Its programs name the interpreter where it was before."""
    for name in PROGRAMS:
        program = flower.folder / "bin" / name
        program.write_text(f"#!{flower.folder}/gone/python\n")
    said = r"programs that can be started, got No such file or directory for '.*flower-superlink'"
    with (
        pytest.raises(UndriftError, match=said),
        Supervisor(centre.logs, lambda text: None) as supervisor,
    ):
        supervisor.start(superlink(centre, flower))
    with pytest.raises(UndriftError, match="make their environment anew"):
        flower.run("flwr", "run", home=centre.home)


@pytest.mark.parametrize("missing", PROGRAMS)
def test_an_environment_that_is_not_whole_is_refused(missing: str, tmp_path: Path) -> None:
    """As pip leaves it when it is stopped."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python", *PROGRAMS):
        (folder / name).write_text(f"#!/bin/sh\necho {VERSION}\n")
        (folder / name).chmod(0o755)
    assert FlowerEnvironment.find(tmp_path).folder == tmp_path
    (folder / missing).unlink()
    with pytest.raises(UndriftError, match=f"got no {missing} in .*make it anew with `python3 -m"):
        FlowerEnvironment.find(tmp_path)


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
