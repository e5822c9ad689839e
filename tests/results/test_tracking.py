"""Trackers: what they write, that they go on where a run does, and how they fail."""

from __future__ import annotations

import csv
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.records import peer_record
from tests.support.system import files_up_to
from undrift.errors import UndriftError
from undrift.results.record import Record, Totals
from undrift.results.tracking import (
    CSV,
    MLflow,
    TensorBoard,
    Tracker,
    Trackers,
    WandB,
    parse,
    services,
)
from undrift.results.trial import Trial

TRIAL = Trial("FedAvg lr=0.1", "FedAvg", {"lr": 0.1, "decay": "step|10"}, seed=3, rounds=4)
ENDED = replace(TRIAL, status="finished", model_sha256="abc")


def record(round: int, **changes: Any) -> Record:
    made = Record(round, 2, 1 / round, 0.25, 10 * round, 7, 5, 50, 0.125)
    return replace(made, **changes)


def follow(tracker: Tracker, *records: Record, trial: Trial = TRIAL, end: bool = True) -> None:
    tracker.begin(trial)
    for each in records:
        tracker.add(each)
    if end:
        tracker.end(ENDED)


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


# CSV


def test_csv_has_all_fields_and_empty_cells_for_none(tmp_path: Path) -> None:
    follow(CSV(tmp_path), record(1), record(2, loss=None, accuracy=None, missed=3))
    header, first, second = rows(tmp_path / "FedAvg_lr=0.1-seed3.csv")
    assert ",".join(header) == (
        "round,clients,loss,accuracy,bytes_up,bytes_down,gradients,samples,seconds,"
        "evaluation_seconds,train_loss,validation_loss,validation_accuracy,simulated_seconds,utilisation,missed,"
        "dropped,sharpness,hessian,cka"
    )
    assert first == ["1", "2", "1.0", "0.25", "10", "7", "5", "50", "0.125", "0.0", *10 * [""]]
    empty = 5 * [""]
    assert second == [
        "2",
        "2",
        "",
        "",
        "20",
        "7",
        "5",
        "50",
        "0.125",
        "0.0",
        *empty,
        "3",
        *4 * [""],
    ]


def test_csv_of_peers_has_their_fields_too(tmp_path: Path) -> None:
    follow(CSV(tmp_path / "one.csv"), peer_record(1))
    header, cells = rows(tmp_path / "one.csv")
    assert dict(zip(header, cells, strict=True))["consensus"] == "0.5"
    assert header[-1] == "sign_matching"
    assert len(header) == 20 + 8


def test_csv_keeps_every_bit_of_a_float(tmp_path: Path) -> None:
    follow(CSV(tmp_path / "one.csv"), record(3))
    assert float(rows(tmp_path / "one.csv")[1][2]) == 1 / 3


def test_csv_line_is_on_disk_before_the_next_round(tmp_path: Path) -> None:
    tracker = CSV(tmp_path / "one.csv")
    tracker.begin(TRIAL)
    for n in (1, 2, 3):
        tracker.add(record(n))
        assert len(rows(tmp_path / "one.csv")) == 1 + n
    tracker.end(ENDED)


def test_csv_goes_on_without_repeated_rounds_or_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    follow(CSV(path), record(1), record(2), record(3, accuracy=0.1), record(4), end=False)
    path.write_text(path.read_text() + "5,2,0.2")  # the kill came here
    follow(CSV(path), record(3, accuracy=0.9), record(4))
    assert [(row[0], row[3]) for row in rows(path)[1:]] == [
        ("1", "0.25"),
        ("2", "0.25"),
        ("3", "0.9"),
        ("4", "0.25"),
    ]
    assert [each.name for each in tmp_path.iterdir()] == ["one.csv"]


def test_csv_half_a_number_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    follow(CSV(path), peer_record(1), peer_record(2))
    path.write_bytes(path.read_bytes()[:-2])  # "...,0.7" of 0.75: as many cells as before
    follow(CSV(path), peer_record(3))
    assert [row[0] for row in rows(path)[1:]] == ["1", "3"]


def test_csv_that_only_begins_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    follow(CSV(path), record(1), record(2))
    before = path.read_bytes()
    follow(CSV(path))
    assert path.read_bytes() == before


