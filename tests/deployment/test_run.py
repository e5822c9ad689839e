"""A federation of tables runs as an experiment does: records, table, page, resume, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

import undrift as ud
from tests.support.hospitals import (
    NAMES,
    Hosts,
    experiment,
    host,
    pooled,
    write_experiment,
)
from undrift.cli.progress import ProgressBar
from undrift.config.experiment import Experiment
from undrift.deployment.host import SiteHost, site_clients
from undrift.deployment.plan import federated_jobs, resolved
from undrift.deployment.run import CENSUS, run_federation
from undrift.deployment.run_log import RunLog
from undrift.errors import UndriftError
from undrift.federation.messages import (
    CensusRequest,
    ExchangeRequest,
    Refusal,
    SiteCensus,
    SiteMessage,
    decode,
)
from undrift.federation.transport import Arrived
from undrift.runs.folder import read
from undrift.runs.options import RunOptions
from undrift.runs.run_job import Observer
from undrift.runs.saved_model import SavedModel

NUMBERS = (("age", 55.0, 18.0), ("days", 6.0, 5.0), ("marker", 0.0, 1.2))


class Notes(Observer):
    """Keeps what an observer hears, and does something after a round."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.after: dict[int, Callable[[], object]] = {}

    def note(self, job: Any, text: str) -> None:
        self.notes.append(text)

    def add(self, job: Any, record: Any) -> None:
        self.after.pop(record.round, lambda: None)()


def hosts(described: Experiment, folder: Path, **options: Any) -> Hosts:
    return Hosts({name: host(described, folder / "sites", name) for name in NAMES}, **options)


def test_records_table_page_and_model_are_those_of_any_experiment(tmp_path: Path) -> None:
    described = experiment(tmp_path)
    options = RunOptions(out=tmp_path / "out", track=["csv"])
    result = run_federation(described, "federation", hosts(described, tmp_path), options)
    (trial,) = result.trials
    assert trial.status == "finished"
    assert [record.round for record in trial.records] == [1, 2, 3]
    assert trial.facts["sites"]["north"]["samples"] == 180  # tested at its own samples
    assert 0 < trial.facts["sites"]["north"]["accuracy"] < 1
    (planned,) = federated_jobs(described)
    run = ud.simulate(
        planned.experiment.algorithm,
        planned.experiment.model,
        pooled(described, tmp_path / "sites"),
        mode="loop",
        kernels=False,
        loss=planned.experiment.loss,
        work=planned.experiment.work,
        batch_size=20,
        rounds=3,
        seed=0,
    )
    last = list(run)[-1]
    assert trial.model_sha256 == run.model_sha256
    assert trial.records[-1].accuracy == pytest.approx(last.accuracy)
    assert trial.records[-1].loss == pytest.approx(last.loss)
    again = read(tmp_path / "out")
    assert "Scaffold" in again.table()
    page = again.report().read_text()
    assert page.count("<html") == 1
    assert "Accuracy at each site, in the last test" in page
    assert "How it spreads over the clients, on their test samples" in page
    scores = [record.site_scores or {} for record in again.trials[0].records]
    assert [sorted(each) for each in scores] == [NAMES] * 3
    shown = f"{100 * (scores[-1]['north']['accuracy'] or 0):.2f}"
    assert shown in page.partition("Accuracy at each site")[2].partition("</table>")[0]
    assert again.command == result.command == "undrift federation run CENTRE"
    assert "undrift run" not in (tmp_path / "out" / "experiment.toml").read_text()
    saved = SavedModel.read(tmp_path / "out")
    assert len(saved.predict(tmp_path / "sites" / "west.csv")) == 250


def test_a_run_that_was_stopped_goes_on_with_the_same_hash(tmp_path: Path) -> None:
    described = experiment(tmp_path, methods=[{"name": "fedspeed", "lr": 0.1}])
    whole = RunOptions(out=tmp_path / "whole")
    expected = run_federation(described, "x", hosts(described, tmp_path / "a"), whole)
    transport = hosts(described, tmp_path / "b", stop_after=11)
    stopped = run_federation(described, "x", transport, RunOptions(out=tmp_path / "out"))
    assert stopped.stopped
    assert stopped.trials[0].status == "stopped"
    transport = hosts(described, tmp_path / "b")
    done = run_federation(described, "x", transport, RunOptions(resume=tmp_path / "out"))
    assert done.trials[0].model_sha256 == expected.trials[0].model_sha256
    assert [record.round for record in done.trials[0].records] == [1, 2, 3]


