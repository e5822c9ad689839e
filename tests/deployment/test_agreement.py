"""Sites of the commands agree on their columns, which are part of the run's state from then on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift as ud
from tests.support.flower import PATIENCE, wait_for
from tests.support.hospitals import NAMES, Hosts, write_experiment
from undrift.config.experiment import Experiment
from undrift.data.tables.preprocessing import Preprocessing
from undrift.deployment import example
from undrift.deployment.host import AgreeingHost, own_table
from undrift.deployment.plan import Accepted, agreement_digest, federated_jobs, resolved
from undrift.deployment.run import run_federation
from undrift.errors import CheckpointError, UndriftError
from undrift.federation import SocketTransport, agree_columns
from undrift.federation.messages import CensusRequest, Refusal, SiteMessage
from undrift.results.filenames import AGREED
from undrift.runs.folder import read, read_experiment
from undrift.runs.options import RunOptions
from undrift.runs.run_job import Observer
from undrift.runs.saved_model import SavedModel
from undrift.runs.spelling import FLAGS

pytest.importorskip("pandas")


def experiment(folder: Path, **sections: Any) -> Experiment:
    """Return an experiment of tables whose columns nobody has declared."""
    path = write_experiment(folder, data={"path": "own.csv", "target": "readmitted"})
    text = path.read_text().replace('columns = "columns.json"', "agree = true")
    path.write_text(text)
    described = resolved(Experiment.read(path))
    return resolved(described.changed(sections)) if sections else described


def hosts(described: Experiment, folder: Path, **options: Any) -> Hosts:
    """Return sites with the tables of the example."""
    found = {}
    for name in NAMES:
        table = folder / f"{name}.csv"
        if not table.exists():
            folder.mkdir(parents=True, exist_ok=True)
            example.write_table(table, name)
        found[name] = AgreeingHost(
            described, name, own_table(described, str(table)), folder / f"{name}-state"
        )
    return Hosts(found, **options)


def kinds(transport: Hosts) -> list[str]:
    return [kind for kind in transport.asked if kind in ("columns", "agreed-columns")]


class Notes(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, job: Any, text: str) -> None:
        self.notes.append(text)


def test_a_run_of_tables_that_agree_has_the_bits_of_one_with_all_rows(tmp_path: Path) -> None:
    described, observer = experiment(tmp_path), Notes()
    transport = hosts(described, tmp_path / "sites")
    result = run_federation(
        described, "x", transport, RunOptions(out=tmp_path / "out", observer=observer)
    )
    (trial,) = result.trials
    assert trial.status == "finished"
    tables = [own_table(described, str(tmp_path / "sites" / f"{name}.csv")) for name in NAMES]
    written = json.loads((tmp_path / "out" / AGREED).read_text())
    columns = Preprocessing.from_json(written["columns"])
    assert [column.names[0] for column in columns.columns] == ["age", "days", "marker", "ward"]
    stored = [table.stored(columns) for table in tables]
    pairs = [tuple(map(torch.from_numpy, (s.train.inputs, s.train.targets))) for s in stored]
    (planned,) = federated_jobs(described, columns)
    run = ud.simulate(
        planned.experiment.algorithm,
        planned.experiment.model,
        ud.Clients(pairs),
        mode="loop",
        kernels=False,
        loss=planned.experiment.loss,
        work=planned.experiment.work,
        batch_size=20,
        rounds=3,
        seed=0,
    )
    list(run)
    assert trial.model_sha256 == run.model_sha256
    told = sum(len(table.statistics.to_json()) for table in tables if table.statistics is not None)
    cost = {"bytes_up": told, "bytes_down": 3 * len(columns.to_json())}
    assert trial.facts["agreement"] == cost
    assert {name: written[name] for name in cost} == cost
    assert any("agreed on 6 features" in note for note in observer.notes)
    saved = SavedModel.read(tmp_path / "out")
    assert len(saved.predict(tmp_path / "sites" / "west.csv")) == 250
    assert "Accuracy at each site" in read(tmp_path / "out").report().read_text()


def test_a_run_that_goes_on_has_its_columns_and_asks_nobody_again(tmp_path: Path) -> None:
    described = experiment(tmp_path)
    whole = hosts(described, tmp_path / "a")
    expected = run_federation(described, "x", whole, RunOptions(out=tmp_path / "whole"))
    transport = hosts(described, tmp_path / "b", stop_after=17)
    stopped = run_federation(described, "x", transport, RunOptions(out=tmp_path / "out"))
    assert stopped.trials[0].status == "stopped"
    transport = hosts(described, tmp_path / "b")  # started anew, from their folders
    transport.lost = {"west"}
    transport.finds = lambda kind: kind == "agreed-columns"  # which alone west does not answer
    observer = Notes()
    options = RunOptions(resume=tmp_path / "out", observer=observer)
    kept = read_experiment(tmp_path / "out", FLAGS, False)  # as the command does
    done = run_federation(kept, "x", transport, options)
    assert done.trials[0].model_sha256 == expected.trials[0].model_sha256
    assert kinds(transport) == ["agreed-columns"]
    assert any("Site west needs to take the columns, got no reply" in n for n in observer.notes)
    assert done.trials[0].facts["agreement"] == expected.trials[0].facts["agreement"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:-20], "needs to have the columns of the run, got a damaged file"),
        (lambda text: re.sub(r'"experiment": "\w+', '"experiment": "0', text), "needs columns of"),
        (lambda text: text.replace("intensive", "intense"), "resume needs the experiment"),
    ],
    ids=["damaged", "of another experiment", "other columns"],
)
def test_columns_that_were_changed_are_refused(change: Any, words: str, tmp_path: Path) -> None:
    described = experiment(tmp_path)
    transport = hosts(described, tmp_path / "sites", stop_after=17)
    run_federation(described, "x", transport, RunOptions(out=tmp_path / "out"))
    path = tmp_path / "out" / AGREED
    path.write_text(change(path.read_text()))
    transport = hosts(described, tmp_path / "sites")
    with pytest.raises(CheckpointError, match=words):
        run_federation(described, "x", transport, RunOptions(resume=tmp_path / "out"))


def test_a_newcomer_is_told_the_columns(tmp_path: Path) -> None:
    described = experiment(tmp_path, **{"training.participation": 1.0})
    transport, observer = hosts(described, tmp_path / "sites"), Notes()
    late = transport.hosts.pop("south")
    observer.add = lambda job, record: transport.hosts.update(south=late)  # type: ignore[method-assign]
    options = RunOptions(out=tmp_path / "out", observer=observer)
    result = run_federation(described, "x", transport, options)
    assert [record.clients for record in result.trials[0].records] == [2, 3, 3]
    assert late.columns is not None
    assert "south takes part from now on." in observer.notes


def test_a_folder_that_is_replaced_has_columns_of_its_own(tmp_path: Path) -> None:
    """Columns of the earlier run would be taken for those of this one."""
    described, out = experiment(tmp_path), tmp_path / "out"
    run_federation(described, "x", hosts(described, tmp_path / "a"), RunOptions(out=out))
    before = (out / AGREED).read_text()
    for name in NAMES:
        table = tmp_path / "a" / f"{name}.csv"
        (tmp_path / "b").mkdir(exist_ok=True)
        rows = table.read_text().splitlines(keepends=True)
        (tmp_path / "b" / f"{name}.csv").write_text("".join(rows[:100]))
    transport = hosts(described, tmp_path / "b")
    run_federation(described, "x", transport, RunOptions(out=out, force=True))
    assert kinds(transport) == ["columns", "agreed-columns"]
    assert (out / AGREED).read_text() != before


@pytest.mark.parametrize(
    "change",
    [
        {"data.target": "ward"},
        {"methods[0].lr": 0.2},
        {"model.hidden": 5},
        {"seeds": [1]},
        {"data.missing": "impute"},
    ],
    ids=str,
)
def test_a_site_tells_nothing_for_an_experiment_that_was_not_accepted(
    change: dict[str, Any], tmp_path: Path
) -> None:
    described, other = experiment(tmp_path), experiment(tmp_path, **change)
    assert agreement_digest(described) != agreement_digest(other)
    transport = hosts(described, tmp_path / "sites")
    with pytest.raises(UndriftError, match="needs a request for columns"):
        agree_columns(transport, "readmitted", digest=agreement_digest(other))
    site = transport.hosts["north"]
    reply = site.answer(SiteMessage(CensusRequest(experiment=agreement_digest(described))))
    assert isinstance(reply.header, Refusal), "columns come first"


def test_what_is_accepted_is_the_same_wherever_the_files_are(tmp_path: Path) -> None:
    found = [Accepted.of(experiment(tmp_path / name)) for name in ("a", "b")]
    assert found[0] == found[1]
    assert list(found[0].digests) == ["columns"]
    assert '"target": "readmitted"' in found[0].facts["table"]
    sites = experiment(tmp_path / "c", **{"federation.sites": ["east", *NAMES]})
    assert Accepted.of(sites) == found[0], "a newcomer's own file names it, too"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"federation.columns": "columns.json"}, "no columns and no inputs"),
        ({"federation.inputs": [4]}, "no columns and no inputs"),
        ({"data.path": None, "data.target": None}, "data.target, which is predicted"),
        ({"data.client": "ward"}, "no data.client"),
    ],
    ids=str,
)
def test_what_there_is_nothing_to_agree_about_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        experiment(tmp_path, **changes)


def test_data_that_are_no_table_have_no_columns(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="A site that agrees on columns needs a table"):
        own_table(experiment(tmp_path), "mine.py:load")


def test_the_process_of_a_site_agrees_and_knows_the_columns_when_it_is_started_again(
    tmp_path: Path,
) -> None:
    described = experiment(tmp_path)
    example.write_table(tmp_path / "north.csv", "north")
    words = [tmp_path / "experiment.toml", "north", tmp_path / "north.csv", tmp_path / "state"]
    path = tmp_path / "sockets" / "north.sock"
    command = [sys.executable, "-m", "undrift.deployment.site_process", *words, path]
    log, transport = tmp_path / "log", SocketTransport(tmp_path / "sockets", deadline=PATIENCE)

    def start() -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=output)
        wait_for(lambda: path.exists() or process.poll() is not None, "no socket")
        return process

    process = start()
    try:
        done = run_federation(described, "x", transport, RunOptions(out=tmp_path / "one"))
        assert done.trials[0].status == "finished", log.read_text()
        process.kill()
        process.wait()
        path.unlink()
        process = start()
        again = run_federation(described, "x", transport, RunOptions(out=tmp_path / "two"))
        assert again.trials[0].model_sha256 == done.trials[0].model_sha256
    finally:
        process.kill()
        process.wait()
    assert "columns: columns-reply" in log.read_text()
    assert [each.name for each in (tmp_path / "state").iterdir()] == [agreement_digest(described)]
