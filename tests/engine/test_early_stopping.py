"""A run stops when its tests get no better, and keeps the best model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.engine.early_stopping import BestWatch
from undrift.results.record import Record

INPUTS = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS @ torch.tensor([1.0, -1.0, 0.5])


def run(**options: Any) -> ud.Run:
    clients = ud.Clients(
        [(INPUTS[:20], TARGETS[:20]), (INPUTS[20:40], TARGETS[20:40])],
        test=(INPUTS[40:], TARGETS[40:]),
    )
    chosen = {"work": "steps:5", "rounds": 200, "batch_size": 10, **options}
    torch.manual_seed(0)
    return ud.simulate(ud.FedAvg(lr=0.1), nn.Linear(3, 1), clients, **chosen)


def record(round: int, loss: float | None) -> Record:
    return Record(round, 1, loss, None, 0, 0, 0, 0, 0.0)


def watched(losses: list[float | None], **rule: Any) -> tuple[BestWatch, list[bool]]:
    watch, records, ends = BestWatch(ud.EarlyStopping(**rule)), [], []
    for t, loss in enumerate(losses):
        records.append(record(t + 1, loss))
        if loss is not None:
            ends.append(watch.add(records, lambda t=t: torch.tensor(t)))
    return watch, ends


def test_tests_that_are_no_better_count_and_a_better_one_begins_anew() -> None:
    watch, ends = watched([3.0, None, 2.0, 2.5, 1.0, 1.0, 1.5], patience=2)
    assert ends == [False, False, False, False, False, True]
    assert watch.best is not None
    assert (watch.best.round, watch.best.value, int(watch.best.x)) == (5, 1.0, 4)


def test_a_little_better_is_not_better() -> None:
    _, ends = watched([3.0, 2.95, 2.9], patience=2, min_delta=0.2)
    assert ends[-1]


def test_a_run_stops_with_its_best_model() -> None:
    stopped = run(early_stopping=3)
    records = list(stopped)
    best = stopped.best
    assert best is not None
    assert len(records) < 200
    assert stopped.round == stopped.rounds == len(records)
    assert best.metric == "rmse"
    assert best.value == min((r.metrics or {})["rmse"] or 9 for r in records)
    assert best.round == len(records) - 3
    assert "3 tests without a better rmse" in stopped.stopped_early
    assert f"round {stopped.round} of 200, stopped early, rmse" in repr(stopped)
    assert repr(best).endswith("x=<4 numbers>)")
    with torch.no_grad():
        error = stopped.best_model(INPUTS[40:]).squeeze(1) - TARGETS[40:]
    assert float(error.square().mean().sqrt()) == pytest.approx(best.value, rel=1e-5)


def test_the_last_test_counts_too() -> None:
    ended = run(rounds=3, early_stopping=9, evaluation=ud.EvaluationOptions(every=1))
    records = list(ended)
    values = [(each.metrics or {})["rmse"] or 9 for each in records]
    assert values[-1] == min(values)  # This run gets better in every round.
    assert ended.best is not None
    assert (ended.best.round, ended.stopped_early) == (3, "")
    assert torch.equal(ended.best.x, ended.mean)


@pytest.mark.parametrize("after", ["the best", "a worse one", "the end"])
def test_a_run_that_goes_on_stops_where_it_would_have_stopped(after: str, tmp_path: Path) -> None:
    whole = run(early_stopping=3)
    list(whole)
    assert whole.best is not None
    rounds = whole.best.round + {"the best": 0, "a worse one": 2, "the end": 3}[after]
    with run(early_stopping=3, checkpoint=tmp_path) as first:
        while first.round < rounds:
            next(first)
    resumed = run(early_stopping=3, resume=tmp_path)
    list(resumed)
    assert resumed.round == whole.round
    assert resumed.stopped_early == whole.stopped_early
    assert resumed.best is not None
    assert resumed.best[:3] == whole.best[:3]
    assert torch.equal(resumed.best.x, whole.best.x)


def test_a_best_of_another_metric_is_not_compared(tmp_path: Path) -> None:
    with run(rounds=2, early_stopping=3, checkpoint=tmp_path) as first:
        list(first)
    by_loss = ud.EarlyStopping(3, metric="loss")
    assert run(rounds=4, early_stopping=by_loss, resume=tmp_path).best is None
    best = run(rounds=4, early_stopping=5, resume=tmp_path).best
    assert best is not None
    assert best.metric == "rmse"


def test_validation_samples_decide_where_there_are_some() -> None:
    half = (INPUTS[40:50], TARGETS[40:50])
    clients = ud.Clients([(INPUTS[:40], TARGETS[:40])], test=half, validation=half)
    stopped = ud.simulate(
        ud.FedAvg(lr=0.1), nn.Linear(3, 1), clients, work="steps:5", rounds=3, early_stopping=2
    )
    list(stopped)
    assert stopped.best is not None
    assert stopped.best.metric == "validation_rmse"


@pytest.mark.parametrize("value", [0, True, "ten", 2.5])
def test_patience_is_a_whole_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"whole number|a number of tests"):
        run(early_stopping=value)


def test_a_run_has_a_line_a_bar_and_a_log(caplog, capsys) -> None:
    with caplog.at_level(logging.INFO, logger="undrift"):
        shown = run(rounds=2, progress=True)
        assert repr(shown).startswith("<run of FedAvg(lr=0.1")
        assert "round 0 of 2" in repr(shown)
        list(shown)
    assert "round 2 of 2, rmse" in repr(shown)
    assert [line for line in caplog.messages if line.startswith("round    2")]
    assert "FedAvg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("metric", "clue"),
    [
        ("rsme", r"^EarlyStopping needs metric to be one of loss, .*rmse.*; the nearest is 'rmse'"),
        ("validation_rmse", "needs validation samples for validation_rmse, got none; give the"),
        ("accuracy", "needs metric to be one of loss, .*rmse.*, got 'accuracy'"),
    ],
)
def test_a_metric_that_no_test_has_is_refused_before_the_first_round(
    metric: str, clue: str
) -> None:
    with pytest.raises(ValueError, match=clue):
        run(early_stopping=ud.EarlyStopping(2, metric=metric))
    run(early_stopping=ud.EarlyStopping(2, metric="rmse")).close()
