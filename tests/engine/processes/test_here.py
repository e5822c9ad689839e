"""Every rank has the data of its own clients alone: `Clients.here`, and runs on several ranks.

All that needs a launch is in `tests/jobs/here.py`, launched once for each number of processes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.jobs import here as job
from tests.support.system import launch, made_once
from undrift import testing
from undrift.data.here import declare
from undrift.data.tables.fit import agree, statistics_of, target_statistics
from undrift.data.tables.read import Table
from undrift.runs.own import OwnData
from undrift.runs.saved_model import SavedModel

EACH = [2, pytest.param(3, marks=pytest.mark.long)]
FEDERATED = [name for name, (each, _) in job.RUNS.items() if isinstance(each, ud.Federated)]
PEERS = [name for name in job.RUNS if name not in FEDERATED]
# Methods of peers know fewer figures between processes, and measure nodes on their rank's samples.
SKIPPED = {"consensus", "sign_matching", "node_accuracy"}


@pytest.fixture(scope="module", params=EACH, ids=lambda n: f"{n}-ranks")
def ranks(request, tmp_path_factory) -> list[dict[str, Any]]:
    """What every rank found."""

    def make(folder: Path) -> None:
        launch(request.param, job, str(folder))

    folder = made_once(tmp_path_factory, f"{request.param}-here", make)
    texts = [(folder / f"found-{rank}.json").read_text() for rank in range(request.param)]
    return [json.loads(text) for text in texts]


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """What a simulation with all data in one process finds."""
    clients = ud.Clients(**job.HIDDEN.given(range(len(job.SIZES))))
    found = {name: job.found_of(job.start(name, clients)) for name in job.RUNS}
    for name, algorithm in job.SAVED.items():
        run = testing.start(algorithm, clients=clients, **job.ALL)
        found[f"{name} saved"] = job.found_of(run)
    return found


def names_of(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(text, text.partition(" | ")[0]) for text in found["runs"]]


def test_every_rank_knows_all_sizes_and_holds_its_own(ranks) -> None:
    held = []
    for found in ranks:
        text, sizes, mine = found["clients"]
        assert sizes == list(job.SIZES)
        assert f"7 clients ({len(mine)} of them here), 4 to 12 samples each, 31 test" in text
        assert "needs to be asked for on rank" in found["foreign"]
        held += mine
    assert held == list(range(len(job.SIZES)))


def test_models_are_those_of_the_simulation(ranks, alone) -> None:
    for name, plain in names_of(ranks[0]):
        x = torch.tensor(alone[plain]["x"])
        apart = float((torch.tensor(ranks[0]["runs"][name]["x"]) - x).abs().max())
        assert apart <= 1e-12, (name, apart)
        if plain == "marsit":  # No sum is in floating point before the last sign.
            assert ranks[0]["runs"][name]["sha256"] == alone[plain]["sha256"]


def test_bits_are_those_of_ranks_that_can_read_everything(ranks) -> None:
    for name in FEDERATED:
        own, everything = ranks[0]["runs"][f"{name} | dealt"], ranks[0]["all here"][name]
        assert own["sha256"] == everything["sha256"], name
    for name in PEERS:
        own, everything = ranks[0]["runs"][f"{name} | blocks"], ranks[0]["all here"][name]
        assert own["sha256"] == everything["sha256"], name


def test_peers_are_stacked_as_where_ranks_can_read_everything(ranks) -> None:
    """Whether they can be is tried with clients that are on the rank."""
    for found in ranks:
        assert found["modes"] == ["stacked"] * len(PEERS)


def assert_close(one: Any, other: Any, where: str) -> None:
    if isinstance(other, dict):
        assert one.keys() == other.keys(), where
        for key, value in other.items():
            assert_close(one[key], value, f"{where} {key}")
    elif isinstance(other, float):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12), where
    else:
        assert one == other, where


def test_records_are_those_of_the_simulation(ranks, alone) -> None:
    for name, plain in names_of(ranks[0]):
        if name == "some tested | dealt":  # Some of the samples, in the order of ranks, are others.
            continue
        mine, theirs = ranks[0]["runs"][name]["records"], alone[plain]["records"]
        assert len(mine) == len(theirs) == 4
        for one, other in zip(mine, theirs, strict=True):
            for field in other.keys() - SKIPPED:
                assert_close(one[field], other[field], f"{name} {field}")
    tested = ranks[0]["runs"]["fedavg | blocks"]["records"][-1]
    assert {"loss", "train_loss", "validation_loss", "client_metrics"} <= tested.keys()
    assert tested["client_samples"] == "test"


def test_all_ranks_find_the_same(ranks) -> None:
    for found in ranks[1:]:
        for part in ("runs", "resumed", "all here", "other layout", "peers"):
            assert found[part] == ranks[0][part], part


def test_a_resumed_run_ends_as_one_that_was_not_stopped(ranks) -> None:
    for name, resumed in ranks[0]["resumed"].items():
        whole = ranks[0]["runs"][f"{name} saved | blocks"]
        assert resumed["sha256"] == whole["sha256"], name
        assert resumed["records"] == whole["records"][2:], name


def test_a_checkpoint_of_other_ranks_is_refused(ranks) -> None:
    said = ranks[0]["other layout"]
    assert "resume needs the run it was saved from, got clients of each rank = " in said


def test_peers_need_numbers_in_the_order_of_ranks(ranks) -> None:
    assert ranks[0]["peers"].startswith("NetFleet needs nodes that are numbered in the order of")


SENTENCES = {
    "shape": "samples of one shape and dtype on all ranks, got inputs (5,) torch.float64, "
    "targets () torch.int64 on rank 1 and inputs (6,)",
    "dtype": "got inputs (6,) torch.float32, targets () torch.int64 on rank 1",
    "bad": "Rank 1: Clients needs finite data, got NaN or Inf in the inputs of client 0",
    "none": "Rank 1: Clients.here needs at least one client on every rank, got none",
    "twice": "a number of its own for every client, got 0 on rank 0 and on rank 1",
    "beyond": "got 6 on rank 1",
    "some numbered": "numbers on all ranks or on none, got some on rank 0 and none on rank 1",
    "away": "Spans needs",
    "sharpness": "evaluation.sharpness needs all samples in one process, got 'Clients.here'",
    "labels": "Labels need to lie in 0...2",
    "not here": "needs a call on every rank at the same place with data of one kind, got none on",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_what_does_not_fit_is_said_on_every_rank(ranks, name: str) -> None:
    for found in ranks:
        assert SENTENCES[name] in found["refused"][name], found["refused"][name]


def test_tables_agree_as_if_they_were_one(ranks) -> None:
    pandas = pytest.importorskip("pandas")
    frames = [job.frame_of(rank).dropna() for rank in range(len(ranks))]
    own = [Table.read(frame, target="died") for frame in frames]
    train = [frame.iloc[table.rows[0]] for frame, table in zip(frames, own, strict=True)]
    whole = pandas.concat(train, ignore_index=True)
    kinds = {"age": "number", "dose": "number", "ward": "category"}
    aim = target_statistics(pandas.concat(frames)["died"], whole["died"], "died", None)
    told = statistics_of(whole, np.arange(len(whole)), kinds, aim, "refuse")
    columns = agree([told], "died", "refuse")
    for found in ranks:
        assert found["tables"]["columns"] == columns.to_json()
    stored = [table.stored(columns) for table in own]
    parts = [[torch.from_numpy(a) for a in (s.train.inputs, s.train.targets)] for s in stored]
    tests = [[torch.from_numpy(a) for a in (s.test.inputs, s.test.targets)] for s in stored]
    clients = ud.Clients([tuple(p) for p in parts], test=[tuple(t) for t in tests])
    net = torch.nn.Linear(len(columns.features), 2)
    torch.nn.init.zeros_(net.weight)
    torch.nn.init.zeros_(net.bias)
    run = ud.simulate(ud.FedAvg(lr=0.1), net, clients, mode="loop", kernels=False, **job.TABLE_RUN)
    want = job.found_of(run)
    found = ranks[0]["tables"]
    assert torch.allclose(torch.tensor(found["x"]), torch.tensor(want["x"]), atol=1e-6)
    assert found["records"][-1]["loss"] == pytest.approx(want["records"][-1]["loss"], rel=1e-5)


def test_an_experiment_of_own_tables_saves_the_agreed_columns(ranks, tmp_path_factory) -> None:
    pytest.importorskip("pandas")
    assert len({json.dumps(found["tables"]["experiment"]) for found in ranks}) == 1
    folder = made_once(tmp_path_factory, f"{len(ranks)}-here", lambda folder: None)
    saved = SavedModel.read(folder / "experiment")
    words = {c.name: c for c in saved.preprocessing.columns}["ward"].categories
    assert set(words) == {"a", "b", *(f"only {rank}" for rank in range(len(ranks)))}
    with pytest.warns(UserWarning, match=r"such as 'only 7'; they are .other."):
        predicted = saved.predict(job.frame_of(7).fillna(50.0))
    assert len(predicted) == 110


TABLES = {
    "kinds": "Column 'dose' needs one kind of cells in all tables, got numbers at rank 0 and words",
    "target": "Rank 0: The table needs target to be one of age, dose, ward, died, client, got",
    "column": "Column 'ward' needs to be in every table, got it at rank 0 and not at rank 1",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_do_not_fit_are_told_on_every_rank(ranks, name: str) -> None:
    for found in ranks:
        assert TABLES[name] in found["tables"]["refused"][name]


def test_here_needs_several_processes() -> None:
    with pytest.raises(ValueError, match=r"Clients\.here needs several processes, .* torchrun"):
        ud.Clients.here([job.HIDDEN.samples(0, 3)])


class OneRank:
    """Stands for the ranks of a run, of which there is one."""

    rank, size = 0, 1

    def texts(self, text: str) -> list[str]:
        return [text]

    def rows(self, values: Any) -> Any:
        return values


def test_validation_is_split_off_as_from_all_clients_together() -> None:
    given = job.HIDDEN.given(range(7))
    given.pop("validation")
    plain = ud.Clients(**given)
    apart = declare(lambda: ud.Clients(**given), OneRank())
    want, got = (OwnData(each, None).split(0.3, seed=5) for each in (plain, apart))
    assert got.sizes.tolist() == want.sizes.tolist()
    assert got.validation is not None
    assert want.validation is not None
    assert torch.equal(got.validation[0], want.validation[0])
    assert np.array_equal(got.owners["validation"], want.owners["validation"])
    for i in range(7):
        assert torch.equal(got[i][0], want[i][0])
