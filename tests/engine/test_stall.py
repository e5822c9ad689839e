"""A run whose loss stays at its start says so once; ordinary runs say nothing."""

from __future__ import annotations

import math
import re
import warnings
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift as ud
from undrift.cli.progress import ProgressBar
from undrift.engine.evaluate import Score
from undrift.engine.stall import at_start, decisive_round, likely_causes
from undrift.models.small import mlp
from undrift.runs.folder import read
from undrift.runs.side_by_side import _Sender
from undrift.testing import finish, start

EVERY_ROUND = ud.EvaluationOptions(every=1)
TINY = 1e-9  # a step size at which nothing moves


def small(algorithm: Any, rounds: int = 12, every: int = 1, **options: Any) -> ud.Run:
    return start(algorithm, rounds=rounds, evaluation=ud.EvaluationOptions(every=every), **options)


class TestRule:
    @pytest.mark.parametrize(("rounds", "first"), [(600, 60), (601, 61), (100, 10), (20, 10)])
    def test_a_tenth_of_the_rounds_decides_from_round_ten_on(self, rounds: int, first: int) -> None:
        assert decisive_round(rounds) == first

    @pytest.mark.parametrize(
        ("losses", "accuracies", "expected"),
        [
            ((2.305, 2.306, 2.303), (0.1, 0.1, 0.1), True),
            ((2.305, 2.306, 2.27), (0.1, 0.1, 0.1), False),  # it has fallen
            ((2.305, 2.306, 2.34), (0.1, 0.1, 0.1), False),  # it has risen
            ((2.305, 2.27, 2.303), (0.1, 0.1, 0.1), False),  # it had fallen before
            ((2.305, 2.306, 2.303), (0.1, 0.1, 0.13), False),
            ((2.305, 2.306, 2.303), (None, None, None), True),
            ((2.305, math.nan, 2.303), (0.1, 0.1, 0.1), False),
        ],
    )
    def test_loss_and_accuracy_must_both_have_stayed(
        self, losses: Any, accuracies: Any, expected: bool
    ) -> None:
        tests = [Score(*pair) for pair in zip(losses, accuracies, strict=True)]
        assert at_start(tests, Score(2.305, accuracies[0])) is expected

    def test_causes_name_what_the_method_has(self) -> None:
        assert likely_causes(ud.FedAvg(lr=0.1)) == "lr = 0.1 is too small or too large"
        for cls in (ud.FedSpeed, ud.FedSAM, ud.FedGamma, ud.MoFedSAM):
            causes = likely_causes(cls(lr=0.1, rho=0.3))
            assert causes.startswith("rho = 0.3 is too large for this net (try a tenth of it")
            assert causes.endswith("; or lr = 0.1 is too small or too large")
            assert "rho" not in likely_causes(cls(lr=0.1, rho=0.0))
        assert "rho" not in likely_causes(ud.FedSpeed(lr=0.1, perturbation=False))

    def test_wrappers_have_the_causes_of_what_they_wrap(self) -> None:
        causes = likely_causes(ud.FedSAM(lr=0.2))
        assert likely_causes(ud.Accelerated(ud.FedSAM(lr=0.2))) == causes
        assert likely_causes(ud.Compressed(ud.FedSAM(lr=0.2), ud.ScaledSign())) == causes


