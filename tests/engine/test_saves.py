"""A run is saved by time and at an interrupt, and what is saved is a whole round."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift as ud
from undrift import testing
from undrift.engine.checkpoint import due, trial
from undrift.engine.checkpoint.due import SaveTimes
from undrift.engine.checkpoint.store import saved_rounds
from undrift.errors import UndriftError
from undrift.states import SegmentStore

ROUNDS = 6
METHODS = [ud.Scaffold(lr=0.1), ud.NetFleet(lr=0.05), ud.Marsit(lr=0.05, server_lr=0.01)]


def started(algorithm: Any, **options: Any) -> ud.Run:
    evaluation = ud.EvaluationOptions(every=1)
    return testing.start(algorithm, rounds=ROUNDS, evaluation=evaluation, **options)


class TestTimes:
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [0.0]
        monkeypatch.setattr("undrift.engine.checkpoint.due.time.monotonic", lambda: now[0])
        return now

    def test_rounds_decide_where_they_are_given(self) -> None:
        times = SaveTimes(3)
        assert not times.by_time
        assert [r for r in range(1, 9) if times.waited(r, 8)] == [3, 6, 8]
        times._total = 1e9
        assert times.affordable(10**12), "whoever asks for rounds gets them"

    def test_a_minute_decides_otherwise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = self.clock(monkeypatch)
        times = SaveTimes(None)
        now[0] = 59.9
        assert not times.waited(5, 10)
        now[0] = 60.0
        assert times.waited(5, 10)
        assert not times.waited(10, 10), "nothing is left to do after the last round"
        with times.saving(1):
            now[0] = 61.0
        assert not times.waited(6, 10)
        now[0] = 120.9
        assert not times.waited(6, 10)
        now[0] = 121.0
        assert times.waited(6, 10)

    @pytest.mark.parametrize("slow", [1, 2])
    @pytest.mark.parametrize("seconds", [0.1, 4.0, 12.0, 40.0])
    def test_saving_takes_less_than_three_per_cent_of_five_minutes_or_more(
        self, monkeypatch: pytest.MonkeyPatch, seconds: float, slow: int
    ) -> None:
        """A round takes 10 s; a checkpoint may take twice as long as the trial has told."""
        now = self.clock(monkeypatch)
        times, spent, saves = SaveTimes(None), seconds / 50, 0
        with times.trying(10**6):
            now[0] += seconds / 50
        for round in range(1, 2001):
            now[0] += 10
            if times.waited(round, 10**6) and times.affordable(50 * 10**6):
                took = seconds * (1 + (slow - 1) * (saves % 2 == 0))
                with times.saving(50 * 10**6):
                    now[0] += took
                    spent, saves = spent + took, saves + 1
            assert spent <= 0.03 * max(300, now[0]), "also while the run is young"
        assert saves > 0
        assert spent / now[0] > (0.001 if seconds < 1 else 0.02)

    def test_more_bytes_are_expected_to_take_longer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = self.clock(monkeypatch)
        times = SaveTimes(None)
        assert not times.cost_is_known
        with times.trying(100):
            now[0] += 0.1
        assert times.cost_is_known
        assert times.affordable(4400), "4.4 s may become 8.8 s, of which five minutes have 9 s"
        assert not times.affordable(4600)
        now[0] = 600.0
        assert times.affordable(4600)


def test_a_run_of_less_than_a_minute_saves_nothing(tmp_path: Path) -> None:
    run = started(METHODS[0], checkpoint=tmp_path / "x", checkpoint_every=None)
    testing.finish(run)
    assert saved_rounds(tmp_path / "x") == []
    run.discard_checkpoints()
    assert not (tmp_path / "x").exists()


def test_a_run_by_time_goes_on_and_ends_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "SECONDS", 0.0)
    monkeypatch.setattr(due, "SHARE", 1e9)
    run = started(METHODS[0], checkpoint=tmp_path, checkpoint_every=None)
    for _ in range(4):
        next(run)
    assert saved_rounds(tmp_path) == [4, 3]
    resumed = started(METHODS[0], checkpoint=tmp_path, checkpoint_every=None, resume=tmp_path)
    assert torch.equal(testing.finish(resumed), testing.finish(started(METHODS[0])))


class Slow(SegmentStore):
    """A store on a disk that takes 20 ms for each state."""

    def put(self, client: int, state: Any) -> None:
        now[0] += 0.02
        super().put(client, state)


now = [0.0]


@pytest.mark.parametrize("enough", [False, True])
def test_the_first_checkpoint_waits_where_a_trial_says_that_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enough: bool
) -> None:
    """A state takes 0.02 s, and a model as long; there are three of each, and the share decides."""
    monkeypatch.setattr("undrift.engine.checkpoint.due.time.monotonic", lambda: now[0])
    monkeypatch.setattr(due, "SHORTEST", 10.0 if enough else 3.0)
    monkeypatch.setattr(trial, "SegmentStore", Slow)
    monkeypatch.setattr(trial, "STATES", 1)
    run = started(METHODS[0], checkpoint=tmp_path, checkpoint_every=None)
    next(run)
    assert saved_rounds(tmp_path) == []
    now[0] += 60.0
    run._save_times._start = now[0]
    next(run)
    assert saved_rounds(tmp_path) == ([2] if enough else [])
    assert run._save_times.cost_is_known
    assert not list(tmp_path.glob(".*.part")), "the trial leaves nothing"
    run.close()


class Interrupted:
    """Raises an interrupt at the n-th call, after the call is done."""

    def __init__(self, function: Any, at: int) -> None:
        self._function, self._left = function, itertools.count(at - 1, -1)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = self._function(*arguments, **options)
        if next(self._left) == 0:
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("where", ["_advance", "_make_record", "_tested", "_compare_cost"])
def test_an_interrupt_inside_a_round_leaves_the_round_before(
    algorithm: Any, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(algorithm, checkpoint=tmp_path, checkpoint_every=None)
    next(run), next(run)
    before, states = run.x.clone(), dict(run.client_states)
    with monkeypatch.context() as patch:
        patch.setattr(run, where, Interrupted(getattr(run, where), 1))
        with pytest.raises(KeyboardInterrupt):
            next(run)
    assert (run.round, len(run.records)) == (2, 2)
    assert torch.equal(run.x, before)
    assert run.client_states == states
    assert run.save()
    run.close()
    assert saved_rounds(tmp_path) == [2]
    resumed = started(algorithm, resume=tmp_path)
    whole = started(algorithm)
    assert torch.equal(testing.finish(resumed), testing.finish(whole))
    assert resumed.totals.gradients == whole.totals.gradients
    assert torch.equal(testing.finish(run), whole.x), "the run itself goes on as well"
    assert run.totals.gradients == whole.totals.gradients


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda method: type(method).__name__)
def test_an_interrupt_in_the_first_round_starts_anew(
    algorithm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(algorithm, checkpoint=tmp_path, checkpoint_every=None)
    with monkeypatch.context() as patch:
        patch.setattr(run, "_make_record", Interrupted(run._make_record, 1))
        with pytest.raises(KeyboardInterrupt):
            next(run)
    assert not run.save(), "there is nothing to save"
    whole = started(algorithm)
    assert torch.equal(testing.finish(run), testing.finish(whole))
    assert run.totals.gradients == whole.totals.gradients


def test_a_state_that_is_being_replaced_is_not_saved(tmp_path: Path) -> None:
    run = started(METHODS[0], checkpoint=tmp_path, checkpoint_every=None)
    next(run)

    class Torn(dict[int, Any]):
        def update(self, *others: Any, **more: Any) -> None:
            raise KeyboardInterrupt

    run.client_states = Torn(run.client_states)
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert not run.save()
    assert saved_rounds(tmp_path) == []


def test_nothing_is_written_that_was_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = started(METHODS[0])
    testing.finish(run)
    assert not run.save()
    assert list(tmp_path.iterdir()) == []


def test_two_runs_do_not_save_to_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run is another process's, as far as the lock can tell."""
    run = started(METHODS[0], checkpoint=tmp_path)
    next(run)
    lock = (tmp_path / "undrift.lock").read_text()
    run.close()
    assert not (tmp_path / "undrift.lock").exists()
    (tmp_path / "undrift.lock").write_text(lock.replace('"host": "', '"host": "not-'))
    with pytest.raises(UndriftError, match=r"^A run needs a folder of its own, got .* on not-"):
        started(METHODS[0], checkpoint=tmp_path, resume=tmp_path)


def test_checkpoint_every_is_checked() -> None:
    for bad in (0, -1, 1.5):
        with pytest.raises(ValueError, match="checkpoint_every >= 1, a whole number or None"):
            started(METHODS[0], checkpoint_every=bad)
