"""Federations of Flower's own processes: killed, cut off, hanging, wiped, revoked, and the demo.

Every test starts SuperLink, gate, SuperNodes, sites and a run as an operator does. They are few,
since a message takes 5 to 10 s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.flower import LONG, PATIENCE, Deployment, line, open_to_all, wait_for
from tests.support.hospitals import NAMES
from tests.support.system import ROOT
from undrift.deployment import example
from undrift.deployment.environment import FlowerEnvironment

pytestmark = pytest.mark.flower


def test_the_demo_ends_with_a_page_and_leaves_no_process(tmp_path: Path) -> None:
    """`make federation` runs this command, which starts all there is and ends it."""
    open_to_all(tmp_path)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "undrift", "federation", "demo", str(tmp_path / "sites")]
    command += ["--out", str(out), "--flower", str(FlowerEnvironment.find().folder)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"Page: {out / 'report.html'}"
    assert "<title>Hospitals (generated tables)" in (out / "report.html").read_text()
    records = [json.loads(text) for text in (out / "records.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5]
    assert {record["clients"] for record in records} == {3}
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    assert [line(pid) for pid in pids if str(tmp_path) in line(pid)] == []


def test_messages_above_the_gates_limit_travel_in_pieces(tmp_path: Path) -> None:
    """A model above the limit of one request, with a method of two exchanges in a round."""
    hidden, limit = 1_900_000, 2**26  # bytes of a request that the gate passes
    sections = {
        "methods": [{"name": "fedlin", "lr": 0.1}],
        "model": {"name": "mlp", "hidden": hidden},
        "training": {"rounds": 1, "work": "steps:1"},
    }
    deployment = Deployment(tmp_path, rounds=1, sections=sections)
    try:
        for name in NAMES:  # Few rows, since activations of so many units fill the memory.
            table = deployment.place / name / "patients.csv"
            example.write_table(table, name)
            table.write_text("".join(table.read_text().splitlines(keepends=True)[:41]))
        deployment.up()
        deployment.finish()
        (record,) = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
        assert json.loads(record)["bytes_up"] > len(NAMES) * 2 * limit
        assert deployment.found() == deployment.expected()
    finally:
        deployment.close()


def test_kills_of_flower_sites_and_run_end_with_the_same_hash(tmp_path: Path) -> None:
    """Ten kills, the last of everything at once, and a link that is cut for a minute, in a run."""
    deployment = Deployment(tmp_path, rounds=6)
    try:
        deployment.up()
        deployment.run("--out", tmp_path / "out")
        wait_for(lambda: deployment.round() >= 1, deployment.text("run"), LONG)
        deployment.kill("site_process", "north")  # 1: a site, before it is asked
        deployment.kill("flwr-serverapp")  # 2: the relay of the centre
        wait_for(lambda: deployment.round() >= 2, deployment.text("run"), LONG)
        with deployment.stopped("west"):
            deployment.kill("flwr-clientapp", "west")  # 3: the relay of a site, as it waits
        deployment.kill("flower-superlink")  # 4
        deployment.cut_link(65.0)  # the gate passes nothing for more than a minute
        deployment.kill("gate.py")  # 5
        wait_for(lambda: deployment.round() >= 3, deployment.text("run"), LONG)
        deployment.kill("flower-supernode", "south")  # 6: its site must wait for a minute
        deployment.kill("site_process", "west")  # 7
        wait_for(lambda: deployment.round() >= 4, deployment.text("run"), LONG)
        deployment.kill("--once", "run")  # 8: the centre, which goes on by itself
        deployment.kill("site_process", "south")  # 9
        wait_for(lambda: deployment.round() >= 5, deployment.text("run"), LONG)
        deployment.kill_all()  # 10: everything at once
        deployment.up()
        deployment.finish("--resume", tmp_path / "out")
        assert deployment.found() == deployment.expected()
    finally:
        deployment.close()


def test_a_site_that_hangs_a_wiped_disk_a_revoked_key_and_a_newcomer(tmp_path: Path) -> None:
    """A site that hangs is left out, a wiped disk is said, a revoked key is out, a new one in."""
    deployment = Deployment(tmp_path, rounds=4, deadline=90.0)
    try:
        deployment.up()
        deployment.run("--out", tmp_path / "out")
        wait_for(lambda: deployment.round() >= 1, deployment.text("run"), LONG)
        with deployment.stopped("west"):  # far more than 100 times slower
            left_out = "without west"
            wait_for(lambda: left_out in deployment.text("run"), deployment.text("run"), LONG)
        deployment.processes["run"].terminate()
        deployment.processes["run"].wait(PATIENCE)
        for path in (deployment.place / "north" / "state").glob("*/state-*"):
            path.unlink()
        again = deployment.run("--resume", tmp_path / "out")
        assert again.wait(LONG) == 1
        assert "Site north needs its state of version" in deployment.text("run").replace("\n", " ")
        (deployment.place / "centre" / "sites" / "south.pub").unlink()
        wait_for(lambda: "A key was revoked." in deployment.text("serve"), "revoked")
        deployment.processes["south"].terminate()
        deployment.processes["south"].wait(PATIENCE)
        deployment.site("south")
        deployment.admit("east", like="west")
        log = deployment.place / "east" / "logs" / "supernode.log"
        wait_for(lambda: log.exists() and "SuperNode ID" in log.read_text(), "east has not come")
        refused = "ask the centre whether it was revoked. It is tried"
        wait_for(lambda: refused in deployment.text("south"), "the revoked key is not refused")
        deployment.finish("--resume", tmp_path / "out", "--newcomer", "north")
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
