"""Tables at sites agree on their columns, and then train as the simulator does on all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undrift as ud
from tests.support.site_tables import NAMES, OPTIONS, experiment_of, frame_of, table_of
from undrift.data.tables.fit import agree, statistics_of, target_statistics
from undrift.data.tables.preprocessing import Preprocessing
from undrift.data.tables.read import Table
from undrift.errors import DataError, UndriftError
from undrift.federation import (
    Centre,
    InProcess,
    TableSite,
    agree_columns,
)
from undrift.federation.columns import COLUMNS
from undrift.federation.messages import CensusRequest, Refusal, SiteMessage, decode, encode

pandas = pytest.importorskip("pandas")


def sites(folder: Path) -> list[TableSite]:
    return [
        TableSite(table_of(i), experiment_of, folder / name, name=name)
        for i, name in enumerate(NAMES)
    ]


class Listening(InProcess):
    """Keeps all bytes that sites send."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.heard: list[bytes] = []

    def ask(self, requests: Any, **limits: float) -> Any:
        for arrived in super().ask(requests):
            self.heard.append(arrived.data)
            yield arrived


def pooled() -> Preprocessing:
    """The columns of one table with all sites' rows."""
    tables = [table_of(i) for i in range(3)]
    train = pandas.concat([table.frame.iloc[table.rows[0]] for table in tables], ignore_index=True)
    kinds: Any = {"age": "number", "ward": "category", "visits": "number"}
    aim = target_statistics(train["died"], train["died"], "died", None)
    told = statistics_of(train, np.arange(len(train)), kinds, aim, "refuse")
    return agree([told], "died", "refuse")


def test_sites_train_on_agreed_columns_as_the_simulator_on_one_table(tmp_path: Path) -> None:
    transport = Listening(sites(tmp_path))
    agreed = agree_columns(transport, "died")
    assert agreed.columns == pooled()
    told = b"".join(transport.heard)
    for i in range(3):
        cells = frame_of(i)["age"].tolist()
        assert not any(repr(cell).encode() in told for cell in cells), "no row leaves a site"
    statistics = [len(table_of(i).statistics.to_json()) for i in range(3)]
    assert agreed.bytes_up == sum(statistics)
    assert agreed.bytes_down == 3 * len(agreed.columns.to_json())

    experiment = experiment_of(agreed.columns)
    centre = Centre(experiment, transport)
    records = list(centre)
    stored = [table_of(i).stored(agreed.columns) for i in range(3)]
    pairs = [tuple(map(torch.from_numpy, (s.train.inputs, s.train.targets))) for s in stored]
    tests = [tuple(map(torch.from_numpy, (s.test.inputs, s.test.targets))) for s in stored]
    run = ud.simulate(
        experiment.algorithm,
        experiment.model,
        ud.Clients(pairs, test=tests),
        mode="loop",
        kernels=False,
        **OPTIONS,
    )
    wanted = list(run)
    assert centre.model_sha256 == run.model_sha256
    assert records[-1].loss == pytest.approx(wanted[-1].loss, rel=1e-6)
    assert records[-1].accuracy == pytest.approx(wanted[-1].accuracy)


def test_a_site_that_is_started_again_knows_the_columns(tmp_path: Path) -> None:
    agreed = agree_columns(InProcess(sites(tmp_path)), "died")
    again = sites(tmp_path)
    assert all(site.columns == agreed.columns for site in again)
    assert (tmp_path / "north" / COLUMNS).read_text() == agreed.columns.to_json()
    told = agree_columns(InProcess(again), "died", columns=agreed.columns)
    assert told.bytes_up == 0
    other = Preprocessing(agreed.columns.columns[:1], agreed.columns.target)
    with pytest.raises(UndriftError, match="needs the columns that it has begun with, got others"):
        agree_columns(InProcess(again), "died", columns=other)


def test_a_site_refuses_before_columns_are_agreed_and_for_another_target(tmp_path: Path) -> None:
    (site, *_) = sites(tmp_path)
    reply = site.answer(decode(encode(SiteMessage(CensusRequest(experiment="any")))))
    assert isinstance(reply.header, Refusal)
    assert "needs columns that all sites have agreed on, got none yet" in reply.header.reason
    with pytest.raises(UndriftError, match="needs a request for columns that predict 'died'"):
        agree_columns(InProcess([site]), "ward")


def test_tables_that_do_not_fit_name_their_sites(tmp_path: Path) -> None:
    words = Table.read(frame_of(1).assign(visits="many"), target="died", alone=False)
    both = [
        TableSite(table, experiment_of, tmp_path / name, name=name)
        for table, name in zip([table_of(0), words], NAMES, strict=False)
    ]
    with pytest.raises(DataError, match="numbers at site east and words at site north"):
        agree_columns(InProcess(both), "died")