def test_a_site_that_is_left_out_is_in_the_record_with_its_reason(tmp_path: Path) -> None:
    described = experiment(tmp_path)
    transport = hosts(described, tmp_path)
    asked = transport.ask

    def lose_after_the_census(
        requests: Mapping[str, bytes], *, seconds: float = inf
    ) -> Iterator[Arrived]:
        if not isinstance(decode(next(iter(requests.values()))).header, CensusRequest):
            transport.lost = {"south"}
        return asked(requests)

    transport.ask = lose_after_the_census  # type: ignore[method-assign]
    result = run_federation(described, "x", transport, RunOptions(out=tmp_path / "out"))
    records = result.trials[0].records
    assert [record.dropped for record in records] == [{"south": "no reply"}] * 3
    assert [record.untested for record in records] == [{"south": "no reply"}] * 3


@pytest.mark.parametrize("resumed", [False, True])
def test_a_site_whose_key_is_gone_leaves(resumed: bool, tmp_path: Path) -> None:
    """It is not missed in the rounds after, and the model is that of the simulator without it."""
    described = experiment(tmp_path, training={"rounds": 4, "quorum": 1.0, "participation": 1.0})
    transport = hosts(described, tmp_path, stop_after=10 if resumed else None)
    keys, out = set(NAMES), tmp_path / "out"
    observer = Notes()
    options = RunOptions(out=out, observer=observer)

    def revoke() -> None:
        keys.remove("south")
        del transport.hosts["south"]  # which is not connected without a key

    if resumed:  # one round and the first question of the second
        run_federation(described, "x", transport, options, admitted=lambda: keys)
        transport = hosts(described, tmp_path)
        options = RunOptions(resume=out, observer=observer)
        revoke()
    else:
        observer.after[1] = revoke
    result = run_federation(described, "x", transport, options, admitted=lambda: keys)
    records = result.trials[0].records
    assert [record.clients for record in records] == [3, 2, 2, 2]
    assert all(record.dropped is None and record.missed == 0 for record in records)
    assert observer.notes.count("south leaves, since its key is gone.") == 1
    (planned,) = federated_jobs(described)
    own = pooled(described, tmp_path / "sites")
    spans = ud.data.Spans([(0, 1 if name == "south" else None) for name in NAMES])
    pairs = [own[i] for i in range(len(NAMES))]
    run = ud.simulate(
        planned.experiment.algorithm,
        planned.experiment.model,
        ud.Clients(pairs, test=own.test, availability=spans),
        mode="loop",
        kernels=False,
        loss=planned.experiment.loss,
        work=planned.experiment.work,
        batch_size=20,
        rounds=4,
        participation=1.0,
        seed=0,
    )
    list(run)
    assert result.trials[0].model_sha256 == run.model_sha256


def test_newcomers_that_hang_hold_no_round(tmp_path: Path) -> None:
    """One hangs and is asked once, for a short time; another takes part beside it."""
    described = experiment(tmp_path, training={"rounds": 4, "participation": 1.0})
    transport, observer = hosts(described, tmp_path), Notes()
    late = {name: transport.hosts.pop(name) for name in ("south", "west")}

    def connect() -> None:
        transport.hosts.update(late)
        transport.lost = {"south"}

    observer.after[2] = connect
    options = RunOptions(out=tmp_path / "out", observer=observer)
    result = run_federation(described, "x", transport, options)
    assert [record.clients for record in result.trials[0].records] == [1, 1, 2, 2]
    assert [limit for names, limit in transport.limits if names == ["south"]] == [CENSUS]
    assert {limit for names, limit in transport.limits if "south" not in names} == {inf, CENSUS}
    refused = [note for note in observer.notes if "not admitted" in note]
    assert len(refused) == 1
    assert "got none of ['south']" in refused[0]
    assert "west takes part from now on." in observer.notes


