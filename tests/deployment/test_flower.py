"""Federations of Flower's own processes: equal to the simulation, refused, killed and cut off.

Every test starts SuperLink, gate, SuperNodes, sites and a run as an operator does. They are few,
since a message takes 5 to 10 s.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import BadStatusLine, HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest

import undrift as ud
from tests.support.flower import (
    PATIENCE,
    Deployment,
    descendants,
    line,
    listening,
    wait_for,
)
from tests.support.hospitals import NAMES, pooled
from undrift.config.experiment import Experiment
from undrift.deployment.accounts import Account
from undrift.deployment.folders import free_port
from undrift.deployment.init import make
from undrift.deployment.plan import federated_jobs, resolved
from undrift.deployment.serve import write_app

pytestmark = pytest.mark.flower
LONG = 1800.0  # seconds of a whole run on a busy machine


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    started = Deployment(tmp_path)
    yield started
    started.close()


def expected(deployment: Deployment) -> str:
    """Return the hash of the simulation of the same tables."""
    described = resolved(Experiment.read(deployment.place / "centre" / "experiment.toml"))
    tables = deployment.folder / "tables"
    tables.mkdir(exist_ok=True)
    for name in NAMES:
        shutil.copy(deployment.place / name / "patients.csv", tables / f"{name}.csv")
    (planned,) = federated_jobs(described)
    run = ud.simulate(
        planned.experiment.algorithm,
        planned.experiment.model,
        pooled(described, tables),
        mode="loop",
        kernels=False,
        loss=planned.experiment.loss,
        work=planned.experiment.work,
        batch_size=20,
        rounds=planned.experiment.rounds,
        seed=0,
    )
    list(run)
    return run.model_sha256


def found(deployment: Deployment) -> str:
    """Return the hash that the run has recorded."""
    return str(json.loads((deployment.folder / "out" / "records.json").read_text())["model_sha256"])


def finish(deployment: Deployment, *options: object) -> None:
    """Run to the end."""
    process = deployment.run(*options or ("--out", deployment.folder / "out"))
    code = process.wait(LONG)
    assert code == 0, deployment.text("run")[-2000:]


def test_a_deployment_has_the_bits_of_the_simulation_and_keeps_others_out(
    deployment: Deployment,
) -> None:
    """One deployment answers several questions, because starting it takes half a minute."""
    deployment.up()
    finish(deployment)
    assert found(deployment) == expected(deployment)
    _every_request_was_worked_on_once(deployment)
    _only_the_loopback_has_the_control_interface(deployment)
    _gate_passes_nodes_alone(deployment)
    _two_nodes_with_one_key_are_refused(deployment)
    if not deployment.separate:
        pytest.skip("What Flower runs needs another user: root, and an interpreter for all users.")
    _relays_run_as_another_user(deployment)
    _a_hostile_app_cannot_open_the_table(deployment)


def _every_request_was_worked_on_once(deployment: Deployment) -> None:
    """Flower starts a second ClientApp for a message whose first one starts too slowly."""
    for name in NAMES:
        said = (deployment.place / name / "logs" / "site.log").read_text().splitlines()
        asked = [text.partition(": ")[0] for text in said if text.startswith("exchange ")]
        assert asked == [f"exchange t={t} stage=upload attempt=0" for t in range(3)]


def _only_the_loopback_has_the_control_interface(deployment: Deployment) -> None:
    programs = descendants(deployment.processes["serve"].pid)
    superlink = [pid for pid in programs if "gate.py" not in line(pid)]
    assert listening(superlink) == {"127.0.0.1"}
    assert len(listening([pid for pid in programs if "gate.py" in line(pid)])) == 1


def _gate_passes_nodes_alone(deployment: Deployment) -> None:
    experiment = Experiment.read(deployment.place / "centre" / "experiment.toml")
    place = experiment.federation.host, experiment.federation.port
    authority = deployment.place / "north" / "ca.crt"
    trusted = ssl.create_default_context(cafile=str(authority))
    for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/", "/v1/fleet/../control"):
        with closing(HTTPSConnection(*place, context=trusted, timeout=PATIENCE)) as connection:
            connection.request("POST", path)
            assert connection.getresponse().status == 403
    with (
        closing(HTTPSConnection(*place, timeout=PATIENCE)) as connection,
        pytest.raises(ssl.SSLCertVerificationError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        connection.request("POST", "/")
    with closing(HTTPConnection(*place, timeout=PATIENCE)) as connection:  # no TLS
        connection.request("POST", "/v1/fleet/pull-messages")
        with pytest.raises((BadStatusLine, ConnectionError)):
            connection.getresponse()


def _relays_run_as_another_user(deployment: Deployment) -> None:
    nobody = Account.named("nobody").uid
    owners = {
        line(pid).split("/")[-1].split()[0]: Path(f"/proc/{pid}").stat().st_uid
        for pid in descendants(deployment.processes["north"].pid)
        if "supernode" in line(pid) or "site_process" in line(pid)
    }
    assert set(owners.values()) == {0, nobody}
    state = deployment.place / "north" / "state"
    assert state.stat().st_mode & 0o777 == 0o700
    assert state.stat().st_uid == 0


def _a_hostile_app_cannot_open_the_table(deployment: Deployment) -> None:
    """Flower runs an app at the sites that tries to read table, state and key, and tells it."""
    places = [deployment.place / "north" / name for name in ("patients.csv", "state", "north.key")]
    place = deployment.folder / "hostile"
    place.mkdir()
    app = write_app(place)
    report = deployment.folder / "report.json"
    (app / "undrift_relay" / "client_app.py").write_text(f"""
