"""What a deployment of Flower's own processes lets through, and what it keeps out.

One deployment answers all questions of this file, because starting it takes half a minute.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import BadStatusLine, HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest
import torch

from tests.support.flower import (
    LONG,
    PATIENCE,
    Deployment,
    descendants,
    line,
    listening,
    wait_for,
)
from tests.support.hospitals import NAMES
from undrift.config.experiment import Experiment
from undrift.deployment.accounts import Account
from undrift.deployment.folders import free_port
from undrift.deployment.init import make
from undrift.deployment.plan import federated_jobs, resolved
from undrift.deployment.serve import write_app
from undrift.federation.messages import (
    CensusRequest,
    EvaluationRequest,
    ExchangeRequest,
    Refusal,
    SiteCensus,
    SiteMessage,
    decode,
    encode,
)

pytestmark = pytest.mark.flower
CLAIM = 30.0  # seconds after which Flower starts another ClientApp for a message


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Give a deployment after a run in which a site took longer than a ClientApp's claim."""
    started = Deployment(tmp_path_factory.mktemp("protected"))
    try:
        started.up()
        run = started.run("--out", started.folder / "out")
        wait_for(lambda: started.round() >= 1, started.text("run"), LONG)
        with started.stopped("west"):
            time.sleep(1.5 * CLAIM)
            assert len(started.below("west", "flwr-clientapp")) == 1
        assert run.wait(LONG) == 0, started.text("run")[-2000:]
        yield started
    finally:
        started.close()


@pytest.fixture
def separate(deployment: Deployment) -> None:
    """Let a test run where what Flower brings runs as another user; as root that must be so."""
    if os.geteuid() != 0:
        pytest.skip("Only root can start what Flower brings as another user.")
    remedy = "make it with /usr/bin/python3 in a folder that all users can enter"
    assert deployment.separate, f"{deployment.flower.folder} is closed to nobody; {remedy}"


def test_a_deployment_has_the_bits_of_the_simulation(deployment: Deployment) -> None:
    assert deployment.found() == deployment.expected()


def test_every_request_was_worked_on_once(deployment: Deployment) -> None:
    """Flower starts a second ClientApp for a message whose first one is silent for too long."""
    for name in NAMES:
        said = (deployment.place / name / "logs" / "site.log").read_text().splitlines()
        asked = [text.partition(": ")[0] for text in said if text.startswith("exchange ")]
        assert asked == [f"exchange t={t} stage=upload attempt=0" for t in range(3)]


def test_only_the_loopback_has_the_control_interface(deployment: Deployment) -> None:
    programs = descendants(deployment.processes["serve"].pid)
    superlink = [pid for pid in programs if "gate.py" not in line(pid)]
    assert listening(superlink) == {"127.0.0.1"}
    assert len(listening([pid for pid in programs if "gate.py" in line(pid)])) == 1