class TestRun:
    @pytest.mark.parametrize("cls", [ud.FedAvg, ud.DSGD, ud.Marsit])
    def test_it_says_so_once_and_names_losses_and_rounds(self, cls: type) -> None:
        options = {"server_lr": TINY} if cls is ud.Marsit else {}
        run = small(cls(lr=TINY, **options), rounds=25)
        with pytest.warns(ud.StallWarning) as heard:
            finish(run)
        (warning,) = heard
        assert str(warning.message) == run.stalled
        first, last = run.score(run._x0).loss, run.records[9].loss
        assert run.stalled == (
            f"{cls.__name__} needs a loss that moves, got {last:.4g} after round 10 of 25 where "
            f"the first model has {first:.4g}; likely causes: lr = 1e-09 is too small or too large."
        )
        assert Path(warning.filename).name == "testing.py"  # where the rounds are asked for

    def test_schedules_show_the_number_of_the_round(self) -> None:
        rho = ud.piecewise(0.0, {5: 0.25})
        run = small(ud.FedSAM(lr=TINY, rho=rho), rounds=12)
        with pytest.warns(ud.StallWarning, match=re.escape("rho = 0.25 is too large")):
            finish(run)

    @pytest.mark.parametrize(("rounds", "every"), [(9, 1), (12, 6)])
    def test_short_runs_and_few_tests_say_nothing(self, rounds: int, every: int) -> None:
        run = small(ud.FedAvg(lr=TINY), rounds=rounds, every=every)
        finish(run)
        assert run.stalled == ""

    def test_it_waits_for_the_third_test(self) -> None:
        run = small(ud.FedAvg(lr=TINY), rounds=20, every=6)
        with pytest.warns(ud.StallWarning, match="after round 18 of 20"):
            finish(run)

    def test_a_run_that_moved_in_its_first_round_is_not_at_its_start(self) -> None:
        """Its tests are alike, but the first model, which no record has, is another."""
        lr = ud.piecewise(0.3, {1: TINY})
        run = small(ud.FedAvg(lr=lr), work=ud.Steps(20))
        finish(run)
        losses = [record.loss for record in run.records if record.loss is not None]
        assert max(losses) - min(losses) < 1e-3
        assert run.stalled == ""

    def test_the_first_model_is_tested_only_on_suspicion(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, scored = small(ud.FedAvg(lr=0.3)), []
        monkeypatch.setattr(run, "_test", scored.append)
        finish(run)
        assert scored == []


FAMILIES = {
    "demo": [ud.FedAvg, ud.FedProx, ud.Scaffold, ud.FedSpeed, ud.FedACG, ud.FedaGrac],
    "ascent": [ud.FedSAM, ud.FedGamma, ud.MoFedSAM],
    "peers": [ud.DSGD, ud.NetFleet, ud.PSGD, ud.Marsit],
}


@pytest.mark.parametrize("cls", [cls for family in FAMILIES.values() for cls in family])
@pytest.mark.parametrize("lr", [0.03, 0.1])
def test_ordinary_runs_say_nothing(cls: type, lr: float) -> None:
    """The demo's data, few clients of it: the methods that learn least have one step a round."""
    digits = ud.data.digits()
    parts = ud.data.dirichlet(digits.train[1], clients=5, alpha=0.3, seed=0)
    clients = ud.Clients.split(*digits.train, parts, test=digits.test)
    torch.manual_seed(0)
    run = ud.simulate(
        cls(lr=lr),
        mlp((64,), 10),
        clients,
        loss=torch.nn.functional.cross_entropy,
        work=ud.Steps(5),
        batch_size=20,
        rounds=12,
        topology=ud.topology.ring(5) if issubclass(cls, ud.Gossip) else None,
        participation=1.0 if issubclass(cls, ud.Peer) else 0.6,
        evaluation=EVERY_ROUND,
        kernels=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finish(run)
    assert run.stalled == ""


SETTINGS: dict[str, Any] = {
    "methods": [{"name": "fedsam", "lr": TINY}],
    "data": {"clients": 4, "test_samples": 50},
    "training": {"rounds": 10, "work": "steps:1"},
    "evaluation": {"every": 1},
}


class TestExperiment:
    def test_trial_and_page_keep_it(self, tmp_path: Path) -> None:
        with pytest.warns(ud.StallWarning, match="FedSAM, seed 0: FedSAM needs a loss that moves"):
            result = ud.run(SETTINGS, out=tmp_path / "x", jobs=1)
        (trial,) = result.trials
        (warning,) = result.comparison().warnings
        assert warning == f"FedSAM, seed 0: {trial.facts['stalled']}"
        assert "rho = 0.1 is too large" in warning
        assert warning.partition(";")[0] in result.report().read_text()
        assert list(read(tmp_path / "x").comparison().warnings) == [warning]

    def test_the_bar_prints_it(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "500")

        class Job:
            label, seed = "FedSAM", 0

        ProgressBar(quiet=True).stall(Job(), "it stays")  # type: ignore[arg-type]
        assert capsys.readouterr().err == "FedSAM: it stays\n"

    def test_a_process_of_its_own_passes_it_on(self) -> None:
        ours, theirs = Pipe()
        _Sender(theirs).stall(None, "it stays")  # type: ignore[arg-type]
        assert ours.poll(5)
        assert ours.recv() == ("stall", "it stays")