import json, os, socket
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from undrift_relay.frames import receive_frame, send_frame
from undrift_relay.parcels import wrap
app = ClientApp()
@app.query()
def steal(message: Message, context: Context) -> Message:
    seen = {{"user": os.geteuid()}}
    for path in {[str(each) for each in places]!r}:
        try:
            seen[path] = str(os.listdir(path) if os.path.isdir(path) else open(path).read(10))
        except OSError as error:
            seen[path] = type(error).__name__
    path = context.node_config["socket"]
    try:
        os.listdir(os.path.dirname(path) + "/..")
    except OSError as error:
        seen["folder"] = type(error).__name__
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        send_frame(connection, b"give me the table")
        seen["site"] = receive_frame(connection).decode("latin1")
    return Message(wrap(json.dumps(seen).encode()), reply_to=message)
""")
    (app / "undrift_relay" / "server_app.py").write_text(f"""
import json, time
from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp
from undrift_relay.parcels import unwrap, wrap
app = ServerApp()
@app.main()
def main(grid: Grid, context: Context) -> None:
    ids = list(grid.get_node_ids())
    asked = [Message(wrap(b""), dst_node_id=n, message_type=MessageType.QUERY) for n in ids]
    replies = grid.send_and_receive(asked, timeout=120)
    texts = [json.loads(unwrap(r.content)) for r in replies if not r.has_error()]
    open({str(report)!r}, "w").write(json.dumps(texts))
""")
    home = deployment.place / "centre" / "flower"
    deployment.flower.run("flwr", "run", app, "centre", home=home)
    wait_for(lambda: report.exists() and report.stat().st_size, "the hostile app has not run")
    told = json.loads(report.read_text())
    assert len(told) == len(NAMES)
    for seen in told:
        assert seen["user"] == Account.named("nobody").uid
        assert {seen[str(path)] for path in places} == {"PermissionError"}
        assert '"kind":"refusal"' in seen["site"].replace("\\", "")


def _two_nodes_with_one_key_are_refused(deployment: Deployment) -> None:
    """Keep out a second node with a site's key, an unknown key, and another authority."""
    other = deployment.folder / "other"
    other.mkdir()
    make(deployment.flower, "authority", other)
    make(deployment.flower, "node", other / "north.key")
    key, authority = deployment.place / "north" / "north.key", deployment.place / "north" / "ca.crt"
    cases = {
        "one key twice": (key, authority, "2004"),
        "a key that nobody knows": (other / "north.key", authority, "2004"),
        "another authority": (key, other / "ca.crt", "CERTIFICATE_VERIFY_FAILED"),
    }
    address = Experiment.read(deployment.place / "centre" / "experiment.toml").federation.address
    for case, (own, root, mark) in cases.items():
        command = [
            *(deployment.flower.program("flower-supernode"), "--superlink", str(address)),
            *("--root-certificates", str(root), "--auth-supernode-private-key", str(own)),
            *("--port", str(free_port())),
        ]
        variables = deployment.flower.variables(other)
        log = other / "node.log"  # A pipe would stay open in what the SuperNode has started.
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=variables, stdout=output, stderr=output, start_new_session=True
            )
        try:
            assert process.wait(PATIENCE) != 0, case
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert mark in log.read_text(errors="replace"), case


