"""A site refuses what it must not do, and a refusal says nothing about its samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

import undrift as ud
from tests.support.federation import NAMES, experiment, own
from tests.support.site_tables import experiment_of, frame_of, table_of
from undrift.data.tables.preprocessing import (
    CategoryColumn,
    NumberColumn,
    Preprocessing,
    Target,
)
from undrift.data.tables.read import Table
from undrift.data.tables.transformer import TransformedColumns
from undrift.errors import DataError, UndriftError
from undrift.federation import Site, TableSite
from undrift.federation.columns import COLUMNS, columns_digest
from undrift.federation.messages import (
    AgreedColumns,
    ColumnsTaken,
    ExchangeReply,
    ExchangeRequest,
    LostState,
    Refusal,
    SiteMessage,
    decode,
    encode,
)
from undrift.federation.replies import lost
from undrift.federation.transport import answer
from undrift.models.layout import Layout

pytest.importorskip("pandas")
AGE, VISITS = NumberColumn("age", 40.0, 10.0), NumberColumn("visits", 15.0, 9.0)
WARD, DIED = CategoryColumn("ward", ("a", "b")), Target("died", ("no", "yes"))


def told(text: str) -> bytes:
    """Return the message of a centre that tells columns."""
    digest = columns_digest("died", None, "refuse")
    tensor = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return encode(SiteMessage(AgreedColumns(experiment=digest), [tensor]))


def table_site(folder: Path, log: list[str], **changes: Any) -> TableSite:
    table = replace(table_of(0), **changes)
    return TableSite(table, experiment_of, folder, name="one", say=log.append)


@pytest.mark.parametrize(
    ("columns", "known"),
    [
        pytest.param(Preprocessing((AGE,), Target("died", ("x", "z"))), True, id="classes"),
        pytest.param(Preprocessing((AGE,), Target("died")), True, id="no classes"),
        pytest.param(Preprocessing((AGE,), Target("ward", ("x",))), False, id="target"),
        pytest.param(Preprocessing((AGE,), Target("age", ("0",))), False, id="numbers"),
        pytest.param(Preprocessing((CategoryColumn("age", ("0",)),), DIED), False, id="category"),
        pytest.param(Preprocessing((NumberColumn("ward", 0, 1),), DIED), False, id="number"),
        pytest.param(Preprocessing((NumberColumn("age", 0, 1e-300),), DIED), True, id="scale"),
        pytest.param(Preprocessing((NumberColumn("weight", 0, 1),), DIED), False, id="unknown"),
    ],
)
def test_no_cell_is_in_a_refusal(columns: Preprocessing, known: bool, tmp_path: Path) -> None:
    """With `known` columns the error quotes a cell, which is for the site's log alone."""
    log: list[str] = []
    reply = answer(table_site(tmp_path, log), told(columns.to_json()))
    header = decode(reply).header
    assert isinstance(header, Refusal)
    frame = frame_of(0)
    cells = {str(cell) for name in frame.columns for cell in frame[name] if len(str(cell)) > 1}
    words = set(header.reason.replace("'", " ").replace(",", " ").split())
    assert not cells & words
    assert not any(cell in header.reason for cell in map(str, frame["age"]))
    assert bool(log) == known
    if known:
        assert "got " in log[0]
        assert "its own log" in header.reason


def test_cells_cannot_be_found_by_trying_many_columns(tmp_path: Path) -> None:
    """Whether a scale fits says how large the numbers are, so a site tells it once."""
    site = table_site(tmp_path, [])
    narrow = Preprocessing((NumberColumn("age", 0, 1e-300),), DIED)
    fitting = Preprocessing((AGE,), DIED)
    answer(site, told(narrow.to_json()))
    second = decode(answer(site, told(fitting.to_json()))).header
    assert isinstance(second, Refusal)
    assert "until its operator starts it again" in second.reason
    again = table_site(tmp_path, [])
    assert isinstance(decode(answer(again, told(fitting.to_json()))).header, ColumnsTaken)


def test_columns_that_the_operator_has_left_out_are_not_trained_on(tmp_path: Path) -> None:
    table = Table.read(frame_of(0), target="died", drop=["visits"], alone=False)
    site = TableSite(table, experiment_of, tmp_path, name="one")
    reply = decode(answer(site, told(Preprocessing((AGE, VISITS), DIED).to_json()))).header
    assert isinstance(reply, Refusal)
    assert "needs columns that its table offers, got 'visits'" in reply.reason


