"""The command line, as a person and as a script use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.support.commands import built_run
from undrift.config.hyperparameters import METHODS
from undrift.results.trial import read_records

TINY = ["--rounds", "4", "--clients", "6", "--work", "steps:2", "--quiet"]


# One of each kind; what makes the others different is in the checks of their contract.
QUICK = ("fedavg", "fedlin", "fedspeed", "moon", "netfleet", "marsit", "cascadingssdm")


@pytest.mark.parametrize(
    "method",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in METHODS],
)
def test_run_writes_records_and_prints_json_last(call, tmp_path: Path, method: str) -> None:
    small = ["--lr", "1e-9"] if method == "cascadingssdm" else []  # it would diverge
    code, out, _ = call("run", method, *TINY, *small, "--out", str(tmp_path / "x"), "--json")
    assert code == 0
    final = json.loads(out.splitlines()[-1])
    lines = [json.loads(s) for s in (tmp_path / "x" / "records.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert final["round"] == 4
    assert final["loss"] == lines[-1]["loss"]
    assert final["accuracy"] == lines[-1]["accuracy"]
    assert final["bytes"] == sum(line["bytes_up"] + line["bytes_down"] for line in lines)
    assert final["gradients"] == sum(line["gradients"] for line in lines)
    assert len(final["model_sha256"]) == 64
    assert (tmp_path / "x" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_flags_come_from_the_fields(call, tmp_path: Path) -> None:
    code, out, err = call(
        "run", "FedSpeed", *TINY, "--out", str(tmp_path / "x"), "--json",
        "--lr", "exponential(0.1, 0.9)", "--lam", "5", "--no-perturbation", "--average",
        "participants", "--participation", "3", "--seed", "7",
    )  # fmt: skip
    assert code == 0
    assert "lam=5.0" in err
    run = built_run(
        {
            "name": "fedspeed",
            "lr": "exponential(0.1, 0.9)",
            "lam": 5.0,
            "perturbation": False,
            "average": "participants",
        },
        seed=7,
        data={"clients": 6},
        training={"rounds": 4, "work": "steps:2", "participation": 3},
    )
    for _ in run:
        pass
    assert json.loads(out.splitlines()[-1])["model_sha256"] == run.model_sha256


def test_a_rule_is_a_flag_too(call, tmp_path: Path) -> None:
    code, _, err = call("run", "fedavg", *TINY, "--out", str(tmp_path), "--rule", "momentum:0.5")
    assert code == 0
    assert "Momentum(beta=0.5" in err


def test_compare_gives_everybody_the_same_grid_and_seeds(call, tmp_path: Path) -> None:
    code, out, _ = call(
        "compare", "fedavg", "scaffold", "fedagrac", *TINY, "--lr", "0.05,0.2", "--seeds", "2",
        "--out", str(tmp_path / "c"), "--json", "--set", "fedagrac.lam=0.5",
    )  # fmt: skip
    assert code == 0
    summary = json.loads(out.splitlines()[-1])
    assert list(summary) == ["FedAvg", "Scaffold", "FedaGrac"]
    files = sorted(path.name for path in (tmp_path / "c").glob("*.jsonl"))
    assert len(files) == 3 * 2 * 2
    assert "scaffold-lr0.05-seed1.jsonl" in files
    assert (tmp_path / "c" / "curves.png").exists()
    # Same seed, same data and cohorts: the same number of gradients for everybody.
    assert summary["FedAvg"]["gradients"] == summary["Scaffold"]["gradients"]


def test_compare_prints_the_grid_and_the_table(call, tmp_path: Path) -> None:
    _, out, _ = call(
        "compare", "fedavg", "fedprox", *TINY, "--lr", "0.1,0.2", "--out", str(tmp_path / "c")
    )
    for word in ("Accuracy %, * the best", "lr 0.2", "rounds to 80 %", "MB sent", "gradients"):
        assert word in out


def test_a_grid_may_hold_schedules(call, tmp_path: Path) -> None:
    code, out, _ = call(
        "compare",
        "fedavg",
        *TINY,
        "--lr",
        "exponential(0.1, 0.9),0.2",
        "--out",
        str(tmp_path / "c"),
    )
    assert code == 0
    assert "lr exponential(0.1, 0.9)" in out


def test_list_names_every_method(call) -> None:
    code, out, _ = call("list")
    assert code == 0
    assert all(name in out for name in METHODS)


BAD = {
    "unknown method": (["run", "fedsped"], "nearest is 'fedspeed'"),
    "unknown in compare": (["compare", "fedavg", "scafold"], "nearest is 'scaffold'"),
    "unknown flag": (["run", "fedavg", "--lrr", "1"], "No such option"),
    "foreign flag": (["run", "fedavg", "--lam", "1"], "No such option"),
    "simulated devices": (["run", "fedavg", "--devices", "phone"], "are --fleet, such as"),
    "another library's flag": (["compare", "fedavg", "--learning-rate=1"], "rate is --lr"),
    "lr": (["run", "fedavg", "--lr", "0"], "FedAvg needs lr > 0"),
    "lr text": (["run", "fedavg", "--lr", "fast"], "needs a number or a schedule"),
    "lam": (["run", "fedspeed", "--lam", "0.01"], "lam >= lr"),
    "data": (["run", "fedavg", "--data", "digit"], "nearest is 'digits'"),
    "work": (["run", "fedavg", "--work", "epoch:2"], "nearest is 'epochs'"),
    "work numbers": (["run", "fedavg", "--work", "gaussian:5"], "form such as"),
    "participation": (["run", "fedavg", "--participation", "2.0"], "fraction in (0, 1]"),
    "participation text": (["run", "fedavg", "--participation", "all"], "a fraction such as"),
    "clients": (["run", "fedavg", "--clients", "5000"], "use fewer clients"),
    "work text": (["run", "fedavg", "--work", "epochs:abc"], "form such as"),
    "rule": (["run", "fedavg", "--rule", "momentum:2"], "beta in [0, 1)"),
    "coin": (["run", "fedpd", "--coin", "abc"], "a whole number"),
    "set lr": (["compare", "fedavg", "--set", "fedavg.lr=1"], "whose grid is --lr"),
    "set flag": (["compare", "fedspeed", "--set", "fedspeed.prox=on"], "true or false"),
    "set form": (["compare", "fedavg", "--set", "lam=1"], "SECTION.NAME"),
    "set name": (["compare", "fedspeed", "--set", "fedspeed.lamb=1"], "nearest is 'lam'"),
    "set method": (["compare", "fedavg", "--set", "fedspeed.lam=1"], "got 'fedspeed'"),
    "resume": (["run", "fedavg", "--resume", "nowhere"], "folder with checkpoints"),
}


@pytest.mark.parametrize("case", BAD)
def test_user_errors_are_one_sentence_without_traceback(call, case: str, tmp_path: Path) -> None:
    arguments, message = BAD[case]
    code, out, err = call(*arguments, "--out", str(tmp_path / "never"))
    assert code in (1, 2)
    assert message in " ".join(err.split())
    assert "Traceback" not in out + err
    assert not (tmp_path / "never").exists(), "nothing is written before everything is checked"


def test_a_folder_with_files_is_never_overwritten_silently(call, tmp_path: Path) -> None:
    code, _, _ = call("run", "fedavg", *TINY, "--out", str(tmp_path))
    assert code == 0
    code, _, err = call("run", "fedavg", *TINY, "--out", str(tmp_path))
    assert code == 2
    assert "--force" in err
    code, _, _ = call("run", "fedavg", *TINY, "--out", str(tmp_path), "--force")
    assert code == 0
    (tmp_path / "precious.txt").write_text("mine")
    code, _, err = call("run", "fedavg", *TINY, "--out", str(tmp_path), "--force")
    assert code == 2
    assert "does not touch 'precious.txt'" in err
    assert (tmp_path / "precious.txt").exists()
    assert (tmp_path / "records.jsonl").exists()


def test_a_resume_elsewhere_shows_the_costs_of_the_whole_run(call, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    arguments = ["run", "fedavg", *TINY, "--checkpoint", saved, "--out", str(tmp_path / "a")]
    call(*arguments)
    more = ["--rounds", "6", "--resume", saved, "--out", str(tmp_path / "b"), "--json"]
    code, out, err = call("run", "fedavg", *TINY, *more)
    assert code == 0
    final = json.loads(out.splitlines()[-1])
    assert final["gradients"] == 6 * 3 * 2
    assert f" {final['gradients']} " in err, "the table agrees"
    assert sorted(Path(saved).iterdir())[-1].name == "round-00000006", "it goes on saving"


def test_without_out_runs_are_numbered(call, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        call("run", "fedavg", *TINY)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["fedavg-1", "fedavg-2"]


def test_a_diverging_method_is_reported_and_the_comparison_goes_on(call, tmp_path: Path) -> None:
    code, out, err = call(
        "compare", "fedavg", *TINY, "--lr", "0.1,1e30", "--out", str(tmp_path / "c"), "--json"
    )
    assert code == 0
    assert "NaN or Inf" in err
    assert json.loads(out.splitlines()[-1])["FedAvg"]["lr"] == "0.1"


def test_control_c_keeps_what_was_done(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "undrift", "run", "fedavg", "--rounds", "100000", "--quiet",
         "--work", "steps:1", "--out", str(tmp_path / "x")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        # A suite started in the background ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    records = tmp_path / "x" / "records.jsonl"
    while process.poll() is None and not (records.exists() and records.stat().st_size > 500):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "what was done is kept" in err
    assert "Traceback" not in err
    assert all(json.loads(line) for line in records.read_text().splitlines())


def test_a_torn_record_is_left_out_with_a_warning(tmp_path: Path) -> None:
    (record,) = built_run(
        {"name": "fedavg"}, data={"clients": 6}, training={"rounds": 1, "work": "steps:1"}
    )
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(record.to_dict()) + '\n{"round": 2, "lo')
    with pytest.warns(UserWarning, match="line 2 is damaged"):
        assert read_records(path) == ([record], 1)


def test_preparing_a_setting_leaves_torchs_generator_alone() -> None:
    before = torch.random.get_rng_state()
    built_run({"name": "fedavg"}, seed=3)
    assert torch.equal(before, torch.random.get_rng_state())
