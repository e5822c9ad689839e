"""The documents' experiments under benchmarks/papers: all can be read; long: all can be run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.system import ROOT
from undrift.config.experiment import Experiment
from undrift.core import AllReduce, Federated
from undrift.data.datasets import PUBLISHED, find
from undrift.runs.build import build_run
from undrift.runs.jobs import Job, jobs

PAPERS = ROOT / "benchmarks" / "papers"
FILES = sorted(PAPERS.rglob("*.toml"))
SCALED = "_scaled"
DOCUMENTS = {
    "fedspeed": "FedSpeed",
    "fedacg": "FedACG",
    "fedagrac": "FedaGrac",
    "marsit": "Marsit",
    "netfleet": "NET-FLEET",
}
SCALED_ONLY = {"table3_2_imdb"}  # DistilBERT at full scale cannot be said in a file
MOST_CLIENTS = 4  # of all-reduce in the test: 64 copies of a big model fill the memory

read = cache(Experiment.read)


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


each_file = pytest.mark.parametrize("path", FILES, ids=name_of)


def is_scaled(path: Path) -> bool:
    return path.stem.endswith(SCALED)


def first_cell(experiment: Experiment) -> list[Job]:
    """Every method once: with the first seed, in the first cell of the sweep."""
    planned = jobs(experiment)
    position = {method.title: at for at, method in enumerate(experiment.methods)}
    found: dict[int, Job] = {}
    for job in planned:
        found.setdefault(position[job.method.title], job)
    return list(found.values())


@each_file
def test_file_is_read_and_its_jobs_are_listed(path: Path) -> None:
    experiment = read(path)
    assert experiment.title.startswith(DOCUMENTS[path.parent.name])
    assert experiment.title.endswith("(scaled)") == is_scaled(path)
    planned = jobs(experiment)
    assert len({job.name for job in planned}) == len(planned)
    assert len(first_cell(experiment)) == len(experiment.methods)


@each_file
def test_file_says_what_it_is_before_anything_else(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    head = " ".join(line.removeprefix("#").strip() for line in lines[: lines.index("")])
    assert all(line.startswith("#") for line in lines[: lines.index("")])
    if is_scaled(path):
        assert head.startswith("Scaled so that two cores finish in minutes")
        assert "not values" in head or "Ratios of seconds" in head
    else:
        assert "Readings." in head


@each_file
def test_file_round_trips(path: Path, tmp_path: Path) -> None:
    experiment = read(path)
    copy = tmp_path / "copy.toml"
    copy.write_text(experiment.to_toml(), encoding="utf-8")
    assert Experiment.read(copy) == experiment


def test_every_document_has_files() -> None:
    assert {path.parent.name for path in FILES} == set(DOCUMENTS)


def test_titles_are_unique() -> None:
    titles = [read(path).title for path in FILES]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("path", [path for path in FILES if not is_scaled(path)], ids=name_of)
def test_full_scale_has_a_scaled_version_with_the_same_methods(path: Path) -> None:
    scaled = path.with_name(f"{path.stem}{SCALED}.toml")
    assert scaled.is_file()
    full, small = read(path), read(scaled)
    assert small.title == f"{full.title} (scaled)"
    assert [method.name for method in small.methods] == [method.name for method in full.methods]
    assert small.training.rounds < full.training.rounds or "cost of a round" in full.title
    assert small.evaluation.smoothing == full.evaluation.smoothing


@pytest.mark.parametrize("path", [path for path in FILES if is_scaled(path)], ids=name_of)
def test_scaled_version_has_a_full_scale_one(path: Path) -> None:
    stem = path.stem.removesuffix(SCALED)
    assert path.with_name(f"{stem}.toml").is_file() != (stem in SCALED_ONLY)


def test_readme_names_every_file() -> None:
    text = (PAPERS / "README.md").read_text(encoding="utf-8")
    full = [path for path in FILES if not is_scaled(path)]
    missing = [name_of(path) for path in full if f"`{name_of(path)}`" not in text]
    assert not missing


def tiny(job: Job) -> tuple[Experiment, Any]:
    """The job with two rounds of one step, and its method."""
    experiment, cls = job.experiment, job.method.cls
    changes: dict[str, Any] = {
        "training.rounds": 2,
        "training.work": "steps:1",
        "training.batch_size": 2,
        "data.test_samples": 20,
        "evaluation.every": 2,
        "engine.mode": "loop",
    }
    if issubclass(cls, Federated):
        changes["training.participation"] = 2
    if issubclass(cls, AllReduce) and (experiment.data.clients or 0) > MOST_CLIENTS:
        changes["data.clients"] = MOST_CLIENTS
    if experiment.data.partition == "natural":
        changes["data.clients"] = None  # as many as the data at hand has
    changed = experiment.changed(changes)
    (method,) = (m for m in changed.methods if m.title == job.method.title)
    return changed, method


@pytest.mark.long
@each_file
def test_two_rounds(path: Path) -> None:
    for job in first_cell(read(path)):
        name = job.experiment.data.name
        if name in PUBLISHED and find(name) is None:
            pytest.skip(f"needs {name}, which is not on this machine")
        experiment, method = tiny(job)
        records = list(build_run(experiment, method, job.seed))
        assert [record.round for record in records] == [1, 2]
        assert records[-1].accuracy is not None
        assert 0 <= records[-1].accuracy <= 1