def test_no_archive_is_read_from_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive says which objects are built, and so does the code that the centre would name."""
    read: list[Any] = []
    monkeypatch.setattr(TransformedColumns, "read", lambda *each, **named: read.append(each))
    values = json.loads(Preprocessing((AGE,), DIED).to_json())
    values["columns"] = [{"kind": "skops", "names": ["age"], "features": ["age"], "archive": ""}]
    text = json.dumps(values)
    header = decode(answer(table_site(tmp_path, []), told(text))).header
    assert isinstance(header, Refusal)
    assert "columns of kind number or category, got 'skops'" in header.reason
    (tmp_path / COLUMNS).write_text(text)
    with pytest.raises(UndriftError, match="number or category"):
        table_site(tmp_path, [])
    assert not read
    Preprocessing.from_json(text)
    assert len(read) == 1, "a file of one's own may have one"


def exchange(site: Site, **versions: Any) -> bytes:
    """Return a request to a client for its upload; the tensors are those of SCAFFOLD."""
    vector = Layout.of(site.experiment.model).gather(site.experiment.model)
    header = ExchangeRequest(
        experiment=site.experiment.digest,
        client=0,
        stage="upload",
        attempt=0,
        steps=1,
        mean_count=1.0,
        width=20,
        **versions,
    )
    return encode(SiteMessage(header, [vector] * (3 if header.base < 0 else 2)))


@pytest.mark.parametrize(
    "versions",
    [
        {"t": 1, "base": 1, "keep": 10**6},
        {"t": 1, "base": 1, "keep": 2},
        {"t": 0, "base": 1, "keep": 1},
        {"t": 1, "base": 3, "keep": 1},
    ],
    ids=str,
)
def test_no_request_removes_a_state_that_may_be_asked_for(
    versions: dict[str, int], tmp_path: Path
) -> None:
    described = experiment(ud.Scaffold(lr=0.1))
    site = Site(described, own(0), tmp_path, name=NAMES[0])
    first = decode(answer(site, exchange(site, t=0, base=-1, keep=-1))).header
    assert isinstance(first, ExchangeReply)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    reply = decode(answer(site, exchange(site, **versions))).header
    assert isinstance(reply, Refusal)
    assert "needs to keep the version that it starts from" in reply.reason
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    again = exchange(site, t=1, base=1, keep=1, token=first.token)
    assert isinstance(decode(answer(site, again)).header, ExchangeReply)


@pytest.mark.parametrize("token", ["", "0" * 16])
def test_a_version_of_another_attempt_is_not_the_one_that_was_counted(
    token: str, tmp_path: Path
) -> None:
    site = Site(experiment(ud.Scaffold(lr=0.1)), own(0), tmp_path, name=NAMES[0])
    answer(site, exchange(site, t=0, base=-1, keep=-1))
    header = decode(answer(site, exchange(site, t=1, base=1, keep=1, token=token))).header
    assert isinstance(header, LostState)
    assert (header.base, header.held) == (1, [1])
    assert "got another one on its disk" in str(lost("north", header))


@pytest.mark.parametrize("token", ["../../etc", "0" * 15, "0" * 16 + "\n", "0" * 15 + "G"])
def test_a_token_is_no_path(token: str) -> None:
    with pytest.raises(ValidationError, match="token"):
        ExchangeReply(
            client=0,
            t=0,
            stage="upload",
            attempt=0,
            gradients=1,
            samples=1,
            seconds=0.1,
            token=token,
        )


def test_an_error_of_the_data_is_for_the_sites_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> None:
        raise DataError("Row 1 of column 'hiv' needs a number, got 'no'; correct it.")

    site = Site(experiment(ud.Scaffold(lr=0.1)), own(0), tmp_path, name=NAMES[0])
    monkeypatch.setattr(site, "_run", fail)
    header = decode(answer(site, exchange(site, t=0, base=-1, keep=-1))).header
    assert isinstance(header, Refusal)
    assert "hiv" not in header.reason
    assert "hiv" in caplog.text