def test_two_methods_have_states_of_their_own(tmp_path: Path) -> None:
    methods = [{"name": "scaffold", "lr": 0.1}, {"name": "fedavg", "lr": 0.1}]
    described = experiment(tmp_path, methods=methods)
    result = run_federation(
        described, "x", hosts(described, tmp_path), RunOptions(out=tmp_path / "out")
    )
    assert [trial.status for trial in result.trials] == ["finished", "finished"]
    digests = {each.experiment.digest for each in federated_jobs(described)}
    assert len(digests) == 2
    assert {path.name for path in (tmp_path / "sites" / "north-state").iterdir()} <= digests


def test_a_site_answers_only_the_experiment_that_was_accepted(tmp_path: Path) -> None:
    described = experiment(tmp_path)
    site = host(described, tmp_path / "sites", "north")
    reply = site.answer(SiteMessage(CensusRequest(experiment="0" * 32)))
    assert isinstance(reply.header, Refusal)
    assert "which its operator has accepted" in reply.header.reason
    (planned,) = federated_jobs(described)
    other = replace(planned.experiment, seed=1)
    assert isinstance(
        site.answer(SiteMessage(CensusRequest(experiment=other.digest))).header, Refusal
    )


def test_other_columns_are_another_experiment(tmp_path: Path) -> None:
    path = write_experiment(tmp_path)
    (before,) = federated_jobs(resolved(Experiment.read(path)))
    columns = json.loads((tmp_path / "columns.json").read_text())
    columns["columns"][0]["mean"] += 1
    (tmp_path / "columns.json").write_text(json.dumps(columns))
    (after,) = federated_jobs(resolved(Experiment.read(path)))
    assert before.experiment.digest != after.experiment.digest


