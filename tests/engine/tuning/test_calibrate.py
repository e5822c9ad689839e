"""Calibration measures once which execution is the fastest, and remembers it."""

import json
from typing import Any

import pytest
import torch

import undrift as ud
from tests.engine.convolutional import convolutional_net, convolutional_run
from tests.support.runs import finished
from undrift.engine.execution import cohort
from undrift.engine.execution.effort import Effort, machine_seconds
from undrift.engine.tuning import calibrate, memory, watch
from undrift.engine.tuning.calibrate import Cost
from undrift.engine.tuning.memory import Finding
from undrift.engine.tuning.rules import Candidate
from undrift.engine.tuning.watch import CostWatch

TWO = ud.ExecutionOptions(threads=2)


class TestCalibration:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv(calibrate.VARIABLE, "1")
        monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "undrift"))
        monkeypatch.setattr(calibrate, "LEAST", 1)
        monkeypatch.setattr(calibrate, "WORTH", 0)
        self.file = tmp_path / "undrift" / "calibration.json"

    def costs(self, monkeypatch, **milliseconds: float | Cost) -> list[str]:
        """Give each mode a cost of its own; return a list that grows with the modes tried."""
        tried: list[str] = []

        def cost(how: Candidate, *others) -> Cost:
            tried.append(how.mode)
            given = milliseconds[how.mode]
            return given if isinstance(given, Cost) else Cost(given / 1e3, given / 1e3)

        monkeypatch.setattr(calibrate, "_cost_of", cost)
        monkeypatch.setattr(calibrate, "machine_seconds", lambda: None)
        return tried

    def kept(self) -> list[dict[str, Any]]:
        return list(json.loads(self.file.read_text()).values()) if self.file.exists() else []

    def test_the_fastest_is_taken_and_remembered_with_its_figures(self, monkeypatch) -> None:
        tried = self.costs(monkeypatch, stacked=2.0, threads=0.5, loop=0.0812)
        run = convolutional_run(execution=TWO)
        figures = (
            "in ms a gradient: stacked 2, threads 0.5, loop 0.0812, loop with channels last 0.0812"
        )
        assert (run.mode, run.why) == ("loop", f"the fastest when measured, {figures}")
        assert set(tried) == {"threads", "stacked", "loop"}
        assert [found["mode"] for found in self.kept()] == ["loop"]
        tried.clear()
        again = convolutional_run(execution=TWO)
        assert (again.mode, again.why) == ("loop", f"the fastest when it was measured, {figures}")
        assert not tried

    def test_candidates_take_turns_and_medians_count(self, monkeypatch) -> None:
        """The loop has the shortest trial of all, and the longest median."""
        turns = iter(range(10**6))
        times = {"stacked": [1.0] * 6, "threads": [2.0] * 6, "loop": [9, 0.1, 3, 3, 3, 9]}
        tried: list[str] = []

        def cost(how: Candidate, *others) -> Cost:
            tried.append(how.mode)
            value = times[how.mode][next(turns) // 3]
            return Cost(value, value)

        monkeypatch.setattr(calibrate, "_cost_of", cost)
        monkeypatch.setattr(calibrate, "machine_seconds", lambda: None)
        assert convolutional_run(execution=TWO).mode == "stacked"
        assert tried == ["stacked", "threads", "loop"] * 6

    def test_the_layout_is_measured_and_remembered_too(self, monkeypatch) -> None:
        def cost(how: Candidate, *others) -> Cost:
            seconds = 3.0 if how.mode != "threads" else 1.0 if how.channels_last else 2.0
            return Cost(seconds, seconds)

        monkeypatch.setattr(calibrate, "_cost_of", cost)
        monkeypatch.setattr(calibrate, "machine_seconds", lambda: None)
        run = convolutional_run(execution=TWO)
        assert (run.mode, run.execution.channels_last) == ("threads", True)
        assert "threads 2e+03, loop 3e+03, threads with channels last 1e+03" in run.why
        monkeypatch.setattr(calibrate, "_cost_of", lambda *given: pytest.fail("again"))
        again = convolutional_run(execution=TWO)
        assert (again.mode, again.execution.channels_last) == ("threads", True)

    def test_what_it_depends_on_is_measured_anew(self, monkeypatch) -> None:
        tried = self.costs(monkeypatch, stacked=9, threads=1, loop=2)
        convolutional_run(execution=TWO)
        tried.clear()
        convolutional_run(execution=TWO, batch_size=7)
        assert tried
        tried.clear()
        convolutional_run(ud.FedAvg(lr=0.1), execution=TWO)
        assert tried

    def test_results_do_not_depend_on_it(self, monkeypatch) -> None:
        plain = finished(convolutional_run(mode="loop"))
        self.costs(monkeypatch, stacked=9, threads=9, loop=1)
        assert finished(convolutional_run(execution=TWO)).model_sha256 == plain.model_sha256

    def test_a_trial_changes_nothing(self) -> None:
        model = convolutional_net()
        before = [p.clone() for p in model.parameters()]
        run = convolutional_run(model=model, execution=TWO)
        assert run.totals.gradients == 0
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

    @pytest.mark.parametrize(
        "content", ["", "[]", "{", '{"a": 1}', "\xff", pytest.param("[" * 100_000, id="deep")]
    )
    def test_a_damaged_memory_is_replaced(self, content: str, monkeypatch) -> None:
        self.costs(monkeypatch, stacked=9, threads=1, loop=2)
        self.file.parent.mkdir()
        self.file.write_text(content, encoding="latin-1")
        convolutional_run(execution=TWO)
        assert any(isinstance(found, dict) for found in self.kept())

    def test_without_a_cache_it_still_runs(self, monkeypatch, tmp_path) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "file"))
        finished(convolutional_run(execution=TWO))

    def test_it_can_be_switched_off(self, monkeypatch) -> None:
        monkeypatch.setenv(calibrate.VARIABLE, "0")
        tried = self.costs(monkeypatch)
        convolutional_run(execution=TWO)
        assert not tried

    def test_short_runs_are_not_calibrated(self, monkeypatch) -> None:
        monkeypatch.undo()
        monkeypatch.setenv(calibrate.VARIABLE, "1")
        tried = self.costs(monkeypatch)
        convolutional_run(execution=TWO)
        assert not tried

    def test_a_diverging_trial_does_not_end_the_run(self) -> None:
        run = convolutional_run(ud.FedAvg(lr=1e30), execution=TWO)
        assert run.mode in ("threads", "stacked", "loop")

    def test_a_resumed_run_goes_on_in_the_mode_of_its_checkpoint(
        self, monkeypatch, tmp_path
    ) -> None:
        monkeypatch.setenv(calibrate.VARIABLE, "0")
        whole = finished(convolutional_run(rounds=4))
        finished(convolutional_run(rounds=2, checkpoint=tmp_path / "kept"))
        monkeypatch.setenv(calibrate.VARIABLE, "1")
        tried = self.costs(monkeypatch, stacked=9, threads=1, loop=2)
        run = convolutional_run(rounds=4, execution=TWO, resume=tmp_path / "kept")
        assert (run.mode, tried) == ("stacked", [])
        assert finished(run).model_sha256 == whole.model_sha256
        with pytest.warns(UserWarning, match="goes on with mode = loop"):
            asked = convolutional_run(rounds=4, mode="loop", resume=tmp_path / "kept")
        assert asked.mode == "loop"

    def test_a_candidate_that_fails_is_not_taken(self, monkeypatch) -> None:
        def broken(*given: object) -> None:
            raise RuntimeError("not on threads")

        monkeypatch.setattr(cohort, "ordered_thread_map", broken)
        assert convolutional_run(execution=TWO).mode != "threads"

    @pytest.mark.parametrize("entry", [["loop", False], {"mode": "loop"}, 7, None])
    def test_entries_of_another_form_are_measured_anew(self, entry: Any, monkeypatch) -> None:
        """Earlier versions kept a mode that a busy machine may have chosen, without figures."""
        tried = self.costs(monkeypatch, stacked=1, threads=2, loop=3)
        convolutional_run(execution=TWO)
        (key,) = json.loads(self.file.read_text())
        self.file.write_text(json.dumps({key: entry}))
        tried.clear()
        assert convolutional_run(execution=TWO).mode == "stacked"
        assert tried

    def test_on_a_busy_machine_cpu_time_decides_and_nothing_is_kept(self, monkeypatch) -> None:
        """Stacks wait for their second thread, which other processes keep from its core."""
        stacked, threads, loop = Cost(5e-3, 1e-4), Cost(2e-3, 4e-4), Cost(1e-3, 8e-4)
        tried = self.costs(monkeypatch, stacked=stacked, threads=threads, loop=loop)
        seconds = iter([0.0, 1e6])
        monkeypatch.setattr(calibrate, "machine_seconds", lambda: next(seconds))
        run = convolutional_run(execution=TWO)
        assert run.mode == "stacked"
        assert "stacked 0.1, threads 0.4, loop 0.8; on a busy machine, so the next" in run.why
        assert not self.kept()
        tried.clear()
        monkeypatch.setattr(calibrate, "machine_seconds", lambda: None)
        self.costs(monkeypatch, stacked=0.1, threads=0.4, loop=0.8)
        assert "busy" not in convolutional_run(execution=TWO).why
        assert [found["mode"] for found in self.kept()] == ["stacked"]

    def test_one_thread_that_waits_shows_a_busy_machine(self, monkeypatch) -> None:
        self.costs(monkeypatch, stacked=1, threads=2, loop=Cost(3e-3, 2e-3))
        assert "on a busy machine" in convolutional_run(execution=TWO).why
        assert not self.kept()

    def test_trials_that_differ_are_not_kept(self, monkeypatch) -> None:
        times = iter([1.0, 1.0, 1.5, 2.0, 2.5, 3.0] * 3)

        def cost(how: Candidate, *others) -> Cost:
            value = next(times) if how.mode == "stacked" else 9.0
            return Cost(value, value)

        monkeypatch.setattr(calibrate, "_cost_of", cost)
        monkeypatch.setattr(calibrate, "machine_seconds", lambda: None)
        assert convolutional_run(execution=TWO).mode == "stacked"
        assert not self.kept()

    def test_cores_of_others_that_no_trial_needs_disturb_nothing(self, monkeypatch) -> None:
        self.costs(monkeypatch, stacked=1, threads=2, loop=3)
        monkeypatch.setattr(calibrate.os, "cpu_count", lambda: 10**9)
        seconds = iter([0.0, 1e3])
        monkeypatch.setattr(calibrate, "machine_seconds", lambda: next(seconds))
        assert "busy" not in convolutional_run(execution=TWO).why
        assert self.kept()

    def test_a_doubtful_finding_is_measured_again(self, monkeypatch) -> None:
        tried = self.costs(monkeypatch, stacked=9, threads=9, loop=1)
        assert convolutional_run(execution=TWO).mode == "loop"
        (key,) = json.loads(self.file.read_text())
        memory.doubt(key)
        tried.clear()
        assert convolutional_run(execution=TWO).mode == "loop"
        assert tried
        assert [(found["doubts"], found["doubtful"]) for found in self.kept()] == [(1, False)]
        memory.doubt(key)
        self.costs(monkeypatch, stacked=1, threads=9, loop=9)
        assert convolutional_run(execution=TWO).mode == "stacked"
        assert [found["doubts"] for found in self.kept()] == [0]

    def test_a_run_that_does_not_fit_the_figures_doubts_them(self, monkeypatch) -> None:
        """A finding that a busy machine made: the loop seems the fastest, all are far too slow."""
        self.costs(monkeypatch, stacked=10**6, threads=10**6, loop=8 * 10**5)
        monkeypatch.setattr(watch, "SECONDS", 0.0)
        run = convolutional_run(execution=TWO, rounds=4, checkpoint=self.file.parent / "saved")
        for _ in range(watch.ROUNDS - 1):
            next(run)
        assert [found["doubtful"] for found in self.kept()] == [False]
        next(run)
        assert [found["doubtful"] for found in self.kept()] == [True]
        self.costs(monkeypatch, stacked=1, threads=9, loop=9)
        begun = convolutional_run(execution=TWO, rounds=4, resume=self.file.parent / "saved")
        assert begun.mode == "loop"  # A run goes on as it was begun.
        assert convolutional_run(execution=TWO, rounds=4).mode == "stacked"

    def test_a_run_executed_as_recorded_doubts_them_too(self, monkeypatch) -> None:
        self.costs(monkeypatch, stacked=10**6, threads=10**6, loop=8 * 10**5)
        monkeypatch.setattr(watch, "SECONDS", 0.0)
        first = convolutional_run(execution=TWO, rounds=4)
        like = ud.ExecutionOptions(threads=2, like=first.execution)
        finished(convolutional_run(execution=like, rounds=4))
        assert [found["doubtful"] for found in self.kept()] == [True]


