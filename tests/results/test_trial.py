"""Records on disk: torn lines, full disks, going on, reading back; and whose folder it is."""

from __future__ import annotations

import errno
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import files_up_to
from undrift.config.experiment import Experiment
from undrift.errors import UndriftError
from undrift.results.filenames import EXPERIMENT
from undrift.results.record import PeerRecord, Record, Totals
from undrift.results.trial import (
    Journal,
    RecordingError,
    Trial,
    by_label,
    read_records,
    read_trial,
    read_trials,
    write_result,
)
from undrift.runs.folder import choose_folder, claim, describe, read
from undrift.runs.jobs import Choice
from undrift.runs.spelling import FLAGS, KEYWORDS, Spelling

TRIAL = Trial("FedAvg lr=0.1", "FedAvg", {"lr": 0.1, "rule": "sgd"}, seed=3, rounds=5)


def record(round: int, accuracy: float | None = 0.5) -> Record:
    return Record(round, 4, 1.25, accuracy, 100, 200, 8, 160, 0.5)


def peer_record(round: int) -> PeerRecord:
    return PeerRecord(round, 4, None, 0.5, 10, 0, 8, 160, 0.5, 0.4, 1e-3, None, 3, 3, 1, 32.0, None)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Every line has to be JSON by itself, and the last to be ended."""
    text = path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


class TestJournal:
    def test_a_line_a_round_at_once(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, "a", TRIAL, after=None)
        for number in (1, 2):
            journal.add(record(number))
            assert lines_of(tmp_path / "a.jsonl")[-1] == record(number).to_dict()
        told = json.loads((tmp_path / "a.json").read_text())
        assert told["status"] == "stopped"  # which holds if it is killed now
        assert journal.end("finished", totals=Totals(gradients=16)).records == journal.records
        assert json.loads((tmp_path / "a.json").read_text())["status"] == "finished"

    def test_of_several_processes_one_writes(self, tmp_path: Path) -> None:
        journal = Journal(None, "a", TRIAL, after=None)
        journal.add(record(1))
        assert journal.end("finished").records == [record(1)]
        assert list(tmp_path.iterdir()) == []

    def test_going_on_drops_what_is_repeated(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, "a", TRIAL, after=None)
        for number in (1, 2, 3, 4):
            journal.add(record(number, 0.1))
        again = Journal(tmp_path, "a", TRIAL, after=record(2, 0.2))
        again.add(record(3, 0.3))
        found = [(line["round"], line["accuracy"]) for line in lines_of(tmp_path / "a.jsonl")]
        assert found == [(1, 0.1), (2, 0.2), (3, 0.3)]
        assert [r.round for r in again.records] == [1, 2, 3]

    def test_going_on_after_a_torn_line(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, "a", TRIAL, after=None)
        journal.add(record(1))
        with (tmp_path / "a.jsonl").open("a") as file:
            file.write('{"round": 2, "clie')
        with pytest.warns(UserWarning, match="a.jsonl: line 2 is damaged and left out"):
            Journal(tmp_path, "a", TRIAL, after=record(2)).add(record(3))
        assert [line["round"] for line in lines_of(tmp_path / "a.jsonl")] == [1, 2, 3]

    def test_beginning_anew_forgets_the_old(self, tmp_path: Path) -> None:
        Journal(tmp_path, "a", TRIAL, after=None).add(record(1))
        Journal(tmp_path, "a", TRIAL, after=None)
        assert lines_of(tmp_path / "a.jsonl") == []


class TestFullDisk:
    @pytest.mark.parametrize("beyond", [0, 1, 50])
    def test_what_was_written_stays_valid(self, tmp_path: Path, beyond: int) -> None:
        """The limit falls `beyond` bytes into the second line."""
        journal = Journal(tmp_path, "a", TRIAL, after=None)
        journal.add(record(1))
        path = tmp_path / "a.jsonl"
        before = path.read_bytes()
        with (
            files_up_to(len(before) + beyond),
            pytest.raises(RecordingError, match=r"File too large; the rounds up to 1 are in it"),
        ):
            journal.add(record(2))
        assert path.read_bytes() == before
        journal.add(record(3))
        assert [line["round"] for line in lines_of(path)] == [1, 3]

    def test_no_space_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        journal = Journal(tmp_path, "a", TRIAL, after=None)
        journal.add(record(1))
        real = Path.open

        def opened(path: Path, *arguments: Any, **options: Any) -> Any:
            return HalfFull(path, "ab") if path.suffix == ".jsonl" else real(path, *arguments)

        monkeypatch.setattr(Path, "open", opened)
        with pytest.raises(RecordingError, match="No space left on device; the rounds up to 1"):
            journal.add(record(2))
        monkeypatch.undo()
        assert lines_of(tmp_path / "a.jsonl") == [record(1).to_dict()]
        found = read_trial(tmp_path, "a")
        assert found is not None
        assert (found.status, found.records, found.damaged) == ("stopped", [record(1)], 0)

    def test_a_whole_file_is_the_old_or_the_new(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        write_result(path, "old")
        with files_up_to(10), pytest.raises(RecordingError, match="File too large"):
            write_result(path, "new" * 100)
        assert path.read_text() == "old"
        assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


class HalfFull(io.FileIO):
    """Takes half of what it is given, then nothing."""

    full = False

    def write(self, data: Any) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.full = True
        return super().write(bytes(data)[: len(data) // 2])


class TestReading:
    def test_damaged_lines_are_counted(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        good = [json.dumps(record(1).to_dict()), json.dumps(peer_record(3).to_dict())]
        bad = ['{"round": 2', "", "[]", "3", "null", '"consensus"', '{"round": 1}', "\x00"]
        path.write_text("\n".join([good[0], *bad, good[1]]) + "\n")
        with pytest.warns(UserWarning, match="a.jsonl: 8 lines are damaged and left out"):
            records, damaged = read_records(path)
        assert records == [record(1), peer_record(3)]
        assert [type(each) for each in records] == [Record, PeerRecord]
        assert damaged == 8

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b"\xff\xfe\n" + json.dumps(record(1).to_dict()).encode() + b"\n")
        with pytest.warns(UserWarning, match="line 1 is damaged"):
            assert read_records(path) == ([record(1)], 1)

    def test_no_file_no_records(self, tmp_path: Path) -> None:
        assert read_records(tmp_path / "a.jsonl") == ([], 0)
        assert read_trial(tmp_path, "a") is None

    def test_a_damaged_ending(self, tmp_path: Path) -> None:
        for text in ("{", "{}", '{"label": "a", "no_such": 1}', "[1]"):
            (tmp_path / "a.json").write_text(text)
            with pytest.raises(UndriftError, match="needs to describe a trial and is damaged"):
                read_trial(tmp_path, "a")

    @given(
        st.text(st.characters(codec="utf-8")),
        st.sampled_from(["finished", "diverged", "stopped"]),
        st.lists(st.none() | st.floats(0, 1), max_size=12),
        st.booleans(),
    )
    @settings(max_examples=40, deadline=None)
    def test_a_trial_survives_its_files(
        self, tmp_path_factory: Any, label: str, status: Any, accuracies: list[Any], counted: bool
    ) -> None:
        folder = tmp_path_factory.mktemp("trial")
        journal = Journal(folder, "a", replace(TRIAL, label=label, name="a"), after=None)
        for number, accuracy in enumerate(accuracies, 1):
            journal.add(record(number, accuracy))
        totals = Totals(1, 2, 3, 4, 5.5, 6.5) if counted else None
        facts = {"mode": "loop", "cell": {"method.lr": 0.1, "training.work": "epochs:1"}}
        done = journal.end(status, "why é", totals=totals, model_sha256="ab", facts=facts)
        assert read_trial(folder, "a") == done

    def test_all_of_a_folder(self, tmp_path: Path) -> None:
        for name, seed in (("b", 1), ("a", 0)):
            Journal(tmp_path, name, replace(TRIAL, seed=seed), after=None).end("finished")
        (tmp_path / "environment.json").write_text("{}")  # beside them, without records
        assert [trial.seed for trial in read_trials(tmp_path)] == [0, 1]


class TestTrial:
    def test_the_last_ten_evaluations(self) -> None:
        accuracies = [0.0, None, *(i / 10 for i in range(10)), None]
        trial = replace(TRIAL, records=[record(i + 1, a) for i, a in enumerate(accuracies)])
        assert trial.last == pytest.approx(0.45)
        assert trial.recent("consensus") is None
        assert TRIAL.last == 0.0

    def test_totals_or_sums(self) -> None:
        trial = replace(TRIAL, records=[record(1), record(2)])
        assert trial.total("gradients") == 16
        assert trial.total("simulated_seconds") == 0
        assert trial.megabytes == pytest.approx(600 / 1e6)
        assert replace(trial, totals=Totals(gradients=99)).total("gradients") == 99

    def test_by_label(self) -> None:
        trials = [replace(TRIAL, label=label, seed=s) for s in (0, 1) for label in "ba"]
        assert {k: [t.seed for t in v] for k, v in by_label(trials).items()} == {
            "b": [0, 1],
            "a": [0, 1],
        }


class TestClaim:
    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    @staticmethod
    def used(folder: Path) -> Path:
        """As a run leaves it."""
        folder.mkdir(parents=True)
        describe(folder, Experiment.of({"methods": [{"name": "fedavg"}]}), {"python": "3"})
        journal = Journal(folder, "records", TRIAL, after=None)
        journal.add(record(1))
        journal.end("finished")
        (folder / "records.csv").write_text("round\n1\n")
        return folder

    def test_the_next_number(self, tmp_path: Path) -> None:
        for number in (1, 2):
            folder = choose_folder(None, "fedavg")
            assert folder == Path(f"runs/fedavg-{number}")
            claim(folder)
        assert (tmp_path / "runs" / "fedavg-2").is_dir()

    def test_new_nested_and_empty_folders(self, tmp_path: Path) -> None:
        for _ in range(2):
            claim(tmp_path / "a" / "b")
            assert (tmp_path / "a" / "b").is_dir()

    @pytest.mark.parametrize(
        ("spelling", "searched", "message"),
        [
            (
                FLAGS,
                False,
                r"--out needs a new folder, .*undrift run --resume .*a, or .*--force",
            ),
            (FLAGS, True, r"--out needs .*undrift sweep --resume .*a, or .*--force\.$"),
            (KEYWORDS, False, r"^out needs .*undrift\.run\(resume='.*a'\), or .*force=True\.$"),
            (KEYWORDS, True, r"^out needs .*undrift\.run\(resume='.*a'\), or .*force=True\.$"),
        ],
    )
    def test_nothing_is_overwritten(
        self, tmp_path: Path, spelling: Spelling, searched: bool, message: str
    ) -> None:
        folder = self.used(tmp_path / "a")
        if searched:
            Choice(1, {}).write(folder)
        before = {path: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(ValueError, match=message):
            claim(folder, spelling=spelling)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before

    def test_force_replaces_results(self, tmp_path: Path) -> None:
        folder = self.used(tmp_path / "a")
        claim(folder, force=True)
        assert list(folder.iterdir()) == []

    @pytest.mark.parametrize("name", ["thesis.tex", "notes.json", "deep"])
    def test_force_never_touches_what_is_not_ours(self, tmp_path: Path, name: str) -> None:
        folder = self.used(tmp_path / "a")
        if name == "deep":
            (folder / name).mkdir()
        else:
            (folder / name).write_text("precious")
        before = sorted(folder.iterdir())
        with pytest.raises(ValueError, match=f"--force does not touch {name!r}"):
            claim(folder, force=True, spelling=FLAGS)
        assert sorted(folder.iterdir()) == before

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_text("precious")
        for force in (False, True):
            with pytest.raises(ValueError, match="--out needs a folder, got the file"):
                claim(path, force=force, spelling=FLAGS)
        with pytest.raises(ValueError, match="--out needs a folder that can be made, got"):
            claim(path / "within", spelling=FLAGS)
        assert path.read_text() == "precious"

    def test_a_place_where_one_may_not_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*_: Any, **__: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "mkdir", refused)
        with pytest.raises(ValueError, match=r"can be made, got '.*a': Permission denied\."):
            claim(tmp_path / "a")

    def test_choosing_claims_nothing(self, tmp_path: Path) -> None:
        folder = self.used(tmp_path / "a")
        assert choose_folder(folder, "x") == folder
        assert choose_folder(tmp_path / "b", "x") == tmp_path / "b"
        assert not (tmp_path / "b").exists()


class TestFolder:
    def test_read_back(self, tmp_path: Path) -> None:
        folder = TestClaim.used(tmp_path / "a")
        found = read(folder)
        assert found.experiment == Experiment.read(folder / EXPERIMENT)
        assert found.environment == {"python": "3"}
        assert [trial.records for trial in found.trials] == [[record(1)]]

    def test_records_without_their_experiment(self, tmp_path: Path) -> None:
        folder = TestClaim.used(tmp_path / "a")
        (folder / EXPERIMENT).unlink()
        assert read(folder).experiment is None
        assert len(read(folder).trials) == 1

    def test_no_folder_and_no_records(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="A report needs a folder of results, got"):
            read(tmp_path / "a")
        with pytest.raises(ValueError, match="A report needs records, got none in"):
            read(tmp_path)
