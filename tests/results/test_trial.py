"""Records on disk: torn lines, full disks, going on, reading back."""

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

from tests.support.records import peer_record
from tests.support.system import files_up_to
from undrift.errors import UndriftError
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

TRIAL = Trial("FedAvg lr=0.1", "FedAvg", {"lr": 0.1, "rule": "sgd"}, seed=3, rounds=5)
PEER_RECORD = peer_record(3, accuracy=0.5, node_accuracy=0.4, sign_matching=None)


def record(round: int, accuracy: float | None = 0.5) -> Record:
    return Record(round, 4, 1.25, accuracy, 100, 200, 8, 160, 0.5)


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

    def test_going_on_keeps_what_is_repeated(self, tmp_path: Path) -> None:
        """A kill came after round 4, the last checkpoint is that of round 2."""
        journal = Journal(tmp_path, "a", TRIAL, after=None)
        for number in (1, 2, 3, 4):
            journal.add(record(number, 0.1))
        again = Journal(tmp_path, "a", TRIAL, after=record(2, 0.2))
        found = [(line["round"], line["accuracy"]) for line in lines_of(tmp_path / "a.jsonl")]
        assert found == [(1, 0.1), (2, 0.2), (3, 0.1), (4, 0.1)]
        assert [r.round for r in again.records] == [1, 2, 3, 4]
        assert again.round == 4

    def test_records_behind_a_gap_are_run_again(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, "a", TRIAL, after=None)
        for number in (1, 3, 4, 6):
            journal.add(record(number))
        again = Journal(tmp_path, "a", TRIAL, after=record(3))
        assert [r.round for r in again.records] == [1, 3, 4]

    def test_going_on_after_a_torn_line(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, "a", TRIAL, after=None)
        journal.add(record(1))
        with (tmp_path / "a.jsonl").open("a") as file:
            file.write('{"round": 2, "clie')
        with pytest.warns(UserWarning, match="a.jsonl: line 2 is damaged and left out"):
            Journal(tmp_path, "a", TRIAL, after=record(2)).add(record(3))
        assert [line["round"] for line in lines_of(tmp_path / "a.jsonl")] == [1, 2, 3]

    def test_beginning_anew_moves_the_old_aside(self, tmp_path: Path) -> None:
        for accuracy in (0.1, 0.2):
            Journal(tmp_path, "a", TRIAL, after=None).add(record(1, accuracy))
        (tmp_path / "a.csv").write_text("round\n1\n")
        journal = Journal(tmp_path, "a", TRIAL, after=None)
        assert journal.moved == "a.earlier-2.jsonl"
        assert lines_of(tmp_path / "a.jsonl") == []
        moved = [lines_of(tmp_path / f"a.earlier-{n}.jsonl")[0]["accuracy"] for n in (1, 2)]
        assert moved == [0.1, 0.2]
        assert (tmp_path / "a.earlier-2.csv").read_text() == "round\n1\n"
        assert Journal(tmp_path, "a", TRIAL, after=None).moved is None, "nothing was recorded"
        assert [trial.name for trial in read_trials(tmp_path)] == ["a"]


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
        good = [json.dumps(record(1).to_dict()), json.dumps(PEER_RECORD.to_dict())]
        bad = ['{"round": 2', "", "[]", "3", "null", '"consensus"', '{"round": 1}', "\x00"]
        path.write_text("\n".join([good[0], *bad, good[1]]) + "\n")
        with pytest.warns(UserWarning, match="a.jsonl: 8 lines are damaged and left out"):
            records, damaged = read_records(path)
        assert records == [record(1), PEER_RECORD]
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