def test_code_that_an_experiment_names_counts_without_its_folder(tmp_path: Path) -> None:
    """The number is outside of the class, so only the file tells the two apart."""

    def digest(folder: str, scale: float) -> str:
        place = tmp_path / folder
        path = write_experiment(place, model={"name": "mine.py:Net", "hidden": 3})
        (place / "mine.py").write_text(
            f"import torch, undrift\nSCALE = {scale}\n"
            "class Net(torch.nn.Linear):\n"
            "    def __init__(self, shape, classes, hidden):\n"
            "        super().__init__(shape[0], classes)\n"
            "    def forward(self, x):\n"
            "        return SCALE * super().forward(x)\n"
        )
        (planned,) = federated_jobs(resolved(Experiment.read(path, trust=True)))
        return planned.experiment.digest

    assert digest("a", 1.0) == digest("b", 1.0)
    assert digest("c", 2.0) != digest("a", 1.0)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"federation": {"sites": []}}, "federation.sites"),
        ({"training": {"aggregation": "median"}}, "training.aggregation left out"),
        ({"training": {"on_bad": "stop"}}, 'training.on_bad = "drop", since one bad site'),
        (
            {"sweep": {"grid": {"training.on_bad": ["drop"]}}},
            'training.on_bad = "drop", .*a sweep of it',
        ),
        (
            {"sweep": {"grid": {"training.aggregation": ["median"]}}},
            "aggregation left out, .*sweep",
        ),
        ({"evaluation": {"metrics": ["auroc"]}}, "evaluation.metrics left out"),
        ({"engine": {"processes": 2}}, "engine.processes = 1"),
        ({"methods": [{"name": "netfleet"}]}, "methods with a server"),
    ],
)
def test_what_needs_the_data_at_one_place_is_refused(
    tmp_path: Path, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        experiment(tmp_path, **sections)


@pytest.mark.parametrize("sites", [["a", "a"], ["a b"], ["../a"]])
def test_names_of_sites_are_names(tmp_path: Path, sites: list[str]) -> None:
    with pytest.raises(ValueError, match=r"federation\.sites|federation: "):
        experiment(tmp_path, federation={"sites": sites})


def test_a_run_of_data_at_sites_is_refused(tmp_path: Path) -> None:
    """It would train on the data set that an experiment has where it names none."""
    with pytest.raises(ValueError, match="use `undrift federation run`"):
        ud.run(write_experiment(tmp_path), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_experiment_whose_data_are_at_sites_names_no_data_set(tmp_path: Path) -> None:
    written = resolved(experiment(tmp_path))
    assert "digits" not in written.to_toml()
    assert Experiment.of(written.values()) == written
    named = written.changed({"data.name": "mnist"})
    assert 'name = "mnist"' in named.to_toml()


def test_a_federation_needs_the_form_of_its_samples(tmp_path: Path) -> None:
    described = experiment(tmp_path).changed({"federation.columns": None})
    with pytest.raises(ValueError, match="the form of its samples"):
        federated_jobs(described)
    shaped = described.changed({"federation.inputs": [4], "federation.outputs": 3})
    assert federated_jobs(shaped)[0].experiment.facts["model"].count("4")
    with pytest.raises(UndriftError, match=r"add data\.columns"):
        site_clients(shaped, str(tmp_path / "table.csv"))


def test_columns_may_be_declared_in_the_experiment(tmp_path: Path) -> None:
    """The digest is that of the same columns in a file, so the sites are the same, too.

    The table that the experiment names is at no place: nobody but the sites reads one.
    """
    described = experiment(tmp_path)
    numbers = [{"name": n, "mean": m, "scale": s} for n, m, s in NUMBERS]
    words = {"ward": ["medicine", "surgery", "intensive"], "readmitted": ["no", "yes"]}
    columns = [*numbers, *({"name": name, "categories": each} for name, each in words.items())]
    data = {"path": "of-nobody.csv", "target": "readmitted", "columns": columns}
    both = experiment(tmp_path, data=data)
    with pytest.raises(
        ValueError, match=r"one of federation\.columns and data\.columns, got 'both'"
    ):
        federated_jobs(both)
    inside = both.changed({"federation.columns": None})
    (one,), (other,) = federated_jobs(described), federated_jobs(inside)
    assert one.experiment.digest == other.experiment.digest
    transport = hosts(inside, tmp_path)
    with ProgressBar(quiet=True) as bar, RunLog(tmp_path / "logs", bar, quiet=True) as log:
        options = RunOptions(out=tmp_path / "out", observer=log)
        result = run_federation(inside, "x", transport, options)
    assert result.trials[0].status == "finished"
    assert read(tmp_path / "out").report().is_file()


def test_data_that_do_not_fit_are_said_before_a_site_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch, undrift as ud\n"
        "pair = torch.zeros(9, 6), torch.zeros(9, dtype=torch.long)\n"
        "def one(): return ud.Clients([pair])\n"
        "def two(): return ud.Clients([pair, pair])\n"
        "def wide(): return ud.Clients([(torch.zeros(9, 7), pair[1])])\n"
    )
    monkeypatch.chdir(tmp_path)
    shaped = experiment(tmp_path).changed({"federation.columns": None})
    shaped = shaped.changed({"federation.inputs": [6], "federation.outputs": 2})
    own = site_clients(shaped, f"{tmp_path}/mine.py:one")
    host = SiteHost(shaped, "north", own, tmp_path / "state", steps=7)
    (planned,) = federated_jobs(shaped)
    told = host.answer(SiteMessage(CensusRequest(experiment=planned.experiment.digest)))
    assert isinstance(told.header, SiteCensus)
    assert (told.header.samples, told.header.steps) == (9, 7)
    with pytest.raises(ValueError, match="clients of which there is one"):
        site_clients(shaped, f"{tmp_path}/mine.py:two")
    with pytest.raises(ValueError, match="7"):
        SiteHost(shaped, "north", site_clients(shaped, f"{tmp_path}/mine.py:wide"), tmp_path / "b")


@pytest.mark.parametrize(("quorum", "counted"), [(None, 1), (0.9, 0), (1, 1), (2, 0)])
def test_a_quorum_is_a_share_or_a_number_of_those_drawn(
    tmp_path: Path, quorum: Any, counted: int
) -> None:
    """Two of three sites are drawn, and one of these answers."""
    training = {"participation": 2, **({} if quorum is None else {"quorum": quorum})}
    described = experiment(tmp_path, training=training, methods=[{"name": "fedavg"}])
    transport = hosts(described, tmp_path)
    ask = transport.ask

    def lose_one(requests: Mapping[str, bytes], *, seconds: float = inf) -> Iterator[Arrived]:
        drawn = isinstance(decode(next(iter(requests.values()))).header, ExchangeRequest)
        transport.lost = {min(requests)} if drawn else set()
        return ask(requests)

    transport.ask = lose_one  # type: ignore[method-assign]
    result = run_federation(described, "x", transport, RunOptions(out=tmp_path / "out"))
    assert [record.clients for record in result.trials[0].records] == [counted] * 3