class TestWatch:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path))

    def doubted(self, cost: float, rounds: int = 3, seconds: float = 1.0, doubts: int = 0) -> bool:
        """Return whether rounds of this cost a gradient make a finding doubtful."""
        figures = {"loop": 1.0, "stacked": 1.5}
        finding = Finding(mode="loop", channels_last=False, seconds=figures, doubts=doubts)
        memory.remember("key", finding)
        watched = CostWatch("key", "loop", finding)
        gradients = max(1, round(seconds / cost / rounds))
        for _ in range(rounds):
            watched.add(gradients * cost, gradients)
        kept = memory.recall("key")
        assert kept is not None
        return kept.doubtful

    @pytest.mark.parametrize(
        ("cost", "doubted"), [(1.0, False), (0.4, False), (0.3, True), (1.6, False), (1.8, True)]
    )
    def test_what_is_doubted(self, cost: float, doubted: bool) -> None:
        """At 1.8 stacks would be faster; at 0.3 the trials have been far slower than the run."""
        assert self.doubted(cost, seconds=100 * cost) is doubted

    def test_short_runs_and_settled_findings_are_not(self) -> None:
        assert not self.doubted(9.0, rounds=2)
        assert not self.doubted(1e-6, seconds=0.9)
        assert self.doubted(9.0, doubts=1)
        assert not self.doubted(9.0, doubts=2)

    def test_rounds_without_gradients_tell_nothing(self) -> None:
        finding = Finding(mode="loop", channels_last=False, seconds={"loop": 1.0})
        memory.remember("key", finding)
        watched = CostWatch("key", "loop", finding)
        for _ in range(5):
            watched.add(100.0, 0)
        assert memory.recall("key") == finding


def test_the_effort_along_the_busiest_thread() -> None:
    assert Effort(wall=9.0, process=4.0, thread=0.1).path(2) == 2.0
    assert Effort(wall=9.0, process=4.0, thread=3.0).path(2) == 3.0
    start = Effort.now()
    spent = start.spent()
    assert 0 <= spent.thread <= spent.process + 0.1
    assert machine_seconds() is None or machine_seconds() > 0
