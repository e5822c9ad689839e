"""Papers run, kept, gone on with and shown, from Python and on the command line."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.papers.example import TEXT, shipped
from tests.support.commands import undrift
from undrift.data import load
from undrift.papers import catalogue, compare
from undrift.papers.find import find_results, find_sides
from undrift.papers.judge import judge
from undrift.papers.run import results_file, results_folder, run_paper
from undrift.papers.scales import WHOLE, plan
from undrift.papers.store import read_stored, stored_panel
from undrift.papers.store import shipped as shipped_path
from undrift.results.metrics import ema
from undrift.results.record import Record
from undrift.results.trial import Journal, Trial
from undrift.runs import build
from undrift.runs import load as load_module
from undrift.runs.folder import read

__all__ = ["shipped"]


def test_results_are_the_records_under_the_document_s_protocol(shipped: Path) -> None:
    """The accuracy of EMA 0.9 at the end, by hand from the records."""
    entry = catalogue.find("fedacg/table9")
    stored = run_paper(entry, "small", seeds=2)
    trials = read(results_folder(entry, "small") / "iid").trials
    by_hand = {
        (trial.facts["title"], trial.seed): 100
        * ema([r.accuracy for r in trial.records if r.accuracy is not None])[-1]
        for trial in trials
    }
    ours = {(t.method, t.seed): t.values["accuracy"] for t in stored.trials if t.panel == "iid"}
    assert ours == pytest.approx(by_hand)
    row = compare.rows(entry.paper, stored)[0]
    assert row.ours is not None
    seeds = [by_hand["FedAvg", 0], by_hand["FedAvg", 1]]
    assert row.ours.value.number == pytest.approx(sum(seeds) / 2)
    assert row.difference == pytest.approx(sum(seeds) / 2 - 80.5)
    halfway = compare.rows(entry.paper, stored)[2]  # round 2 of 4 is round 1 of 2
    assert halfway.located is not None
    assert (halfway.located.at, halfway.difference) == (1, None)
    first, second = judge(entry.paper, stored)
    assert first.published is True
    assert first.without == ["FedProx (Dir 0.3)"]
    assert second.verdict == "not comparable"  # a bound of another network's accuracy


def test_panels_are_run_one_by_one(
    shipped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one call has run of its panel is kept by the call for another one."""
    entry = catalogue.find("fedacg/table9")
    command = ("papers", "run", "fedacg/table9", "--scale", "small", "--seeds", "1", "--panel")
    code, _, err = undrift(capsys, monkeypatch, *command, "Dir 0.4")
    assert (code, "--panel" in err, "Dir 0.3" in err) == (2, True, True)
    assert undrift(capsys, monkeypatch, *command, "Dir 0.3")[0] == 0
    part = find_results(entry)
    assert part is not None
    assert {trial.panel for trial in part.trials} == {"Dir 0.3"}
    assert undrift(capsys, monkeypatch, *command, "iid")[0] == 0
    both = find_results(entry)
    assert both is not None
    assert {trial.panel for trial in both.trials} == {"iid", "Dir 0.3"}
    assert [t for t in both.trials if t.panel == "Dir 0.3"] == part.trials
    assert both.trials == run_paper(entry, "small").trials


def ship(entry: catalogue.PaperEntry, scale: str) -> None:
    """Make the results of the current folder the package's."""
    path = shipped_path(entry, scale)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(results_file(entry, scale).read_bytes())


def test_a_run_of_one_panel_keeps_the_package_s_others(shipped: Path, tmp_path: Path) -> None:
    """On another machine, whose folder has no results: the file may replace the package's."""
    entry = catalogue.find("fedacg/table9")
    whole = run_paper(entry, "small", seeds=2)
    ship(entry, "small")
    part = run_paper(entry, "small", seeds=2, panels=["iid"], out=tmp_path / "other")
    assert [panel.panel for panel in part.panels] == ["iid", "Dir 0.3"]
    assert sorted(part.trials, key=str) == sorted(whole.trials, key=str)
    assert read_stored(results_file(entry, "small", tmp_path / "other")) == part
    strangers = run_paper(entry, "small", seeds=[7], panels=["iid"], out=tmp_path / "seeds")
    assert {(trial.panel, trial.seed) for trial in strangers.trials} == {("iid", 7)}


