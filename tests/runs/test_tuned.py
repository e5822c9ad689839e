"""Tuned comparisons from the first trial to the sentence."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from undrift.config.experiment import Experiment
from undrift.results.filenames import TUNED, TUNING
from undrift.runs.folder import read
from undrift.runs.result import ExperimentResult

SETTINGS: dict[str, Any] = {
    "seeds": [0, 1],
    "methods": [{"name": "fedavg"}, {"name": "fedavg", "label": "Twin"}],
    "data": {"clients": 3, "test_samples": 60},
    "training": {"rounds": 2, "work": "steps:2", "batch_size": 10},
    "engine": {"mode": "loop"},
    "sweep": {"grid": {"method.lr": [0.03, 0.1]}, "tune": True, "extend": 1},
}


def outcome(result: ExperimentResult) -> Any:
    """Return all that does not depend on the clock."""
    finals = [(t.label, t.seed, t.status, t.model_sha256) for t in result.trials]
    return finals, result.tuning, result.table().partition("Paired")[2]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return ud.run(SETTINGS, out=tmp_path_factory.mktemp("tuned") / "x")


def test_both_stages(result: ExperimentResult) -> None:
    """Tuning has its own seeds and validation samples; final runs have neither."""
    assert result.tuning is not None
    tuning = read(result.folder / TUNING)
    assert {trial.seed for trial in tuning.trials} == {1000}
    assert all(t.recent("validation_accuracy") is not None for t in tuning.trials)
    assert {trial.seed for trial in result.trials} == {0, 1}
    assert all(t.recent("validation_accuracy") is None for t in result.trials)
    assert len(tuning.trials) == len(result.tuning.tried) == 6
    by_label = {trial.label: trial for trial in tuning.trials}
    for each in result.tuning.tried:
        trial = by_label[f"{each.method} lr={each.cell['method.lr']}"]
        assert each.accuracy == trial.recent("validation_accuracy")
    assert [each.outcome for each in result.tuning.tried].count("chosen") == 2


def test_the_choice_is_kept_and_run(result: ExperimentResult) -> None:
    kept = json.loads((result.folder / TUNED).read_text())["cells"]
    chosen = {each.method: each.cell for each in result.tuning.tried if each.outcome == "chosen"}  # type: ignore[union-attr]
    assert {title: cells[0] for title, cells in kept.items()} == chosen
    for trial in result.trials:
        assert trial.settings["lr"] == chosen[trial.facts["title"]]["method.lr"]


def test_methods_are_paired(result: ExperimentResult) -> None:
    """The same method under two names has the same data, cohorts and batches with every seed."""
    assert result.paired is not None
    one, twin = ([t for t in result.trials if t.facts["title"] == x] for x in ("FedAvg", "Twin"))
    assert [t.model_sha256 for t in one] == [t.model_sha256 for t in twin]
    first, second = result.paired.rows
    assert first.difference is None
    assert second.difference is not None
    assert second.difference.tested.plain.mean == 0
    (sentence,) = result.paired.findings
    assert sentence.startswith("No difference between Twin and FedAvg was shown (")
    assert sentence in result.table()


def test_what_has_not_ended_is_left_out_and_named(result: ExperimentResult) -> None:
    *ended, last = result.trials
    stopped = replace(last, status="stopped", records=last.records[:1])
    part = replace(result, trials=[*ended, stopped])
    assert part.paired is not None
    assert part.paired.unfinished == {"Twin": [1]}
    assert [row.mean.count for row in part.paired.rows] == [2, 1]
    (said,) = [text for text in part.paired.remarks if text.startswith("Twin has not ended")]
    assert said.startswith(
        "Twin has not ended with one seed (1), which its mean and its difference"
    )
    assert said in part.table()
    not_begun = replace(result, trials=ended)
    assert not_begun.paired is not None
    assert not_begun.paired.unfinished == {"Twin": [1]}
    assert result.paired is not None
    assert not result.paired.unfinished


def test_a_folder_is_read_back(result: ExperimentResult) -> None:
    assert outcome(read(result.folder)) == outcome(result)


def test_the_page_lists_every_cell_that_was_tried(result: ExperimentResult, tmp_path: Path) -> None:
    assert result.tuning is not None
    result.report(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    table = re.search(r"What was tried.*?</table>", text, re.DOTALL)
    assert table is not None
    cells = [re.sub(r"<[^>]*>", "\n", row) for row in table[0].split("<tr")[2:]]
    assert len(cells) == len(result.tuning.tried)
    for each, row in zip(result.tuning.tried, cells, strict=True):
        assert {each.method, each.text} <= set(map(str.strip, row.split("\n")))
        assert each.accuracy is not None
        assert f"{100 * each.accuracy:.2f}" in row


def test_it_repeats_bit_for_bit(result: ExperimentResult, tmp_path: Path) -> None:
    again = ud.run(result.folder / "experiment.toml", out=tmp_path / "x")
    assert outcome(again) == outcome(result)


class KillError(Exception):
    """Stands for a kill: nobody catches it, so nothing is written after it."""


@pytest.mark.filterwarnings("ignore:.*starts again, since it left no checkpoint")
@pytest.mark.parametrize("after", [1, 3, 9, 13, 17], ids=lambda n: f"record {n}")
def test_it_goes_on_after_a_kill_in_either_stage(
    result: ExperimentResult, tmp_path: Path, after: int
) -> None:
    """Records 1 to 12 are of the first stage, of which 9 to 12 are of the further values."""
    heard = []

    def kill(job: Any, record: Any) -> None:
        heard.append(job.seed)
        if len(heard) == after:
            raise KillError

    with pytest.raises(KillError):
        ud.run(SETTINGS, out=tmp_path / "x", on_record=kill)
    assert (heard[-1] == 1000) == (after <= 12)
    assert outcome(ud.run(resume=tmp_path / "x")) == outcome(result)


def test_only_runs_a_part_and_the_rest_later(result: ExperimentResult, tmp_path: Path) -> None:
    part = ud.run(SETTINGS, out=tmp_path / "x", only="twin")
    assert {trial.facts["title"] for trial in part.trials} == {"Twin"}
    assert part.tuning is not None
    assert list(part.tuning.methods) == ["Twin"]
    assert outcome(ud.run(resume=tmp_path / "x")) == outcome(result)


def test_only_without_tuning(tmp_path: Path) -> None:
    plain = {**SETTINGS, "sweep": {}}
    part = ud.run(plain, out=tmp_path / "x", only=["FedAvg"])
    assert [t.label for t in part.trials] == ["FedAvg"] * 2 + ["Twin"] * 2  # both are fedavg
    part = ud.run(plain, out=tmp_path / "y", only=["Twin"])
    assert [t.label for t in part.trials] == ["Twin"] * 2
    assert len(ud.run(resume=tmp_path / "y").trials) == 4
    with pytest.raises(ValueError, match="only needs a method of the experiment, got 'fedav'; the"):
        ud.run(plain, out=tmp_path / "z", only="fedav")


def test_halving_says_what_it_cut(tmp_path: Path) -> None:
    sweep = {"grid": {"method.lr": [0.01, 0.03, 0.1]}, "tune": True, "extend": 0, "halving": True}
    settings = {**SETTINGS, "methods": [{"name": "fedavg"}], "sweep": sweep}
    result = ud.run(settings, out=tmp_path / "x")
    assert result.tuning is not None
    rows = [(each.rounds, each.outcome) for each in result.tuning.tried]
    assert sorted(rows) == [
        (1, "cut after one round"),
        (1, "went on"),
        (1, "went on"),
        (2, ""),
        (2, "chosen"),
    ]
    assert "Halving cut the worse half of the cells after 1 round." in result.table()
    assert result.paired is not None
    assert result.paired.tried_table().rows[0][2] == "1"


def test_a_method_that_only_diverges(tmp_path: Path) -> None:
    methods = [{"name": "fedavg"}, {"name": "fedavg", "label": "Wild"}]
    grid = {"methods[0].lr": [0.03, 0.1], "Wild.lr": [1e30, 1e31]}
    sweep = {"grid": grid, "tune": True, "extend": 0}
    result = ud.run({**SETTINGS, "methods": methods, "sweep": sweep}, out=tmp_path / "x")
    assert {trial.facts["title"] for trial in result.trials} == {"FedAvg"}
    said = "Wild diverged in all two cells that were tried, so it has no runs to compare."
    assert said in result.table()
    assert result.paired is not None
    assert result.paired.table().rows[1][:3] == ["Wild", "", "diverged"]
    result.report()
    assert said in (tmp_path / "x" / "report.html").read_text()
    nothing = {**sweep, "grid": {"method.lr": [1e30, 1e31]}}
    with pytest.raises(ud.UndriftError, match="got divergence in every cell of every method"):
        ud.run({**SETTINGS, "methods": methods[:1], "sweep": nothing}, out=tmp_path / "y")


def test_one_seed_shows_nothing(tmp_path: Path) -> None:
    result = ud.run({**SETTINGS, "seeds": [5]}, out=tmp_path / "x")
    assert "An interval needs two seeds or more, got one" in result.table()
    assert result.paired is not None
    assert result.paired.rows[0].mean.low is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sweep": {"tune": True}}, r"sweep\.tune needs values to choose from, got none"),
        ({"sweep": {"halving": True}}, r"sweep\.halving needs sweep\.tune = true beside it"),
        ({"tune_seeds": [1, 7]}, r"sweep\.tune_seeds needs seeds beside \[0, 1\], got \[1\]"),
        ({"grid": {"method.lr": [0.1]}}, "Tuning FedAvg needs at least two cells, got 1; name two"),
        ({"grid": {"method.mu": [0.1, 1]}}, "FedAvg has no 'mu'"),
        ({"grid": {"data.clients": [3, 4]}}, r"sweep\.tune needs fields of methods or of training"),
        ({"grid": {"method.lr": {"low": 0.1, "high": 1}}}, r"sweep\.tune needs lists of values"),
        ({"validation": 0.0001}, "validation needs a share that takes a sample of some client"),
        ({"data": {"validation": 0.1}}, r"sweep\.tune needs no data\.validation, got 0\.1"),
        ({"engine": {"processes": 2}}, r"sweep\.tune needs one process a run"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_what_cannot_be_tuned(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    own = {name: value for name, value in changes.items() if name in SETTINGS}
    sweep = {**SETTINGS["sweep"], **{k: v for k, v in changes.items() if k not in SETTINGS}}
    with pytest.raises(ValueError, match=message) as error:
        ud.run({**SETTINGS, "sweep": sweep, **own}, out=tmp_path / "x")
    assert str(error.value).count("\n") == 0
    assert not (tmp_path / "x").exists()


def test_a_search_does_not_tune(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="search needs a sweep without tune"):
        ud.run(SETTINGS, out=tmp_path / "x", search=3)


def test_a_folder_is_replaced_with_its_tuning(result: ExperimentResult, tmp_path: Path) -> None:
    ud.run(SETTINGS, out=tmp_path / "x")
    with pytest.raises(ValueError, match="needs a new folder"):
        ud.run(SETTINGS, out=tmp_path / "x")
    assert outcome(ud.run(SETTINGS, out=tmp_path / "x", force=True)) == outcome(result)


def test_files_without_tuning_are_as_before() -> None:
    plain = Experiment.of({**SETTINGS, "sweep": {"grid": {"method.lr": [0.1]}}})
    assert plain.values()["sweep"] == {"grid": {"method.lr": [0.1]}}
    tuned = Experiment.of(SETTINGS)
    assert Experiment.of(tuned.values()) == tuned
    assert not tuned.changed({"sweep.tune": False}).sweep.tune