def test_csv_has_a_file_for_every_trial_of_a_folder(tmp_path: Path) -> None:
    tracker = CSV(tmp_path / "new" / "folder")
    follow(tracker, record(1))
    follow(tracker, record(1), record(2), trial=replace(TRIAL, seed=4))
    found = {path.name: len(rows(path)) for path in (tmp_path / "new" / "folder").iterdir()}
    assert found == {"FedAvg_lr=0.1-seed3.csv": 2, "FedAvg_lr=0.1-seed4.csv": 3}


def test_csv_of_one_file_refuses_a_second_trial(tmp_path: Path) -> None:
    tracker = CSV(tmp_path / "one.csv")
    follow(tracker, record(1))
    with pytest.raises(ValueError, match=r"one trial, got 'FedAvg_lr=0.1-seed4'; pass a folder"):
        tracker.begin(replace(TRIAL, seed=4))


def test_csv_refuses_a_file_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("name,salary\nAnn,1\n")
    with pytest.raises(ValueError, match=r"CSV needs a new file or one of its own, got .*one\.csv"):
        CSV(path).begin(TRIAL)
    assert path.read_text() == "name,salary\nAnn,1\n"


def test_csv_refuses_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    follow(CSV(path), record(1))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"CSV needs the columns round, .*sign_matching, got"):
        follow(CSV(path), peer_record(2))
    assert path.read_bytes() == before


def test_csv_goes_on_where_metrics_come_in_another_order(tmp_path: Path) -> None:
    """A checkpoint keeps names in the order of the alphabet, so a resumed run has them so."""
    path = tmp_path / "one.csv"
    first = {"loss": {"mean": 1.0, "std": 0.5}, "f1": {"mean": 0.25, "std": 0.125}}
    later = {"f1": {"std": 0.0, "mean": 0.5}, "loss": {"std": 2.0, "mean": 3.0}}
    follow(CSV(path), record(1, client_metrics=first, metrics={"b": 1.0, "a": 2.0}))
    follow(CSV(path), record(2, client_metrics=later, metrics={"a": 3.0, "b": 4.0, "c": 5.0}))
    one, two = csv.DictReader(path.read_text().splitlines())
    assert (one["client_loss_std"], two["client_loss_std"]) == ("0.5", "2.0")
    assert (one["client_f1_mean"], two["client_f1_mean"]) == ("0.25", "0.5")
    assert [two["a"], two["b"], two["c"], one["c"]] == ["3.0", "4.0", "5.0", ""]


def test_csv_without_room_stops_with_the_reason_and_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    tracker = Trackers([CSV(path)])
    tracker.begin(TRIAL)
    tracker.add(record(1))
    before = path.read_bytes()
    with (
        files_up_to(len(before) + 12),
        pytest.raises(UndriftError, match=r"one\.csv could not be written: File too large; the ro"),
    ):
        tracker.add(record(2))
    assert path.read_bytes() == before
    tracker.end(TRIAL)


def test_csv_in_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tracker = CSV(tmp_path / "file" / "folder")
    tracker.begin(TRIAL)
    with pytest.raises(UndriftError, match="could not be written: "):
        tracker.add(record(1))


# TensorBoard


