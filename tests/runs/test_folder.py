"""Folders of results: who may write into one, and what is read from it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from undrift.config.experiment import Experiment
from undrift.results.filenames import EXPERIMENT
from undrift.results.record import Record
from undrift.results.trial import (
    Journal,
    Trial,
)
from undrift.runs.folder import choose_folder, claim, describe, read
from undrift.runs.jobs import Choice
from undrift.runs.spelling import FLAGS, KEYWORDS, Spelling

TRIAL = Trial("FedAvg lr=0.1", "FedAvg", {"lr": 0.1}, seed=3, rounds=5)
RECORD = Record(1, 4, 1.25, 0.5, 100, 200, 8, 160, 0.5)


class TestClaim:
    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    @staticmethod
    def used(folder: Path) -> Path:
        """Return the folder, filled as a run leaves it."""
        folder.mkdir(parents=True)
        describe(folder, Experiment.of({"methods": [{"name": "fedavg"}]}), {"python": "3"})
        journal = Journal(folder, "records", TRIAL, after=None)
        journal.add(RECORD)
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
        assert [trial.records for trial in found.trials] == [[RECORD]]

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
