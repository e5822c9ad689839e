"""The commands around experiments: init, run FILE, --resume, report, check, export, schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

import undrift as ud
from tests.support.commands import built_run
from tests.support.system import ROOT
from undrift.config.experiment import Experiment
from undrift.results import trial
from undrift.runs.folder import read

SIZES = ["--set", "training.rounds=3", "--set", "training.work=steps:2", "--set", "data.clients=6"]
TINY = [*SIZES, "--set", "seeds=[0]"]


@pytest.fixture
def file(call, tmp_path: Path) -> Path:
    path = tmp_path / "experiment.toml"
    code, _, _ = call("init", str(path), "--methods", "fedavg,scaffold")
    assert code == 0
    return path


def test_a_starter_file_runs_and_its_folder_repeats_bit_for_bit(
    call,
    file: Path,
    tmp_path: Path,
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    code, out, _ = call("run", str(file), *SIZES, "--quiet", "--json", "--out", str(first))
    assert code == 0
    summary = json.loads(out.splitlines()[-1])
    assert list(summary) == ["FedAvg", "Scaffold"]
    assert all(len(own["model_sha256"]) == 2 for own in summary.values()), "two seeds"
    code, out, _ = call(
        "run", str(first / "experiment.toml"), "--quiet", "--json", "--out", str(again)
    )
    assert code == 0
    repeated = json.loads(out.splitlines()[-1])
    for name, own in summary.items():
        assert repeated[name]["model_sha256"] == own["model_sha256"]
    assert Experiment.read(first / "experiment.toml") == Experiment.read(again / "experiment.toml")
    told = json.loads((first / "environment.json").read_text())
    assert (
        told["packages"]["torch"] == torch.__version__.partition("+")[0] or "+" in torch.__version__
    )
    assert told["command"].startswith("undrift run")
    for name in ("report.html", "curves.png", "partition.json", "fedavg-seed0.csv"):
        assert (first / name).exists()


def test_the_resolved_experiment_says_everything(call, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    call("run", str(file), *TINY, "--quiet", "--out", str(out))
    experiment = Experiment.read(out / "experiment.toml")
    assert experiment.training.participation == 0.5
    assert experiment.data.clients == 6
    assert experiment.methods[0].settings == {
        "lr": 0.1,
        "server_lr": 1.0,
        "rule": "sgd",
        "keep_rule": False,
    }
    assert experiment.training.work == "steps:2"


def test_resume_runs_what_is_missing_only(call, file: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    call("run", str(file), *TINY, "--quiet", "--out", str(whole))
    before = {path.name: path.read_bytes() for path in whole.glob("*-seed*.json*")}
    done = whole / "fedavg-seed0.jsonl"
    stamp = done.stat().st_mtime_ns
    ending = json.loads((whole / "scaffold-seed0.json").read_text())
    (whole / "scaffold-seed0.json").write_text(json.dumps(ending | {"status": "stopped"}))
    (whole / "scaffold-seed0.jsonl").write_text("")
    code, _, err = call("run", "--resume", str(whole), "--quiet")
    assert code == 0, err
    assert done.stat().st_mtime_ns == stamp, "what is finished is not run again"
    after = json.loads((whole / "scaffold-seed0.json").read_text())
    assert after["model_sha256"] == ending["model_sha256"]
    assert after["status"] == "finished"
    assert sorted(before) == sorted(path.name for path in whole.glob("*-seed*.json*"))


def test_an_interrupted_trial_goes_on_from_its_checkpoint(
    call,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saves = ["--set", "engine.checkpoint_every=1"]
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    call("run", str(file), *TINY, *saves, "--quiet", "--out", str(whole))
    real, added = trial.Journal.add, []

    def add(self: trial.Journal, record: ud.Record) -> None:
        real(self, record)
        added.append(record.round)
        if len(added) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trial.Journal, "add", add)
        code, _, err = call("run", str(file), *TINY, *saves, "--quiet", "--out", str(torn))
    assert code == 130
    assert "what was done is kept" in err
    assert json.loads((torn / "fedavg-seed0.json").read_text())["status"] == "stopped"
    code, _, err = call("run", "--resume", str(torn), "--quiet")
    assert code == 0, err
    for name in ("fedavg-seed0", "scaffold-seed0"):
        ended = json.loads((torn / f"{name}.json").read_text())
        assert (
            ended["model_sha256"]
            == json.loads((whole / f"{name}.json").read_text())["model_sha256"]
        )
        lines = (torn / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
        rows = (torn / f"{name}.csv").read_text().splitlines()
        assert [row.partition(",")[0] for row in rows] == ["round", "1", "2", "3"]


def test_report_needs_no_data_and_counts_damaged_lines(
    call,
    file: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "x"
    call("run", str(file), *TINY, "--quiet", "--out", str(out))
    (out / "report.html").unlink()
    with (out / "fedavg-seed0.jsonl").open("a") as records:
        records.write('{"round": 4, "lo')
    with pytest.warns(UserWarning, match="line 4 is damaged"):
        code, shown, _ = call("report", str(out), "--figures")
    assert code == 0
    assert "Scaffold" in shown
    page = (out / "report.html").read_text()
    assert "1 damaged line" in page
    assert "undrift run" in page
    assert list((out / "figures").glob("*.pdf"))


def test_folders_are_reported_together(call, file: Path, tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        call("run", str(file), *TINY, "--quiet", "--out", str(tmp_path / name))
    page = tmp_path / "both.html"
    code, shown, _ = call(
        "report", str(tmp_path / "mine"), str(tmp_path / "theirs"), "--out", str(page)
    )
    assert code == 0
    assert "FedAvg (mine)" in shown
    assert "FedAvg (theirs)" in page.read_text()


def test_drift_and_training_loss_are_recorded(call, tmp_path: Path) -> None:
    out = tmp_path / "x"
    code, shown, _ = call(
        "run", "fedavg", "--rounds", "3", "--clients", "6", "--work", "steps:2", "--quiet",
        "--drift", "--train-loss", "--out", str(out),
    )  # fmt: skip
    assert code == 0
    assert "divergence" in shown
    lines = [json.loads(s) for s in (out / "records.drift.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    (trial,) = read(out).trials
    run = built_run(
        {"name": "fedavg"}, data={"clients": 6}, training={"rounds": 3, "work": "steps:2"}
    )
    for _ in run:
        pass
    assert trial.model_sha256 == run.model_sha256, "looking changes nothing"
    # The objective by hand: every client's mean loss, weighed by its size.
    model, clients = run.model.eval(), ud.data.digits().split("dirichlet:0.3", 6, seed=0)
    total = 0.0
    for i in range(len(clients)):
        inputs, targets = clients[i]
        loss = torch.nn.functional.cross_entropy(model(inputs.float()), targets)
        total += float(loss.detach()) * len(targets)
    assert trial.records[-1].train_loss == pytest.approx(total / clients.sizes.sum(), rel=1e-5)


def test_a_single_run_keeps_its_model_and_exports_it(call, tmp_path: Path) -> None:
    out, target = tmp_path / "x", tmp_path / "model.onnx"
    call("run", "fedavg", "--rounds", "2", "--clients", "6", "--quiet", "--out", str(out))
    run = built_run({"name": "fedavg"}, data={"clients": 6}, training={"rounds": 2})
    for _ in run:
        pass
    kept = load_file(out / "model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in run.model.state_dict().items())
    code, _, err = call("export", str(out), "--out", str(target))
    assert code == 0, err
    session = onnxruntime.InferenceSession(target)
    inputs = ud.data.digits().test[0][:5]
    (made,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    expected = run.model.eval()(inputs).detach()
    assert torch.allclose(torch.from_numpy(made), expected, atol=1e-5)
    code, _, err = call("export", str(out), "--out", str(tmp_path / "model.pt"))
    assert code == 2
    assert ".onnx" in err


def test_check_passes_the_example_and_names_what_fails(
    call,
    tmp_path: Path,
) -> None:
    example = ROOT / "examples" / "own_algorithm.py"
    code, out, _ = call("check", f"{example}:Heavy", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["failed"] == {}
    broken = tmp_path / "broken.py"
    text = example.read_text().replace("return y - down, client", "return y, client")
    broken.write_text(text.partition("\nif __name__")[0].partition("\ncheck_algorithm(")[0])
    code, out, _ = call("check", f"{broken}:Heavy", "--json")
    assert code == 1
    assert "increments" in json.loads(out.splitlines()[-1])["failed"]


def test_schema_is_printed(call) -> None:
    code, out, _ = call("schema")
    assert code == 0
    schema = json.loads(out)
    assert schema["$defs"]["method-fedspeed"]["properties"]["lam"]["default"] == 10.0


def test_run_takes_ones_own_method_from_a_file(call, tmp_path: Path) -> None:
    example = ROOT / "examples" / "own_algorithm.py"
    own = tmp_path / "own.toml"
    own.write_text(f"""
