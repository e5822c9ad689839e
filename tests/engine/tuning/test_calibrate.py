"""Calibration measures once which execution is the fastest, and remembers it."""

import json

import pytest
import torch

import undrift as ud
from tests.engine.convolutional import convolutional_net, convolutional_run
from tests.support.runs import finished
from undrift.engine.execution import cohort
from undrift.engine.tuning import calibrate
from undrift.engine.tuning.rules import Candidate


class TestCalibration:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv(calibrate.VARIABLE, "1")
        monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "undrift"))
        monkeypatch.setattr(calibrate, "LEAST", 1)
        monkeypatch.setattr(calibrate, "WORTH", 0)
        self.file = tmp_path / "undrift" / "calibration.json"

    def slow(self, monkeypatch, *modes: str) -> list[str]:
        """Trials of these modes take long; returns the modes tried."""
        tried: list[str] = []
        real = calibrate._seconds_of

        def seconds(how: Candidate, *others) -> float:
            tried.append(how.mode)
            return real(how, *others) + (10.0 if how.mode in modes else 0.0)

        monkeypatch.setattr(calibrate, "_seconds_of", seconds)
        return tried

    def test_the_fastest_is_taken_and_remembered(self, monkeypatch) -> None:
        tried = self.slow(monkeypatch, "stacked", "threads")
        run = convolutional_run(execution=ud.ExecutionOptions(threads=2))
        assert (run.mode, run.why) == ("loop", "the fastest when measured")
        assert set(tried) == {"threads", "stacked", "loop"}
        assert [found[0] for found in json.loads(self.file.read_text()).values()] == ["loop"]
        tried.clear()
        again = convolutional_run(execution=ud.ExecutionOptions(threads=2))
        assert (again.mode, again.why) == ("loop", "the fastest when it was measured")
        assert not tried

    def test_the_layout_is_measured_and_remembered_too(self, monkeypatch) -> None:
        def seconds(how: Candidate, *others) -> float:
            return 3.0 if how.mode != "threads" else 1.0 if how.channels_last else 2.0

        monkeypatch.setattr(calibrate, "_seconds_of", seconds)
        run = convolutional_run(execution=ud.ExecutionOptions(threads=2))
        assert (run.mode, run.execution.channels_last) == ("threads", True)
        monkeypatch.setattr(calibrate, "_seconds_of", lambda *given: pytest.fail("again"))
        again = convolutional_run(execution=ud.ExecutionOptions(threads=2))
        assert (again.mode, again.execution.channels_last) == ("threads", True)

    def test_what_it_depends_on_is_measured_anew(self, monkeypatch) -> None:
        tried = self.slow(monkeypatch, "stacked")
        convolutional_run(execution=ud.ExecutionOptions(threads=2))
        tried.clear()
        convolutional_run(execution=ud.ExecutionOptions(threads=2), batch_size=7)
        assert tried
        tried.clear()
        convolutional_run(ud.FedAvg(lr=0.1), execution=ud.ExecutionOptions(threads=2))
        assert tried

    def test_results_do_not_depend_on_it(self, monkeypatch) -> None:
        plain = finished(convolutional_run(mode="loop"))
        self.slow(monkeypatch, "threads", "stacked")
        assert (
            finished(convolutional_run(execution=ud.ExecutionOptions(threads=2))).model_sha256
            == plain.model_sha256
        )

    def test_a_trial_changes_nothing(self) -> None:
        model = convolutional_net()
        before = [p.clone() for p in model.parameters()]
        run = convolutional_run(model=model, execution=ud.ExecutionOptions(threads=2))
        assert run.totals.gradients == 0
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

    @pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', "\xff"])
    def test_a_damaged_memory_is_replaced(self, content: str) -> None:
        self.file.parent.mkdir()
        self.file.write_text(content, encoding="latin-1")
        convolutional_run(execution=ud.ExecutionOptions(threads=2))
        kept = json.loads(self.file.read_text())
        assert any(isinstance(found, list) for found in kept.values())

    def test_without_a_cache_it_still_runs(self, monkeypatch, tmp_path) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "file"))
        finished(convolutional_run(execution=ud.ExecutionOptions(threads=2)))

    def test_it_can_be_switched_off(self, monkeypatch) -> None:
        monkeypatch.setenv(calibrate.VARIABLE, "0")
        tried = self.slow(monkeypatch)
        convolutional_run(execution=ud.ExecutionOptions(threads=2))
        assert not tried

    def test_short_runs_are_not_calibrated(self, monkeypatch) -> None:
        monkeypatch.undo()
        monkeypatch.setenv(calibrate.VARIABLE, "1")
        tried = self.slow(monkeypatch)
        convolutional_run(execution=ud.ExecutionOptions(threads=2))
        assert not tried

    def test_a_diverging_trial_does_not_end_the_run(self) -> None:
        run = convolutional_run(ud.FedAvg(lr=1e30), execution=ud.ExecutionOptions(threads=2))
        assert run.mode in ("threads", "stacked", "loop")

    def test_a_resumed_run_goes_on_in_the_mode_of_its_checkpoint(
        self, monkeypatch, tmp_path
    ) -> None:
        monkeypatch.setenv(calibrate.VARIABLE, "0")
        whole = finished(convolutional_run(rounds=4))
        finished(convolutional_run(rounds=2, checkpoint=tmp_path / "kept"))
        monkeypatch.setenv(calibrate.VARIABLE, "1")
        tried = self.slow(monkeypatch, "stacked")
        run = convolutional_run(
            rounds=4, execution=ud.ExecutionOptions(threads=2), resume=tmp_path / "kept"
        )
        assert (run.mode, tried) == ("stacked", [])
        assert finished(run).model_sha256 == whole.model_sha256
        asked = convolutional_run(rounds=4, mode="loop", resume=tmp_path / "kept")
        assert asked.mode == "loop"

    def test_a_candidate_that_fails_is_not_taken(self, monkeypatch) -> None:
        def broken(*given: object) -> None:
            raise RuntimeError("not on threads")

        monkeypatch.setattr(cohort, "ordered_thread_map", broken)
        assert convolutional_run(execution=ud.ExecutionOptions(threads=2)).mode != "threads"
