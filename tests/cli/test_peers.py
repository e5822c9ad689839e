"""The command line on peers: the same tables, records and plots as with a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import built_run
from undrift.config.hyperparameters import METHODS
from undrift.results.trial import read_records

GOSSIP = ["compare", "dsgd", "ldsgd", "gtsgd", "netfleet", "--topology", "erdos-renyi"]
ONEBIT = ["compare", "psgd", "signsgd", "efsignsgd", "ssdm", "marsit", "--allreduce", "ring"]
SHORT = ["--rounds", "3", "--clients", "6", "--quiet", "--json"]


def test_compare_gossip(call, tmp_path: Path) -> None:
    code, out, err = call(*GOSSIP, *SHORT, "--out", str(tmp_path / "c"))
    assert code == 0
    assert "DSGD communicates at every step: one step a round." in err
    for word in ("nodes' own %", "consensus", "MB sent", "rounds to 80 %"):
        assert word in err, "with --json the table goes to the other stream"
    assert "signs kept" not in err
    summary = json.loads(out.splitlines()[-1])
    # Rounds are communications: K = 10 for two of them, one step for the others.
    gradients = {name: own["gradients"] for name, own in summary.items()}
    assert gradients == {"DSGD": [18], "LDSGD": [180], "GTSGD": [24], "NetFleet": [186]}
    assert summary["NetFleet"]["bytes"] == [2 * b for b in summary["LDSGD"]["bytes"]]
    assert summary["NetFleet"]["consensus"] > 0
    assert (tmp_path / "c" / "curves.png").exists()
    records, _ = read_records(tmp_path / "c" / "netfleet-lr0.1-seed0.jsonl")
    assert [record.round for record in records] == [1, 2, 3]
    assert all(record.node_accuracy is not None for record in records)  # type: ignore[attr-defined]


def test_compare_one_bit(call, tmp_path: Path) -> None:
    code, out, err = call(*ONEBIT, *SHORT, "--out", str(tmp_path / "c"))
    assert code == 0
    for word in ("bits / hop", "signs kept %", "lr 0.001", "lr 0.01"):
        assert word in err
    assert "consensus" not in err
    summary = json.loads(out.splitlines()[-1])
    assert summary["PSGD"]["bits"] == 32
    assert 1 <= summary["Marsit"]["bits"] < 1.05
    assert "sign_matching" not in summary["PSGD"]
    assert summary["Marsit"]["bytes"][0] < summary["PSGD"]["bytes"][0] / 30


def test_families_may_be_compared(call, tmp_path: Path) -> None:
    """A method with a server keeps its participation; peers have none."""
    code, out, _ = call(
        "compare", "fedavg", "netfleet", "psgd", *SHORT, "--participation", "3", "--work",
        "steps:2", "--lr", "0.1", "--partition", "shards:2", "--out", str(tmp_path / "c"),
    )  # fmt: skip
    assert code == 0
    gradients = {name: own["gradients"] for name, own in json.loads(out.splitlines()[-1]).items()}
    assert gradients == {"FedAvg": [18], "NetFleet": [42], "PSGD": [36]}


def test_hyper_parameters_that_may_be_none(call, tmp_path: Path) -> None:
    for text, shown in (("none", "period=None"), ("2", "period=2")):
        code, _, err = call(
            "run", "marsit", *SHORT, "--period", text, "--out", str(tmp_path / text)
        )
        assert code == 0
        assert shown in err
    full, _ = read_records(tmp_path / "2" / "records.jsonl")
    assert [record.sign_matching is None for record in full] == [True, False, True]  # type: ignore[attr-defined]


BAD = {
    "topology for a server": (["run", "fedavg", "--topology", "ring"], "a gossip method"),
    "topology for all-reduce": (["run", "psgd", "--topology", "ring"], "a gossip method"),
    "route for gossip": (["run", "dsgd", "--allreduce", "ring"], "an all-reduce method"),
    "participation": (["run", "netfleet", "--participation", "0.5"], "method with a server"),
    "topology name": (["run", "dsgd", "--topology", "rang"], "nearest is 'ring'"),
    "torus graph": (
        ["run", "dsgd", "--clients", "6", "--topology", "torus:4x4"],
        "product is the number of clients",
    ),
    "torus route": (
        ["run", "psgd", "--clients", "6", "--allreduce", "torus:4x4"],
        "product is the number of workers, 6, got '4x4'",
    ),
    "route name": (["run", "psgd", "--allreduce", "tres"], "nearest is 'tree'"),
    "unequal steps": (["run", "marsit", "--work", "gaussian:5:9"], "same number of local steps"),
    "unequal epochs": (
        ["run", "psgd", "--clients", "7", "--partition", "shards", "--work", "epochs:1",
         "--batch-size", "1"],
        "same number of local steps",
    ),
    "period 0": (["run", "marsit", "--period", "0"], "period >= 1"),
    "weighting": (
        ["run", "netfleet", "--clients", "7", "--partition", "shards", "--weighting", "size"],
        "weigh the same",
    ),
    "no clients": (["run", "netfleet", "--clients", "0"], "data.clients needs a number >= 1"),
    "shards": (["run", "netfleet", "--partition", "shards:x"], "a form such as shards:2"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(call, case: str, tmp_path: Path) -> None:
    arguments, message = BAD[case]
    code, out, err = call(*arguments, "--out", str(tmp_path / "never"))
    assert code == 2, err
    assert message in " ".join(err.split())
    assert "Traceback" not in out + err
    assert not (tmp_path / "never").exists()


def test_every_peer_method_has_a_default_setting() -> None:
    for name in METHODS:
        tiny = {"name": name, "lr": 1e-6}
        run = built_run(tiny, data={"clients": 4}, training={"rounds": 1})
        assert next(run).round == 1, name


def test_run_says_when_work_is_one_step(call, tmp_path: Path) -> None:
    code, _, err = call("run", "dsgd", *SHORT, "--work", "steps:9", "--out", str(tmp_path / "x"))
    assert code == 0
    assert "DSGD communicates at every step: one step a round." in err


def test_seeds_that_end_at_different_rounds_are_plotted(tmp_path: Path) -> None:
    from undrift.report.plots import curves

    records = list(built_run({"name": "psgd"}, data={"clients": 4}, training={"rounds": 5}))
    assert curves({"PSGD": [records, records[:3]]}, tmp_path / "curves.png")