def test_other_seeds_are_compared_with_the_package_s_verdicts(
    shipped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = catalogue.find("fedacg/table9")
    run_paper(entry, "small", seeds=2)
    ship(entry, "small")
    command = ("papers", "run", "fedacg/table9", "--scale", "small", "--out", "other", "--seeds")
    code, out, _ = undrift(capsys, monkeypatch, *command, "10,12")
    assert code == 0
    (side,) = find_sides(entry, "small", Path("other"))
    assert side.stored is not None
    assert side.stored.seeds == [10, 12]
    verdicts = [each.verdict for each in judge(entry.paper, find_results(entry, "small"))]
    assert side.package is not None
    assert [each.verdict for each in side.package] == verdicts
    same = sum(a.verdict == b for a, b in zip(side.judged, verdicts, strict=True))
    assert f"the package's verdict in {same} of {len(verdicts)} claims" in out
    changed = replace(side, judged=[replace(side.judged[0], verdict="shown"), *side.judged[1:]])
    assert changed.other_verdicts[:1] == [(1, "shown", verdicts[0])]
    for text in ("0", "a", "1,", "-1"):
        code, _, err = undrift(capsys, monkeypatch, *command, text)
        assert code == 2
        assert "--seeds needs a number >= 1, or seeds such as 10,11,12" in " ".join(err.split())


def test_a_second_start_keeps_what_is_finished_and_adds_seeds(shipped: Path) -> None:
    entry = catalogue.find("fedacg/table9")
    run_paper(entry, "small")
    first = results_folder(entry, "small") / "iid" / "fedavg-seed0.jsonl"
    before = first.stat().st_mtime_ns, first.read_bytes()
    stored = run_paper(entry, "small", seeds=2)
    assert (first.stat().st_mtime_ns, first.read_bytes()) == before
    assert {trial.seed for trial in stored.trials} == {0, 1}
    again = run_paper(entry, "small")
    assert again.trials == stored.trials  # Fewer seeds lose nothing.
    assert again.planned == len(again.trials)


def halve_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave half of the training samples of digits on this machine."""
    whole = load("digits")
    half = tuple(each[: len(each) // 2] for each in whole.stored_train)
    smaller = replace(whole, stored_train=half)
    monkeypatch.setattr("undrift.runs.load.load", lambda name, folder: smaller)
    load_module._load.cache_clear()
    build.build_clients.cache_clear()


@pytest.fixture
def whole_data_again() -> Iterator[None]:
    yield
    load_module._load.cache_clear()
    build.build_clients.cache_clear()


@pytest.mark.usefixtures("whole_data_again")
def test_results_of_another_part_of_the_data_are_refused(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = catalogue.find("fedacg/table9")
    whole = run_paper(entry, "small")
    assert {panel.samples for panel in whole.panels} == {1438}
    halve_the_data(monkeypatch)
    with pytest.raises(ValueError, match="1,438 training and 359 test samples, got 719 training"):
        run_paper(entry, "small")
    half = run_paper(entry, "small", force=True)
    assert {panel.samples for panel in half.panels} == {719}
    assert half.trials != whole.trials


@pytest.mark.usefixtures("whole_data_again")
def test_a_part_of_the_data_is_judged_by_what_the_trials_had(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later they are complete, or another part is there; results of before say what they had."""
    monkeypatch.setitem(WHOLE, "digits", 1438)
    entry = catalogue.find("fedacg/table9")
    (run, _) = plan(entry.paper, "full")
    trial = Trial("FedAvg", "FedAvg", {}, 0, 4, facts={"data": {"train": 719, "test": 359}})
    part = stored_panel(run, [trial])
    assert (part.same, part.stand_in) == (False, "719 of 1,438 training samples were at hand")
    halve_the_data(monkeypatch)
    complete = replace(trial, facts={"data": {"train": 1438, "test": 359}})
    assert stored_panel(run, [complete]).same
    assert not stored_panel(run, [complete, trial]).same
    assert not stored_panel(run, [replace(trial, facts={})]).same  # what is here now


def test_seeds_are_added_to_a_panel_with_a_single_method(shipped: Path) -> None:
    shipped.write_text(
        TEXT.replace('["FedAvg", "FedACG"]', '["FedACG"]').replace(
            "values = { FedAvg = 80.5, FedACG = 82.0 }\ndeviation = { FedAvg = 0.3 }",
            "values = { FedACG = 82.0 }",
        )
    )
    catalogue._read.cache_clear()
    entry = catalogue.find("fedacg/table9")
    first = run_paper(entry, "small")
    second = run_paper(entry, "small", seeds=2)
    assert [t for t in second.trials if t.seed == 0] == first.trials
    assert {t.seed for t in second.trials if t.panel == "iid"} == {0, 1}


def test_an_interrupt_keeps_what_other_panels_have(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = catalogue.find("fedacg/table9")
    complete = run_paper(entry, "small")

    def interrupted(*arguments: object, **options: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("undrift.runs.runner.run_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_paper(entry, "small", seeds=2)
    stored = find_results(entry)
    assert stored is not None
    assert stored.trials == complete.trials
    assert stored.planned == 2 * len(complete.trials)


@pytest.mark.long
def test_side_by_side_gives_the_same_values(shipped: Path, tmp_path: Path) -> None:
    entry = catalogue.find("fedacg/table9")
    one = run_paper(entry, "small", out=tmp_path / "one")
    two = run_paper(entry, "small", jobs=2, out=tmp_path / "two")
    assert one.trials == two.trials


def test_results_of_another_version_of_the_file_are_refused(
    shipped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = catalogue.find("fedacg/table9")
    run_paper(entry, "small")
    shipped.write_text(TEXT.replace("lr = 0.1", "lr = 0.2"), encoding="utf-8")
    catalogue._read.cache_clear()
    code, _, err = undrift(capsys, monkeypatch, "papers", "show", "fedacg/table9")
    assert code == 2
    assert "needs results of this version of fedacg/table9, got those of another" in " ".join(
        err.split()
    )
    code, _, err = undrift(capsys, monkeypatch, "papers", "run", "fedacg/table9")
    assert code == 2
    assert "--force" in err
    assert undrift(capsys, monkeypatch, "papers", "run", "fedacg/table9", "--force")[0] == 0
    first = results_folder(entry, "small") / "iid" / "fedavg-seed0.jsonl"
    before = first.stat().st_mtime_ns
    run_paper(entry, "small", force=True)
    assert first.stat().st_mtime_ns == before  # Results of this version are not replaced.


def test_corrected_numbers_and_claims_keep_results(shipped: Path) -> None:
    entry = catalogue.find("fedacg/table9")
    run_paper(entry, "small")
    shipped.write_text(TEXT.replace("80.5", "80.6").replace("2.0\n", "3.0\n"), encoding="utf-8")
    catalogue._read.cache_clear()
    assert find_results(entry) is not None


def test_the_package_s_own_results_are_shown_where_the_user_has_none(shipped: Path) -> None:
    entry = catalogue.find("fedacg/table9")
    stored = run_paper(entry, "small", out=Path("elsewhere"))
    assert find_results(entry) is None
    (shipped.parent / "results").mkdir()
    stored.write(shipped.parent / "results" / "table9.small.json")
    assert find_results(entry) == stored


def test_own_results_are_shown_first_and_say_so(
    shipped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = catalogue.find("fedacg/table9")
    (shipped.parent / "results").mkdir()
    tuned = shipped.parent / "results" / "table9.small.tuned.json"
    run_paper(entry, "small", out=Path("elsewhere"), tune=True).write(tuned)
    run_paper(entry, "small")
    code, out, _ = undrift(capsys, monkeypatch, "papers", "show", "fedacg/table9")
    assert code == 0
    said = " ".join(out.split())
    first = "Results: first yours, at the printed step size; then the package's, at its tuned step"
    assert first in said
    own, package = said.index("Ours (runs/papers"), said.index("Ours (the package)")
    assert own < package


def test_a_folder_of_data_sets_can_be_named(
    shipped: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UNDRIFT_DATA", "elsewhere")  # which is put back after the test
    code, _, err = undrift(capsys, monkeypatch, "papers", "list", "--data-dir", "nowhere")
    assert code == 2
    assert "--data-dir needs a folder of data sets, got 'nowhere'" in " ".join(err.split())
    for command in (["list"], ["run", "fedacg/table9", "--scale", "glance", "--quiet"]):
        code, _, err = undrift(capsys, monkeypatch, "papers", *command, "--data-dir", str(tmp_path))
        assert code == 0, err
        assert os.environ["UNDRIFT_DATA"] == str(tmp_path)
        monkeypatch.setenv("UNDRIFT_DATA", "elsewhere")


def test_list_and_show_as_json(
    shipped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = undrift(capsys, monkeypatch, "papers", "list", "--json")
    (listed,) = json.loads(out)
    assert (code, err) == (0, "")
    expected = {"document": "fedacg", "item": "Table 9", "file": "fedacg/table9.toml"}
    assert {name: listed[name] for name in expected} == expected
    assert listed["published"] == 7
    code, out, _ = undrift(
        capsys, monkeypatch, "papers", "run", "fedacg/table9", "--scale", "glance", "--json"
    )
    assert code == 0
    shown = json.loads(out)
    code, out, err = undrift(capsys, monkeypatch, "papers", "show", "fedacg/table9", "--json")
    assert {**json.loads(out), "source": None} == {**shown, "source": None}
    assert "FedACG is ahead of all others." in err
    assert len(shown["published"]) == 7
    assert {claim["verdict"] for claim in shown["claims"]} == {"not comparable"}
    code, _, err = undrift(capsys, monkeypatch, "papers", "show", "fedacg/table9", "--out", "x")
    assert code == 2
    assert "needs a folder with results of fedacg/table9, got 'x'" in " ".join(err.split())


def test_names_that_do_not_exist(
    shipped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("run", "show"):
        code, _, err = undrift(capsys, monkeypatch, "papers", command, "fedacg/tabel9")
        assert code == 2
        assert "the nearest is 'fedacg/table9'" in " ".join(err.split())
    code, _, err = undrift(capsys, monkeypatch, "papers", "list", "fedacgs")
    assert code == 2
    assert "the nearest is 'fedacg'" in " ".join(err.split())


def test_missing_data_are_refused_before_any_work(
    shipped: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    text = TEXT.replace(
        '"data.partition" = "iid"', '"data.partition" = "iid", "data.name" = "celeba"'
    )
    shipped.write_text(text, encoding="utf-8")
    catalogue._read.cache_clear()
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path))
    arguments = "papers", "run", "fedacg/table9", "--scale", "full"
    code, _, err = undrift(capsys, monkeypatch, *arguments)
    assert code == 2
    assert "needs celeba, which is not on this machine" in " ".join(err.split())
    assert "$UNDRIFT_DATA/celeba" in " ".join(err.split())
    assert not Path("runs").exists()


def test_too_few_natural_clients_are_told_apart_from_no_data(
    shipped: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    natural = '"data.name" = "femnist", "data.partition" = "natural", "data.clients" = 3'
    text = TEXT.replace('"data.partition" = "iid"', natural)
    shipped.write_text(text, encoding="utf-8")
    catalogue._read.cache_clear()
    users = {name: {"x": [[0.5] * 784], "y": [1]} for name in ("ann", "bob")}
    content = json.dumps({"users": [*users], "num_samples": [1, 1], "user_data": users})
    for part in ("train", "test"):
        (tmp_path / "femnist" / part).mkdir(parents=True)
        (tmp_path / "femnist" / part / "all.json").write_text(content)
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path))
    load_module._load.cache_clear()
    code, _, err = undrift(capsys, monkeypatch, "papers", "run", "fedacg/table9", "--scale", "full")
    assert code == 2
    place = (tmp_path / "femnist").resolve()
    told = f"needs 3 natural clients of femnist, got 2 in {place}; make $UNDRIFT_DATA/femnist and"
    assert told.replace(" ", "") in "".join(err.split())  # lines may break within a path
    (listed,) = json.loads(undrift(capsys, monkeypatch, "papers", "list", "--json")[1])
    assert listed["missing"] == ["femnist"]
    assert listed["lacks"] == {"femnist": "2 of 3 natural clients here"}
    _, out, _ = undrift(capsys, monkeypatch, "papers", "list")
    assert "femnist (2 of 3 natural clients here)" in " ".join(out.replace("│", " ").split())
    load_module._load.cache_clear()


def test_a_damaged_file_of_results_is_named(shipped: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"version": 1}')
    with pytest.raises(Exception, match="needs to hold results of a paper and is damaged"):
        read_stored(path)


def test_results_saved_more_or_less_often_are_the_same_experiment(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = catalogue.find("fedacg/table9")
    first = run_paper(entry, "small")
    file = results_folder(entry, "small") / "iid" / "experiment.toml"
    text = file.read_text()
    assert "checkpoint_every" not in text
    file.write_text(text.replace("[engine]\n", "[engine]\ncheckpoint_every = 7\n"))
    assert run_paper(entry, "small").trials == first.trials


def test_sigterm_ends_a_paper_with_its_own_code(
    shipped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes after the first record, and a second start goes on from it."""
    real, added = Journal.add, []

    def add(self: Journal, record: Record) -> None:
        real(self, record)
        added.append(record.round)
        if len(added) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Journal, "add", add)
    code, _, err = undrift(capsys, monkeypatch, "papers", "run", "fedacg/table9")
    assert code == 143
    assert "go on with undrift papers run fedacg/table9 --scale small" in err
    place = results_folder(catalogue.find("fedacg/table9"), "small") / "iid"
    assert len(list(place.glob("checkpoints/*/round-*"))) == 1
    code, _, err = undrift(capsys, monkeypatch, "papers", "run", "fedacg/table9")
    assert code == 0, err
    assert added[:2] == [1, 2]
    assert not (place / "checkpoints").exists()
