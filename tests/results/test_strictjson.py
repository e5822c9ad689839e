"""JSON that every reader takes, whatever became of the numbers."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift.analysis.drift import Drift
from undrift.engine.checkpoint import store
from undrift.results.record import Record, Totals
from undrift.results.strictjson import dumps, dumps_exactly, loads
from undrift.results.trial import Journal, Trial, read_records, read_trial
from undrift.runs.folder import read
from undrift.runs.local_models import DriftLog

NAN, INF = float("nan"), float("inf")
TRIAL = Trial("FedAvg", "FedAvg", {"lr": 0.1, "tau": INF}, seed=3, rounds=5)


def strictly(text: str) -> Any:
    """As browsers and jq read it."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_ordinary_values_are_written_as_ever() -> None:
    value = {"a": [1, 2.5, None, True], "b": {"c": "NaN"}}
    assert dumps(value, indent=1) == dumps_exactly(value, indent=1) == json.dumps(value, indent=1)


def test_numbers_that_json_lacks_are_null() -> None:
    value = {"a": NAN, "b": [INF, 1.0, {"c": -INF}], "d": (NAN,)}
    assert strictly(dumps(value)) == {"a": None, "b": [None, 1.0, {"c": None}], "d": [None]}


def test_notes_say_which_nulls_were_what() -> None:
    told = strictly(dumps_exactly({"loss": NAN, "accuracy": None, "a/b~": {"c": [0.0, -INF]}}))
    assert told == {
        "loss": None,
        "accuracy": None,
        "a/b~": {"c": [0.0, None]},
        "nonfinite": {"/loss": "NaN", "/a~1b~0/c/1": "-Infinity"},
    }


def test_files_with_bare_words_are_read() -> None:
    told = loads('{"loss": NaN, "bound": -Infinity}')
    assert math.isnan(told["loss"])
    assert told["bound"] == -INF


@pytest.mark.parametrize("pointer", ["/b", "/a/1", "/a/x", "/c/d", "/n/d", "/n/", "/f", ""])
def test_notes_that_lead_nowhere_are_damage(pointer: str) -> None:
    text = json.dumps({"a": [None], "c": 1, "n": None, "f": 1.0, "nonfinite": {pointer: "NaN"}})
    with pytest.raises(ValueError, match="nonfinite"):
        loads(text)


NUMBERS = st.floats() | st.integers() | st.none()
KEYS = st.text("a/~01", max_size=2)  # what pointers escape, and what looks like a place in a list
TREES = st.recursive(
    NUMBERS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=60)
@given(st.dictionaries(KEYS, TREES, max_size=3))
def test_whatever_is_written_is_strict_and_comes_back(value: dict[str, Any]) -> None:
    text = dumps_exactly(value)
    strictly(text)
    assert repr(loads(text)) == repr(value)  # for which NaN is NaN


def record(round: int, loss: float | None) -> Record:
    return Record(round, 4, loss, 0.5, 100, 200, 8, 160, 0.5)


def test_records_tell_what_is_not_a_number_from_what_was_not_measured(tmp_path: Path) -> None:
    losses = [1.5, None, NAN, INF]
    journal = Journal(tmp_path, "a", TRIAL, after=None)
    for round, loss in enumerate(losses, 1):
        journal.add(record(round, loss))
    journal.end("diverged", facts={"drift": {"divergence": NAN}})
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [strictly(line)["loss"] for line in lines] == [1.5, None, None, None]
    strictly((tmp_path / "a.json").read_text())
    trial = read_trial(tmp_path, "a")
    assert trial is not None
    assert repr([each.loss for each in trial.records]) == repr(losses)
    assert trial.damaged == 0
    assert trial.settings == TRIAL.settings
    assert math.isnan(trial.facts["drift"]["divergence"])
    # Going on writes the kept lines anew.
    Journal(tmp_path, "a", TRIAL, after=replace(record(4, -INF)))
    kept, _ = read_records(tmp_path / "a.jsonl")
    assert repr([each.loss for each in kept]) == repr([1.5, None, NAN, -INF])


def test_a_record_with_a_bare_word_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(json.dumps(record(1, NAN).to_dict()) + "\n")
    assert "NaN" in path.read_text()
    (kept,), damaged = read_records(path)
    assert damaged == 0
    assert kept.loss is not None
    assert math.isnan(kept.loss)


def test_a_run_that_diverges_leaves_only_what_strict_readers_take(call, tmp_path: Path) -> None:
    out, saved = tmp_path / "out", tmp_path / "saved"
    arguments = ["--rounds", "3", "--clients", "6", "--work", "steps:1", "--lr", "1e30"]
    places = ["--out", str(out), "--checkpoint", str(saved)]
    code, printed, _ = call("run", "fedavg", *arguments, *places, "--quiet", "--json")
    assert code == 1
    final = strictly(printed.splitlines()[-1])
    assert (final["status"], final["round"], final["loss"]) == ("diverged", 1, None)
    (line,) = (out / "records.jsonl").read_text().splitlines()
    assert strictly(line)["nonfinite"] == {"/loss": "NaN"}, "after one step it is not a number"
    for path in out.glob("*.json"):
        strictly(path.read_text())
    (held,) = read(out).trials
    assert math.isnan(held.records[0].loss or 0)

    body, _, _ = (saved / "round-00000001" / "manifest.json").read_text().rstrip().rpartition("\n")
    assert strictly(body)["record"]["loss"] is None

    page = (out / "report.html").read_text()
    embedded = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert embedded
    for data in embedded:
        strictly(data)

    code, printed, _ = call("report", str(out), "--json")
    assert code == 0
    assert strictly(printed.splitlines()[-1])["FedAvg"]["status"] == ["diverged"]


def test_the_drift_of_a_run_that_diverges_is_strict_too(tmp_path: Path) -> None:
    path = tmp_path / "a.drift.jsonl"
    path.write_text('{"round": 1, "divergence": NaN, "cosine": null}\n')  # of an earlier version
    trial = replace(TRIAL, records=[record(1, 0.5)])
    DriftLog(Drift(), path).begin(trial)  # A run that goes on writes the file anew.
    (line,) = path.read_text().splitlines()
    assert strictly(line)["nonfinite"] == {"/divergence": "NaN"}
    DriftLog(Drift(), path).begin(trial)
    assert path.read_text() == line + "\n"


def test_a_checkpoint_brings_back_what_is_not_a_number(tmp_path: Path) -> None:
    snapshot = store.Snapshot(
        round=1,
        x0=torch.zeros(2),
        server=(torch.ones(2),),
        clients={},
        totals=Totals(),
        record=record(1, NAN),
        settings={"method": "FedAvg"},
    )
    store.write(tmp_path, snapshot)
    kept = store.read(
        tmp_path,
        1,
        settings=snapshot.settings,
        templates=lambda x0: ((x0,), ()),
        record_type=Record,
        device=torch.device("cpu"),
    )
    assert kept.record is not None
    assert math.isnan(kept.record.loss or 0)