def events(folder: Path) -> list[Any]:
    """Of all event files, the framing read by hand: length, its check, content, its check."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    crc32c = pytest.importorskip("tensorboardX.crc32c").crc32c
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            body = content[at + 12 : at + 12 + length]
            (check,) = struct.unpack_from("<I", content, at + 12 + length)
            crc = crc32c(body)
            assert check == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            found.append(event_pb2.Event.FromString(body))
            at += 16 + length
    return found


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events(folder):
        for value in event.summary.value:
            if not value.HasField("tensor"):
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def texts(folder: Path) -> dict[str, str]:
    values = [value for event in events(folder) for value in event.summary.value]
    return {v.tag: v.tensor.string_val[0].decode() for v in values if v.HasField("tensor")}


def test_tensorboard_has_every_metric_by_round_and_costs_added_up(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    follow(TensorBoard(tmp_path), record(1), record(2, loss=None, accuracy=0.5))
    found = scalars(tmp_path / "FedAvg_lr=0.1-seed3")
    assert found["loss"] == [(1, 1.0)]
    assert found["accuracy"] == [(1, 0.25), (2, 0.5)]
    assert found["bytes_up"] == [(1, 10), (2, 20)]
    assert found["total/bytes_up"] == [(1, 10), (2, 30)]
    assert found["total/bytes"] == [(1, 17), (2, 44)]
    assert found["total/gradients"] == [(1, 5), (2, 10)]
    assert found["total/seconds"] == [(1, 0.125), (2, 0.25)]
    assert not {"round", "total/simulated_seconds", "missed"} & found.keys()


def test_tensorboard_has_the_settings_and_the_end_as_text(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    follow(TensorBoard(tmp_path), record(1))
    found = texts(tmp_path / "FedAvg_lr=0.1-seed3")
    assert "| lr | 0.1 |" in found["settings/text_summary"].splitlines()
    assert "| decay | step&#124;10 |" in found["settings/text_summary"].splitlines()
    assert "| seed | 3 |" in found["settings/text_summary"].splitlines()
    assert "| model_sha256 | abc |" in found["end/text_summary"].splitlines()


def test_tensorboard_is_told_to_forget_what_a_resume_repeats(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    follow(TensorBoard(tmp_path), record(1), record(2), record(3))
    before = replace(TRIAL, records=[record(1)])
    follow(TensorBoard(tmp_path), record(2), trial=before)
    folder = tmp_path / "FedAvg_lr=0.1-seed3"
    assert len(list(folder.iterdir())) == 2
    started = [event for event in events(folder) if event.HasField("session_log")]
    assert [(event.step, event.session_log.status) for event in started] == [(2, 1)]
    assert scalars(folder)["total/bytes"][-1] == (2, 44)


def test_tensorboard_costs_go_on_from_totals(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    before = replace(TRIAL, totals=Totals(bytes_up=1000, gradients=9))
    follow(TensorBoard(tmp_path), record(7, simulated_seconds=2.0), trial=before)
    found = scalars(tmp_path / "FedAvg_lr=0.1-seed3")
    assert found["total/bytes"] == [(7, 1077)]
    assert found["total/gradients"] == [(7, 14)]
    assert found["total/simulated_seconds"] == [(7, 2)]


def test_tensorboard_rounds_are_on_disk_at_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    tracker = TensorBoard(tmp_path)
    tracker.begin(TRIAL)
    for n in (1, 2):
        tracker.add(record(n))
        assert len(scalars(tmp_path / "FedAvg_lr=0.1-seed3")["loss"]) == n
    tracker.end(ENDED)


def test_tensorboard_without_room_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    tracker = Trackers([TensorBoard(tmp_path), CSV(tmp_path)])
    tracker.begin(TRIAL)
    tracker.add(record(1))
    (path,) = (tmp_path / "FedAvg_lr=0.1-seed3").iterdir()
    with (
        files_up_to(path.stat().st_size + 20),
        pytest.warns(UserWarning, match=r"TensorBoard failed in round 2 \(OSError: .*File too"),
    ):
        tracker.add(record(2))
    tracker.add(record(3))
    tracker.end(ENDED)
    assert len(rows(tmp_path / "FedAvg_lr=0.1-seed3.csv")) == 4


# MLflow and W&B: stand-ins that note what they are asked for, and the packages where installed


class Note:
    """Stands for any object: notes calls as (path, arguments, keywords)."""

    def __init__(self, calls: list[Any], path: str = "") -> None:
        self._calls, self._path = calls, path

    def __getattr__(self, name: str) -> Note:
        return Note(self._calls, f"{self._path}.{name}".lstrip("."))

    def __call__(self, *args: Any, **kwargs: Any) -> Note:
        self._calls.append((self._path, args, kwargs))
        return Note(self._calls, self._path)


@pytest.fixture
def mlflow_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            calls.append(("uri", tracking_uri))

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_experiment(self, name: str, artifact_location: str | None) -> str:
            calls.append(("experiment", name, artifact_location))
            return "7"

        def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
            calls.append(("run", experiment, run_name, tags))
            return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

        def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
            calls.extend(("param", run, *each) for each in params)
            calls.extend(("metric", run, name, value, step) for name, value, _, step in metrics)

        def set_tag(self, run: str, name: str, value: str) -> None:
            calls.append(("tag", run, name, value))

        def set_terminated(self, run: str, status: str) -> None:
            calls.append(("status", run, status))

    package, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    package.MlflowClient = Client  # type: ignore[attr-defined]
    entities.Param = entities.Metric = lambda *values: values  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)
    return calls


def test_mlflow_gets_a_run_with_params_metrics_and_status(
    mlflow_calls: list[Any], tmp_path: Path
) -> None:
    follow(MLflow(tmp_path), record(1), record(2, loss=None))
    assert ("run", "7", "FedAvg_lr=0.1-seed3", {"label": "FedAvg lr=0.1"}) in mlflow_calls
    assert ("param", "r1", "lr", "0.1") in mlflow_calls
    assert ("param", "r1", "seed", "3") in mlflow_calls
    metrics = [call[2:] for call in mlflow_calls if call[0] == "metric"]
    assert [each for each in metrics if each[0] == "loss"] == [("loss", 1.0, 1)]
    assert ("total/bytes", 44, 2) in metrics
    assert mlflow_calls[-2:] == [("tag", "r1", "model_sha256", "abc"), ("status", "r1", "FINISHED")]


@pytest.mark.parametrize(
    ("status", "said"),
    [("finished", "FINISHED"), ("diverged", "FAILED"), ("stopped", "KILLED")],
    ids=["finished", "diverged", "stopped"],
)
def test_mlflow_status(mlflow_calls: list[Any], tmp_path: Path, status: Any, said: str) -> None:
    tracker = MLflow(tmp_path)
    tracker.begin(TRIAL)
    tracker.end(replace(TRIAL, status=status))
    assert mlflow_calls[-1] == ("status", "r1", said)


def test_mlflow_stays_in_the_folder_and_sends_no_statistics(
    mlflow_calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    for there in (True, False):
        mlflow_calls.clear()
        module = csv if there else None
        monkeypatch.setattr(services, "import_or_none", lambda name, module=module: module)
        follow(MLflow(tmp_path))
        home = (tmp_path / "mlflow").as_posix()
        uri = f"sqlite:///{home}/mlflow.db" if there else f"file://{home}"
        assert mlflow_calls[0] == ("uri", uri)
        assert mlflow_calls[1] == ("experiment", "undrift", f"file://{home}/artifacts")
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_mlflow_goes_where_the_user_says(
    mlflow_calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://one.example")
    follow(MLflow(tmp_path))
    follow(MLflow(tmp_path, "http://two.example"))
    assert [call[1] for call in mlflow_calls if call[0] == "uri"] == [
        "http://one.example",
        "http://two.example",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["wandb", "wandb:online"])
def test_wandb_is_offline_unless_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", Note(calls))
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    follow(parse(name, tmp_path), record(1), record(2))
    monkeypatch.delenv("WANDB_ERROR_REPORTING")
    (_, _, options), *rest = (call for call in calls if call[0] != "Settings")
    assert options["mode"] == ("online" if name.endswith("online") else "offline")
    assert options["dir"] == str(tmp_path)
    assert options["config"]["lr"] == 0.1
    assert options["name"] == "FedAvg_lr=0.1-seed3"
    (first, second, summary, finish) = rest
    assert first[1][0]["total/bytes"] == 17
    assert second[1][0]["loss"] == 0.5
    assert [first[2], second[2]] == [{"step": 1}, {"step": 2}]
    assert summary[1] == ({"status": "finished", "model_sha256": "abc"},)
    assert (finish[0], finish[2]) == ("init.finish", {"exit_code": 0})


def test_wandb_refuses_another_mode(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="WandB needs mode to be one of offline, online, got 'on'"):
        WandB(tmp_path, "on")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("default")
def test_the_real_mlflow_keeps_what_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    tracker = MLflow(tmp_path)
    follow(tracker, record(1), record(2))
    client: Any = tracker._client
    experiment = client.get_experiment_by_name("undrift")
    (run,) = client.search_runs([experiment.experiment_id])
    assert isinstance(client, mlflow.MlflowClient)
    history = client.get_metric_history(run.info.run_id, "total/bytes")
    assert [(each.step, each.value) for each in history] == [(1, 17.0), (2, 44.0)]
    assert run.data.params["lr"] == "0.1"
    assert run.info.status == "FINISHED"
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow"]


@pytest.mark.filterwarnings("default")
def test_the_real_wandb_writes_an_offline_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    follow(WandB(tmp_path), record(1), record(2))
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    for _ in range(200):  # W&B's own process may write a little after `finish` has returned
        if b"total/bytes" in written.read_bytes():
            return
        time.sleep(0.1)
    pytest.fail(f"{written} has no metrics")


# Choosing and failing


def test_parse_makes_the_trackers_in_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    for name in ("csv", " TensorBoard "):
        follow(parse(name, tmp_path), record(1))
    assert (tmp_path / "FedAvg_lr=0.1-seed3.csv").is_file()
    assert len(list((tmp_path / "tensorboard" / "FedAvg_lr=0.1-seed3").iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tensorbord", "; the nearest is 'tensorboard'."),
        ("wandb:onlin", "; the nearest is 'wandb:online'."),
        ("", "got ''."),
        (":Mine", "got ':Mine'."),
    ],
    ids=["near", "mode", "empty", "no-module"],
)
def test_parse_refuses_unknown_names(text: str, said: str, tmp_path: Path) -> None:
    expected = "A tracker needs to be one of csv, tensorboard, mlflow, wandb, wandb:online or modul"
    with pytest.raises(ValueError, match="A tracker needs") as caught:
        parse(text, tmp_path)
    assert str(caught.value).startswith(expected)
    assert str(caught.value).endswith(said)


OWN = """
class Mine:
    def __init__(self, folder):
        self.path = folder / "mine.txt"
    def begin(self, trial): self.path.write_text(trial.label)
    def add(self, record): self.path.write_text(f"{self.path.read_text()} {record.round}")
    def end(self, trial): self.path.write_text(f"{self.path.read_text()} {trial.status}")
