"""The paper files of the package: all are sound; long: all run at a glance."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from undrift.papers import catalogue
from undrift.papers.catalogue import DOCUMENTS, PaperEntry
from undrift.papers.claims import holds
from undrift.papers.estimate import hours
from undrift.papers.judge import published_lookup
from undrift.papers.scales import SCALES, PanelRun, is_at_hand, plan
from undrift.papers.store import SHIPPED, read_stored, require_same_version, shipped
from undrift.runs.build import build_run
from undrift.runs.jobs import Job, jobs

ENTRIES = catalogue.entries()
each_paper = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
EXPERIMENTS = [entry for entry in ENTRIES if entry.paper.kind == "experiment"]
each_experiment = pytest.mark.parametrize("entry", EXPERIMENTS, ids=lambda entry: entry.name)
MOST_BYTES = 400_000  # of a file of results
LONGEST = 1.5  # hours on two cores of one job at the small scale, by the rough estimate

# What the small scale may change, besides the list of methods.
CHANGEABLE = {"title", "seeds", "model", "engine", "evaluation", "sweep"}


@cache
def full_runs(entry: PaperEntry) -> list[PanelRun]:
    return plan(entry.paper, "full")


@cache
def small_runs(entry: PaperEntry) -> list[PanelRun]:
    return plan(entry.paper, "small", at_hand=lambda data: True)


def test_every_document_has_files() -> None:
    assert {entry.document for entry in ENTRIES} == set(DOCUMENTS)


@each_paper
def test_the_name_of_a_file_is_that_of_its_item(entry: PaperEntry) -> None:
    kind, number = entry.paper.item.split(" ", 1)
    name = f"{kind.lower()}{number.replace('.', '_')}"
    assert entry.path.stem == name or entry.path.stem.startswith(f"{name}_")
    assert kind in ("Table", "Figure")


@each_paper
def test_claims_are_true_of_the_document_s_own_numbers(entry: PaperEntry) -> None:
    """Or the file says that the document contradicts itself."""
    paper = entry.paper
    for claim in paper.claims:
        result = holds(claim, paper, published_lookup(paper, claim.quantity))
        assert (result is False) == claim.contradicted, claim.text


@each_paper
def test_a_file_holds_something_of_its_document(entry: PaperEntry) -> None:
    paper = entry.paper
    assert paper.cells or paper.claims or paper.experiment is not None or paper.readings.strip()
    if any(claim.contradicted for claim in paper.claims):
        assert paper.readings.strip()
    text = entry.path.read_text(encoding="utf-8")
    assert not re.search(r"shared/documents|\b00[0-3]:\d|/work|\.txt", text)


@each_experiment
def test_every_scale_can_be_planned(entry: PaperEntry) -> None:
    assert full_runs(entry)
    for run in (*small_runs(entry), *plan(entry.paper, "glance")):
        planned = jobs(run.experiment)
        assert len({job.name for job in planned}) == len(planned)


@each_experiment
def test_small_keeps_the_regime(entry: PaperEntry) -> None:
    """Data, clients, partition, participation, steps, batches and hyper-parameters stay."""
    for run in small_runs(entry):
        ours, theirs = run.experiment.values(), run.full.values()
        titles = {method.title for method in run.experiment.methods}
        for values in (ours, theirs):
            values["training"].pop("rounds", None)
            values["data"].pop("validation", None)
            for name in CHANGEABLE:
                values.pop(name, None)
        pairs = zip(run.full.methods, theirs["methods"], strict=True)
        theirs["methods"] = [values for method, values in pairs if method.title in titles]
        assert ours == theirs
        assert run.experiment.training.rounds <= run.full.training.rounds
        smoothing = run.experiment.evaluation.smoothing
        assert smoothing == run.full.evaluation.smoothing


@each_experiment
def test_small_fits_two_cores_or_is_left_out_by_name(entry: PaperEntry) -> None:
    small = entry.paper.small
    assert small is not None
    assert all(each.hours >= 1 for each in small.left_out)
    for run in small_runs(entry):
        for job in jobs(run.experiment):
            alone = job.experiment.model_copy(update={"methods": [job.method], "seeds": [0]})
            assert hours(alone) <= LONGEST, (run.panel, job.label, hours(alone))


@each_experiment
def test_stand_ins_are_for_data_that_may_be_missing(entry: PaperEntry) -> None:
    names = {run.experiment.data.name for run in full_runs(entry)}
    assert set(entry.paper.stand_in) <= names
    assert not set(entry.paper.stand_in) & {"mnist", "fashion-mnist", "cifar10", "a9a"}


def _results() -> list[PaperEntry]:
    return [entry for entry in ENTRIES if shipped_files(entry)]


def shipped_files(entry: PaperEntry) -> list[Path]:
    kinds = [(scale, tuned) for scale in SCALES for tuned in (False, True)]
    files = [shipped(entry, scale, tuned=tuned) for scale, tuned in kinds]
    return [path for path in files if path.is_file()]


def test_results_belong_to_files() -> None:
    files = {p for d in DOCUMENTS for p in (catalogue.FOLDER / d / SHIPPED).glob("*.json")}
    assert files == {path for entry in ENTRIES for path in shipped_files(entry)}


@pytest.mark.parametrize("entry", _results(), ids=lambda entry: entry.name)
def test_results_are_of_this_version_of_their_file(entry: PaperEntry) -> None:
    for path in shipped_files(entry):
        stored = read_stored(path)
        require_same_version(stored, entry.paper, path)
        assert stored.tuned == path.name.endswith(".tuned.json")
        assert {trial.panel for trial in stored.trials} <= set(entry.paper.panel_names)
        assert path.stat().st_size < MOST_BYTES


def two_rounds(job: Job) -> None:
    records = list(build_run(job.experiment, job.method, job.seed))
    assert [record.round for record in records] == [1, 2]
    assert records[-1].loss is not None


def missing(entry: PaperEntry) -> list[str]:
    needed = [run.experiment.data for run in plan(entry.paper, "glance")]
    return list(dict.fromkeys(data.name for data in needed if not is_at_hand(data)))


DAILY = ("fedspeed/table6", "fedacg/table10", "fedagrac/table4_1", "marsit/table3_2")


@pytest.mark.parametrize("name", [*DAILY, "netfleet/figure4"])
def test_last_cell_at_a_glance(name: str) -> None:
    """Two rounds of the last panel's last method."""
    entry = catalogue.find(name)
    if missing(entry):
        pytest.skip(f"needs {', '.join(missing(entry))}, which is not on this machine")
    two_rounds(jobs(plan(entry.paper, "glance")[-1].experiment)[-1])


@pytest.mark.long
@each_experiment
def test_every_cell_at_a_glance(entry: PaperEntry) -> None:
    if missing(entry):
        pytest.skip(f"needs {', '.join(missing(entry))}, which is not on this machine")
    for run in plan(entry.paper, "glance"):
        for job in jobs(run.experiment):
            two_rounds(job)
