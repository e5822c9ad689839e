"""Experiments from Python: `undrift.run` does what the command does, and nothing of a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from undrift.cli import main as cli
from undrift.config.experiment import Experiment
from undrift.runs import build
from undrift.runs.folder import read
from undrift.runs.jobs import Job

SETTINGS: dict[str, Any] = {
    "seeds": [0, 1],
    "methods": [{"name": "fedavg"}, {"name": "scaffold"}],
    "data": {"clients": 4, "test_samples": 50},
    "training": {"rounds": 2, "work": "steps:2"},
}
SINGLE = {**SETTINGS, "seeds": [0], "methods": [{"name": "fedavg"}]}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ud.ExperimentResult:
    return ud.run(SETTINGS, out=tmp_path_factory.mktemp("results") / "x")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["undrift", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def without_times(trial: ud.results.trial.Trial) -> dict[str, Any]:
    """Return everything of a trial but how long it took."""
    timeless = {"seconds": 0, "evaluation_seconds": 0}
    records = [{**record.to_dict(), **timeless} for record in trial.records]
    return {
        "records": records,
        **{name: getattr(trial, name) for name in ("label", "seed", "status", "model_sha256")},
        "settings": trial.settings,
        "facts": trial.facts,
    }


def test_it_gives_what_the_command_gives(
    result: ud.ExperimentResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / "e.toml", tmp_path / "by-command"
    file.write_text(Experiment.of(SETTINGS).to_toml())
    assert command(monkeypatch, "run", str(file), "--out", str(out), "--quiet") == 0
    by_command = read(out)
    assert by_command.experiment == result.experiment
    assert len(result.trials) == 4
    assert all(trial.model_sha256 for trial in result.trials)
    expected = [without_times(trial) for trial in by_command.trials]
    assert [without_times(trial) for trial in result.trials] == expected
    assert [without_times(trial) for trial in read(result.folder).trials] == expected


def test_a_comparison_calls_simulate_once_for_each_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, simulate = [], build.simulate

    def counted(**arguments: Any) -> ud.Run:
        stack = [Path(frame.filename) for frame in traceback.extract_stack()]
        calls.append([path for path in stack if "undrift" in path.parts and "src" in path.parts])
        return simulate(**arguments)

    monkeypatch.setattr(build, "simulate", counted)
    few = ["--rounds", "1", "--clients", "4", "--work", "steps:1", "--quiet"]
    out = ["--out", str(tmp_path / "x")]
    assert command(monkeypatch, "compare", "fedavg", "scaffold", "--seeds", "2", *few, *out) == 0
    assert len(calls) == 4
    calls.clear()
    assert command(monkeypatch, "run", "fedavg", *few, "--out", str(tmp_path / "y")) == 0
    (files,) = calls
    assert list(dict.fromkeys(path.name for path in files)) == [
        "main.py",
        "run.py",
        "runner.py",
        "run_job.py",
        "build.py",
    ]


def test_runs_need_no_terminal() -> None:
    code = (
        "import sys, undrift as ud\nud.run, ud.ExperimentResult\n"
        "assert 'undrift.runs.runner' in sys.modules\n"
        "print(sorted({'typer', 'rich', 'click'} & {n.partition('.')[0] for n in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_record_is_told_when_it_is_written(tmp_path: Path) -> None:
    heard = []

    def on_record(job: Job, record: ud.Record) -> None:
        lines = (tmp_path / "x" / f"{job.name}.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["round"] == record.round
        heard.append((job.label, job.seed, record.round))

    ud.run(Experiment.of(SETTINGS), out=tmp_path / "x", on_record=on_record)
    assert heard == [
        (label, seed, round)
        for label in ("FedAvg", "Scaffold")
        for seed in (0, 1)
        for round in (1, 2)
    ]


def test_a_result_shows_itself(result: ud.ExperimentResult, tmp_path: Path) -> None:
    table = result.table()
    assert "FedAvg" in table
    assert "accuracy %" in table
    assert "mean of the evaluations on the test set in the last ten rounds" in table
    assert repr(result) == f"{table}\nRecords and plots: {result.folder}"
    assert "<td>Scaffold</td>" in result._repr_html_()
    frame = result.frame()
    assert len(frame) == 2 * 2 * 2
    assert list(frame.columns[:3]) == ["label", "method", "seed"]
    assert len(result.plot().lines) == 4
    page = result.report(tmp_path / "page.html")
    assert "Scaffold" in page.read_text()
    assert f"undrift run {result.folder / 'experiment.toml'}" in page.read_text()
    assert not (result.folder / "report.html").exists(), "a page is written when it is asked for"


def test_a_sweep_shows_the_best_cell_and_holds_all(tmp_path: Path) -> None:
    swept = {**SINGLE, "sweep": {"grid": {"method.lr": [0.01, 0.1]}}}
    result = ud.run(swept, out=tmp_path / "x")
    assert [trial.label for trial in result.trials] == ["FedAvg lr=0.01", "FedAvg lr=0.1"]
    (row,) = [line for line in result.table().splitlines() if "FedAvg" in line]
    best = max(result.trials, key=lambda trial: trial.last)
    assert f" {best.settings['lr']} " in row
    assert len(result.plot().lines) == 1


def test_without_out_folders_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ud.run(SINGLE).folder == Path("runs/experiment-1")
    file = tmp_path / "mine.toml"
    file.write_text(Experiment.of(SINGLE).to_toml())
    assert ud.run("mine.toml").folder == Path("runs/mine-1")
    with pytest.raises(ValueError, match=r"^out needs a new folder, .* with force=True\.$"):
        ud.run(SINGLE, out="runs/mine-1")
    Path("runs/mine-1/notes.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"\(force does not touch 'notes.txt'\)\.$"):
        ud.run(SINGLE, out="runs/mine-1", force=True)
    Path("runs/mine-1/notes.txt").unlink()
    assert ud.run(SINGLE, out="runs/mine-1", force=True).folder == Path("runs/mine-1")


def test_an_interrupted_experiment_goes_on(tmp_path: Path) -> None:
    def interrupt(job: Job, record: ud.Record) -> None:
        if job.label == "Scaffold":
            raise KeyboardInterrupt

    out = tmp_path / "x"
    with pytest.raises(KeyboardInterrupt, match=r"undrift\.run\(resume="):
        ud.run(SETTINGS, out=out, on_record=interrupt)
    assert [trial.status for trial in read(out).trials] == ["finished", "finished", "stopped"]
    heard = []
    result = ud.run(resume=out, on_record=lambda job, record: heard.append(job.label))
    assert heard == ["Scaffold"] * 3, "what is done is not run again"
    assert [trial.status for trial in result.trials] == ["finished"] * 4
    assert result.environment["command"] is None


def test_an_experiment_does_not_go_on_with_another_part_of_the_data(tmp_path: Path) -> None:
    out = tmp_path / "x"
    (trial,) = ud.run(SINGLE, out=out).trials
    assert trial.facts["data"] == {"train": 1438, "test": 359}
    description = json.loads((out / "records.json").read_text())
    description["facts"]["data"]["train"] = 2000
    (out / "records.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match=r"needs the data that records was run with, 2,000 .*got"):
        ud.run(resume=out)
    del description["facts"]["data"]  # as it was written before there were such counts
    (out / "records.json").write_text(json.dumps(description))
    assert ud.run(resume=out).trials[0].ended


def test_a_divergence_is_a_result(tmp_path: Path) -> None:
    wild = {**SINGLE, "methods": [{"name": "fedavg", "lr": 1e38}]}
    (trial,) = ud.run(wild, out=tmp_path / "x").trials
    assert trial.status == "diverged"


def test_processes_are_started(tmp_path: Path) -> None:
    script = tmp_path / "several.py"
    settings = {**SINGLE, "engine": {"processes": 2, "mode": "loop"}}
    script.write_text(
        "import undrift as ud\n"
        "if __name__ == '__main__':\n"
        f"    (trial,) = ud.run({settings!r}, out={str(tmp_path / 'x')!r}).trials\n"
        "    print(trial.status, trial.facts['processes'], len(trial.records))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=200
    )
    assert done.stdout.split() == ["finished", "2", "2"], done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "an experiment, or resume=FOLDER to go on, got neither"),
        ({"experiment": SINGLE, "resume": "x"}, "resume=FOLDER to go on, got both"),
        ({"experiment": 3}, "the path of a TOML file, got 3"),
        ({"experiment": "nowhere.toml"}, "a file that is there, got 'nowhere.toml'"),
        ({"resume": "nowhere"}, "^resume needs a folder of results with its experiment.toml"),
        ({"experiment": {**SINGLE, "model": {"name": "mlpp"}}}, "nearest is 'mlp'"),
        ({"experiment": SINGLE, "track": "tensorbord"}, "nearest is 'tensorboard'"),
        (
            {
                "experiment": {
                    **SINGLE,
                    "methods": [{"name": "moon"}],
                    "model": {"name": "logistic"},
                }
            },
            "MOON",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=expected):
        ud.run(**arguments)
    assert not list(tmp_path.iterdir())


def test_checkpoints_of_another_run_leave_the_folder_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, out = str(tmp_path / "saved"), tmp_path / "x"
    run = ["run", "fedavg", "--rounds", "2", "--clients", "4", "--work", "steps:1", "--quiet"]
    assert command(monkeypatch, *run, "--checkpoint", saved, "--out", str(out)) == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    other = ["--lr", "0.2", "--resume", saved]
    assert command(monkeypatch, *run, *other, "--out", str(out)) == 1
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert command(monkeypatch, *run, *other, "--out", str(tmp_path / "never")) == 1
    assert not (tmp_path / "never").exists()


def test_nobody_shares_a_model() -> None:
    experiment = Experiment.of(SINGLE)
    first, again = (build.build_model(experiment.model, experiment.data, 0) for _ in range(2))
    next(first.parameters()).data.zero_()
    assert next(again.parameters()).abs().sum() > 0