class Half:
    def begin(self, trial): ...
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_tracker.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_tracker"
    sys.modules.pop("own_tracker", None)


def test_a_tracker_of_ones_own(own_module: str, tmp_path: Path) -> None:
    follow(parse(f"{own_module}:Mine", tmp_path), record(1), record(2))
    assert (tmp_path / "mine.txt").read_text() == "FedAvg lr=0.1 1 2 finished"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_tracker:Mime", r"own_tracker has no 'Mime'; the nearest is 'Mine'\."),
        ("own_tracker:Half", "A tracker needs a class with begin, add and end, got"),
        ("no_such_module:Mine", "A tracker needs an importable module, got 'no_such_module': "),
    ],
    ids=["class", "half", "module"],
)
def test_a_bad_tracker_of_ones_own(own_module: str, tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboardX"), ("mlflow", "mlflow"), ("wandb", "wandb")],
    ids=["tensorboard", "mlflow", "wandb"],
)
def test_a_missing_package_is_one_sentence(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [key for key in sys.modules if key.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UndriftError) as caught:
        parse(name, tmp_path)
    assert str(caught.value) == (
        f"Tracking with {name} needs the package {package}, which is not installed; "
        f"pip install 'undrift[{name}]'."
    )


class Failing:
    """Fails at one moment and counts how often it was asked."""

    def __init__(self, moment: str, error: BaseException, *, required: bool = False) -> None:
        self.moment, self.error, self.required, self.asked = moment, error, required, 0

    def _ask(self, moment: str) -> None:
        self.asked += 1
        if moment == self.moment:
            raise self.error

    def begin(self, trial: Trial) -> None:
        self._ask("begin")

    def add(self, record: Record) -> None:
        self._ask("add")

    def end(self, trial: Trial) -> None:
        self._ask("end")


@pytest.mark.parametrize(
    ("moment", "asked", "said"),
    [
        ("begin", 1, "before FedAvg_lr=0.1-seed3"),
        ("add", 2, "in round 1"),
        ("end", 5, "at the end of FedAvg_lr=0.1-seed3"),
    ],
    ids=["begin", "add", "end"],
)
def test_one_that_fails_is_left_out_with_one_warning(moment: str, asked: int, said: str) -> None:
    bad, good = Failing(moment, ConnectionError("away\nfor long")), Failing("never", OSError())
    with pytest.warns(UserWarning, match="Failing failed") as warned:
        follow(Trackers([bad, good]), record(1), record(2), record(3))
    assert [str(each.message) for each in warned] == [
        f"Failing failed {said} (ConnectionError: away for long); the run goes on without it."
    ]
    assert (bad.asked, good.asked) == (asked, 5)


def test_one_that_is_required_stops_the_run() -> None:
    with pytest.raises(OSError, match="full"):
        follow(Trackers([Failing("add", OSError("full"), required=True)]), record(1))


def test_a_user_who_stops_the_run_stops_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        follow(Trackers([Failing("add", KeyboardInterrupt())]), record(1))