seeds = [0]
[[methods]]
name = "{example}:Heavy"
lr = 0.05
[data]
clients = 6
[training]
rounds = 2
""")
    code, out, err = call(
        "run", str(own), "--trust", "--quiet", "--json", "--out", str(tmp_path / "x")
    )
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["method"] == "Heavy"


BAD = {
    "no file": (["run", "nowhere.toml"], "undrift init"),
    "resume nothing": (["run", "--resume", "nowhere"], "experiment.toml"),
    "report nothing": (["report", "nowhere"], "a folder of results"),
    "check nothing": (["check", "nowhere:Class"], "importable module"),
    "check a function": (["check", "json:dumps"], "a dataclass"),
    "export nothing": (["export", "nowhere"], "a folder of results"),
    "twice": (["compare", "fedavg", "scaffold", "fedavg"], "every method once, got 'fedavg'"),
    "two names": (["compare", "fedavg", "FedAvg"], "every method once"),
    "rates": (["run", "fedavg", "--lr", "0.1,0.3"], "undrift compare fedavg --lr 0.1,0.3"),
    "a file alone": (["run", "fedavg", "--model", "my.py"], "code such as my.py:Net"),
    "set": (["run", "FILE", "--set", "training.roundz=3"], "nearest is 'rounds'"),
    "track": (["run", "FILE", "--track", "tensorbord"], "nearest is 'tensorboard'"),
    "torus": (
        ["run", "marsit", "--clients", "6", "--allreduce", "torus:2x4"],
        "product is the number",
    ),
    "moon": (["run", "moon", "--model", "logistic"], "MOON"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(call, file: Path, tmp_path: Path, case: str) -> None:
    arguments, message = BAD[case]
    arguments = [str(file) if argument == "FILE" else argument for argument in arguments]
    never = (
        []
        if arguments[0] in ("check", "report") or "--resume" in arguments
        else ["--out", str(tmp_path / "never")]
    )
    code, out, err = call(*arguments, *never)
    assert code == 2, err
    assert message in " ".join(err.split())
    assert "Traceback" not in out + err
    assert not (tmp_path / "never").exists()


def test_a_sweep_of_a_fresh_file_tries_learning_rates(call, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.toml"
    assert call("init", str(fresh))[0] == 0
    short = ["--set", "training.rounds=1", "--set", "training.work=steps:1", "--quiet"]
    code, out, err = call("sweep", str(fresh), *short, "--out", str(tmp_path / "x"))
    assert code == 0, err
    assert "No [sweep] in the file: method.lr takes the values 0.03, 0.1, 0.3." in err
    assert "0.03" in out


def test_a_participation_of_one_is_told_to_be_a_count(call, tmp_path: Path) -> None:
    said = "Participation 1 is one of 6 clients in a round; write 1.0 for all of them."
    one = ["--participation", "1", "--out", str(tmp_path / "x")]
    code, _, err = call("run", "fedavg", *FAST, *one)
    assert code == 0, err
    assert said in err
    all_of_them = ["--participation", "1.0", "--out", str(tmp_path / "y")]
    assert said not in call("run", "fedavg", *FAST, *all_of_them)[2]


def test_a_run_that_stops_early_says_so(call, tmp_path: Path) -> None:
    high = ["--lr", "9", "--early-stopping", "1", "--rounds", "9", "--clients", "6"]
    code, _, err = call("run", "fedavg", *high, "--quiet", "--out", str(tmp_path / "x"))
    assert code == 0, err
    assert "FedAvg: stopped after round" in err


def test_malformed_toml_names_line_and_column(call, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('seeds = [0]\n[data\nname = "digits"\n')
    code, _, err = call("run", str(path))
    assert code == 2
    assert "line 2, column 6" in " ".join(err.split())


def test_without_matplotlib_or_jinja_tables_still_work(
    call,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("matplotlib", "jinja2"):
            monkeypatch.delitem(sys.modules, name)
    for name in ("matplotlib", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None)
    code, out, err = call("run", str(file), *TINY, "--quiet", "--out", str(tmp_path / "x"))
    assert code == 0
    assert "rounds to 80 %" in out
    assert err.count("pip install 'undrift[report]'") == 2


FAST = ["--rounds", "2", "--clients", "6", "--work", "steps:1", "--quiet"]


def test_force_touches_nothing_that_is_not_a_runs(call, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "figures").mkdir(parents=True)
    (mine / "data.csv").write_text("1")
    (mine / "figures" / "thesis.pdf").write_text("2")
    code, _, err = call("run", "fedavg", *FAST, "--out", str(mine), "--force")
    assert code == 2
    assert "does not touch 'data.csv'" in " ".join(err.split())
    ours = tmp_path / "ours"
    assert call("run", "fedavg", *FAST, "--out", str(ours))[0] == 0
    assert call("run", "fedavg", *FAST, "--out", str(ours), "--force")[0] == 0
    (ours / "checkpoints").mkdir()
    (ours / "checkpoints" / "precious.pt").write_text("3")
    code, _, err = call("run", "fedavg", *FAST, "--out", str(ours), "--force")
    assert code == 2
    assert "does not touch 'checkpoints'" in " ".join(err.split())
    assert (ours / "records.jsonl").exists()


def test_force_leaves_what_the_run_reads(call, tmp_path: Path) -> None:
    out = tmp_path / "x"
    call("run", "fedavg", *FAST, "--out", str(out))
    code, _, err = call("run", str(out / "experiment.toml"), "--out", str(out), "--force")
    assert code == 2
    assert "which the run reads" in " ".join(err.split())
    assert (out / "experiment.toml").exists()


def test_export_writes_safetensors_and_never_over_another(call, tmp_path: Path) -> None:
    out, target = tmp_path / "x", tmp_path / "m.safetensors"
    call("run", "fedavg", *FAST, "--out", str(out))
    assert call("export", str(out), "--out", str(target))[0] == 0
    first, again = load_file(out / "model.safetensors"), load_file(target)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert call("export", str(out), "--out", str(target))[0] == 2
    # What was exported is not what the next run of this process starts with.
    run = built_run(
        {"name": "fedavg"}, data={"clients": 6}, training={"rounds": 2, "work": "steps:1"}
    )
    for _ in run:
        pass
    assert read(out).trials[0].model_sha256 == run.model_sha256


def test_rounds_between_saves_hold_without_a_folder_of_checkpoints(call, tmp_path: Path) -> None:
    out = tmp_path / "x"
    command = ["run", "scaffold", *FAST, "--out", str(out)]
    code, _, err = call(*command, "--checkpoint-every", "2")
    assert code == 0, err
    assert Experiment.read(out / "experiment.toml").engine.checkpoint_every == 2
    assert (out / "checkpoints" / "records" / "round-00000002").is_dir()
    code, _, err = call(*command, "--force")
    assert code == 0, err
    assert not (out / "checkpoints").exists(), "those by time go when a run has ended"


def test_compare_obeys_set_and_takes_ones_own_methods(call, tmp_path: Path) -> None:
    example = ROOT / "examples" / "own_algorithm.py"
    out = tmp_path / "x"
    code, shown, err = call(
        "compare", "fedavg", f"{example}:Heavy", *FAST, "--set", "engine.checkpoint_every=1",
        "--out", str(out), "--json",
    )  # fmt: skip
    assert code == 0, err
    assert list(json.loads(shown.splitlines()[-1])) == ["FedAvg", "Heavy"]
    assert Experiment.read(out / "experiment.toml", trust=True).engine.checkpoint_every == 1
    assert (out / "checkpoints" / "fedavg-lr0.1-seed0").is_dir()
    code, _, err = call("compare", "--resume", str(out), "--rounds", "9")
    assert code == 2
    assert "beside a file or --resume" in " ".join(err.split())


def test_drift_survives_an_interruption(
    call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, out = tmp_path / "e.toml", tmp_path / "x"
    path.write_text(
        '[[methods]]\nname = "fedavg"\n[data]\nclients = 6\n[training]\nrounds = 4\n'
        'work = "steps:1"\n[evaluation]\ndrift = true\n[engine]\ncheckpoint_every = 1\n'
    )
    real = trial.Journal.add

    def add(self: trial.Journal, record: ud.Record) -> None:
        if record.round == 3:
            raise KeyboardInterrupt
        real(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(trial.Journal, "add", add)
        code, shown, err = call("run", str(path), "--quiet", "--out", str(out))
    assert code == 130
    assert f"undrift run --resume {out}" in " ".join(err.split())
    assert "stopped after 2" in shown
    code, _, err = call("run", "--resume", str(out), "--quiet")
    assert code == 0, err
    lines = (out / "records.drift.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]


def test_a_changed_experiment_is_not_taken_for_the_same(call, tmp_path: Path) -> None:
    out = tmp_path / "x"
    call("compare", "fedavg", "fedprox", *FAST, "--out", str(out))
    told = (out / "experiment.toml").read_text()
    (out / "experiment.toml").write_text(told.replace("rounds = 2", "rounds = 3"))
    code, _, err = call("run", "--resume", str(out))
    assert code == 2
    assert "the experiment that fedavg-lr0.1-seed0 was run with" in " ".join(err.split())


def test_folders_of_one_name_are_told_apart(call, tmp_path: Path) -> None:
    folders = [tmp_path / name / "run" for name in "ab"]
    for folder in folders:
        call("run", "fedavg", *FAST, "--out", str(folder))
    code, _, err = call("report", *map(str, folders))
    assert code == 2
    assert "--out" in err
    page = tmp_path / "both.html"
    code, shown, _ = call("report", *map(str, folders), "--out", str(page))
    assert code == 0
    assert all(f"FedAvg ({folder})" in shown for folder in folders)


def test_labels_and_folders_may_hold_anything(call, tmp_path: Path) -> None:
    path, out = tmp_path / "e.toml", tmp_path / "x[/b]"
    path.write_text(
        '[[methods]]\nname = "fedavg"\nlabel = "a [/b] $x_$ [red]"\n[data]\nclients = 6\n'
        '[training]\nrounds = 2\nwork = "steps:1"\n'
    )
    code, shown, err = call("run", str(path), "--quiet", "--out", str(out))
    assert code == 0, err
    assert "a [/b] $x_$ [red]" in shown
    assert (out / "report.html").exists()


def test_diverged_seeds_stay_in_the_table(call, file: Path, tmp_path: Path) -> None:
    code, shown, _ = call(
        "run", str(file), *TINY, "--set", "fedavg.lr=1e38", "--quiet", "--out", str(tmp_path / "x")
    )
    assert code == 0
    (row,) = [line for line in shown.splitlines() if "FedAvg" in line]
    assert "diverged" in row


def test_a_method_whose_state_has_no_model_is_told_so(call, tmp_path: Path) -> None:
    example = ROOT / "examples" / "own_algorithm.py"
    broken = tmp_path / "bare.py"
    text = example.read_text().partition("\nif __name__")[0].partition("\ncheck_algorithm(")[0]
    broken.write_text(text.replace("return HeavyServer(x0, torch.zeros_like(x0))", "return x0"))
    code, out, _ = call("check", f"{broken}:Heavy", "--json")
    assert code == 1
    assert (
        "field x, such as a NamedTuple" in json.loads(out.splitlines()[-1])["failed"]["one round"]
    )


def test_a_folder_is_repeated_in_the_mode_it_has_recorded(call, tmp_path: Path) -> None:
    """What a calibration has chosen, or another version's rules, would else change the bits."""
    small = ["--rounds", "1", "--clients", "3", "--work", "steps:1", "--model", "logistic"]
    first = tmp_path / "first"
    assert call("run", "fedavg", *small, "--quiet", "--out", str(first))[0] == 0
    path = first / "records.json"
    told = json.loads(path.read_text())
    assert told["facts"]["mode"] == "stacked"
    path.write_text(json.dumps(told | {"facts": told["facts"] | {"mode": "loop"}}))

    def mode_of(name: str, *options: str) -> str:
        out = tmp_path / name
        file = str(first / "experiment.toml")
        assert call("run", file, *options, "--quiet", "--out", str(out))[0] == 0
        return str(json.loads((out / "records.json").read_text())["facts"]["mode"])

    assert mode_of("again") == "loop"
    assert mode_of("other", "--set", "training.rounds=2") == "stacked", "another experiment"
    assert mode_of("asked", "--set", "engine.mode=threads") == "threads"