def test_the_gate_passes_nodes_alone(deployment: Deployment) -> None:
    experiment = Experiment.read(deployment.place / "centre" / "experiment.toml")
    place = experiment.federation.host, experiment.federation.port
    authority = deployment.place / "north" / "ca.crt"
    trusted = ssl.create_default_context(cafile=str(authority))
    for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/", "/v1/fleet/../control"):
        with closing(HTTPSConnection(*place, context=trusted, timeout=PATIENCE)) as connection:
            connection.request("POST", path)
            assert connection.getresponse().status == 403
    with closing(HTTPSConnection(*place, context=trusted, timeout=PATIENCE)) as connection:
        connection.request("POST", "/v1/fleet/push-object", body=bytes(2**26 + 1))
        assert connection.getresponse().status == 413
    with (
        closing(HTTPSConnection(*place, timeout=PATIENCE)) as connection,
        pytest.raises(ssl.SSLCertVerificationError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        connection.request("POST", "/")
    with closing(HTTPConnection(*place, timeout=PATIENCE)) as connection:  # no TLS
        connection.request("POST", "/v1/fleet/pull-messages")
        with pytest.raises((BadStatusLine, ConnectionError)):
            connection.getresponse()


def test_relays_run_as_another_user(deployment: Deployment, separate: None) -> None:
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


HOSTILE_CLIENT = """
import json, os, socket
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from undrift_relay.frames import receive_frame, send_frame
from undrift_relay.parcels import unwrap, wrap
app = ClientApp()

def tried(path):
    try:
        return str(os.listdir(path) if os.path.isdir(path) else open(path).read(10))
    except OSError as error:
        return type(error).__name__

def asked(path, request):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        send_frame(connection, request)
        return receive_frame(connection).decode("latin1")

@app.query()
def steal(message: Message, context: Context) -> Message:
    order, path = json.loads(unwrap(message.content)), context.node_config["socket"]
    seen = {"user": os.geteuid()}
    seen["read"] = {each: tried(each) for each in order["places"]}
    seen["site"] = {name: asked(path, bytes.fromhex(q)) for name, q in order["requests"].items()}
    return Message(wrap(json.dumps(seen).encode()), reply_to=message)
"""
HOSTILE_SERVER = """
import json
from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp
from undrift_relay.parcels import unwrap, wrap
app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    order, report = open("ORDER", "rb").read(), "REPORT"
    ids = list(grid.get_node_ids())
    asked = [Message(wrap(order), dst_node_id=n, message_type=MessageType.QUERY) for n in ids]
    replies = grid.send_and_receive(asked, timeout=300)
    texts = [json.loads(unwrap(r.content)) for r in replies if not r.has_error()]
    open(report, "w").write(json.dumps(texts))
"""


def requests(digest: str) -> dict[str, bytes]:
    """Return well-formed requests that name an experiment of SCAFFOLD with a net of 4 units."""
    model = torch.zeros(38)  # which also stands for the server's control variate
    exchange = ExchangeRequest(
        experiment=digest,
        client=0,
        t=0,
        stage="upload",
        attempt=0,
        base=-1,
        keep=-1,
        steps=1,
        mean_count=1.0,
        width=20,
    )
    return {
        "census": encode(SiteMessage(CensusRequest(experiment=digest))),
        "exchange": encode(SiteMessage(exchange, [model] * 3)),
        "evaluation": encode(
            SiteMessage(EvaluationRequest(experiment=digest, client=0, t=0), [model])
        ),
    }


def test_a_hostile_app_cannot_open_the_table(deployment: Deployment, separate: None) -> None:
    """Flower runs an app at the sites that tries to read table, state and key, and tells it."""
    north = deployment.place / "north"
    places = [str(north / name) for name in ("patients.csv", "state", "north.key")]
    (planned,) = federated_jobs(resolved(Experiment.read(north / "experiment.toml")))
    accepted, other = requests(planned.experiment.digest), requests("0" * 64)
    asked = {"accepted": accepted["census"], "garbage": b"give me the table", **other}
    order, report = deployment.folder / "order.json", deployment.folder / "report.json"
    texts = {name: request.hex() for name, request in asked.items()}
    order.write_text(json.dumps({"places": places, "requests": texts}))
    place = deployment.folder / "hostile"
    place.mkdir()
    app = write_app(place)
    server = HOSTILE_SERVER.replace("ORDER", str(order)).replace("REPORT", str(report))
    (app / "undrift_relay" / "client_app.py").write_text(HOSTILE_CLIENT)
    (app / "undrift_relay" / "server_app.py").write_text(server)
    home = deployment.place / "centre" / "flower"
    deployment.flower.run("flwr", "run", app, "centre", home=home)
    wait_for(lambda: report.exists() and report.stat().st_size, "the hostile app has not run")
    told = json.loads(report.read_text())
    assert len(told) == len(NAMES)
    for seen in told:
        assert seen["user"] == Account.named("nobody").uid
        assert seen["read"] == dict.fromkeys(places, "PermissionError")
        site = {name: decode(reply.encode("latin1")).header for name, reply in seen["site"].items()}
        assert isinstance(site.pop("accepted"), SiteCensus)  # which has no sample
        assert all(isinstance(reply, Refusal) for reply in site.values())
        for name in other:
            assert "which its operator has accepted, got 00000" in site[name].reason


def test_two_nodes_with_one_key_are_refused(deployment: Deployment) -> None:
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