def test_kills_of_flower_sites_and_run_end_with_the_same_hash(tmp_path: Path) -> None:
    """Ten kills and a link that is cut for a minute in one run, and everything killed at once."""
    deployment = Deployment(tmp_path, rounds=6)
    try:
        deployment.up()
        deployment.run("--out", tmp_path / "out")
        wait_for(lambda: deployment.round() >= 1, deployment.text("run"), LONG)
        deployment.kill("site_process", "north")  # 1: a site, before it is asked
        deployment.kill("flwr-serverapp")  # 2: the relay of the centre
        wait_for(lambda: deployment.round() >= 2, deployment.text("run"), LONG)
        deployment.kill("flower-superlink")  # 3
        deployment.cut_link(65.0)  # the gate passes nothing for more than a minute
        deployment.kill("gate.py")  # 4
        wait_for(lambda: deployment.round() >= 3, deployment.text("run"), LONG)
        deployment.kill("flower-supernode", "south")  # 5: its site must wait for a minute
        deployment.kill("site_process", "west")  # 6
        wait_for(lambda: deployment.round() >= 4, deployment.text("run"), LONG)
        deployment.processes["run"].kill()  # 7: the centre
        deployment.processes["run"].wait(PATIENCE)
        deployment.kill("site_process", "south")  # 8
        deployment.run("--resume", tmp_path / "out")
        wait_for(lambda: deployment.round() >= 5, deployment.text("run"), LONG)
        deployment.kill_all()  # 9 and 10: everything at once
        deployment.up()
        finish(deployment, "--resume", tmp_path / "out")
        assert found(deployment) == expected(deployment)
    finally:
        deployment.close()


def test_a_site_that_hangs_a_wiped_disk_a_revoked_key_and_a_newcomer(tmp_path: Path) -> None:
    """A site that hangs is left out, a wiped disk is said, a revoked key is out, a new one in."""
    deployment = Deployment(tmp_path, rounds=4, deadline=90.0)
    try:
        deployment.up()
        deployment.run("--out", tmp_path / "out")
        wait_for(lambda: deployment.round() >= 1, deployment.text("run"), LONG)
        sites = descendants(deployment.processes["west"].pid)
        hanging = [pid for pid in sites if "site_process" in line(pid)]
        for pid in hanging:
            os.kill(pid, signal.SIGSTOP)  # far more than 100 times slower
        wait_for(lambda: "without west" in deployment.text("run"), deployment.text("run"), LONG)
        for pid in hanging:
            os.kill(pid, signal.SIGCONT)
        deployment.processes["run"].terminate()
        deployment.processes["run"].wait(PATIENCE)
        for path in (deployment.place / "north" / "state").glob("*/state-*"):
            path.unlink()
        again = deployment.run("--resume", tmp_path / "out")
        assert again.wait(LONG) == 1
        assert "Site north needs its state of version" in deployment.text("run").replace("\n", " ")
        (deployment.place / "centre" / "sites" / "south.pub").unlink()
        wait_for(lambda: "A key was revoked." in deployment.text("serve"), "revoked")
        deployment.admit("east", like="west")
        log = deployment.place / "east" / "logs" / "supernode.log"
        wait_for(lambda: log.exists() and "SuperNode ID" in log.read_text(), "east has not come")
        options = ("--resume", tmp_path / "out", "--newcomer", "north")
        finish(deployment, *options)
        last = json.loads((tmp_path / "out" / "records.jsonl").read_text().splitlines()[-1])
        assert last["clients"] == 3  # north, west and east
        assert (last["missed"], last["dropped"]) == (0, None), "south has left"
        assert "south leaves, since its key is gone." in deployment.text("run")
    finally:
        deployment.close()


def test_a_federation_without_flower_says_how_to_get_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "undrift", "federation", "init", str(tmp_path / "fed")]
    done = subprocess.run(
        [*command, "--flower", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install flwr==" in " ".join(done.stderr.split())
