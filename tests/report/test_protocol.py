"""What tables show follows the smoothing of the experiment, and cells are chosen by validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.report.trials import records, trial
from undrift.config.experiment import Evaluation, Experiment, Sweep
from undrift.report.collect import best_cells, best_trials, method_notes
from undrift.report.json_summary import comparison_summary, trial_summary
from undrift.report.sweep_heatmap import grids
from undrift.report.terminal_table import methods_table, results_table
from undrift.results.record import Record
from undrift.results.trial import CellScore, Trial

RISING = [0.2, 0.4, 0.6, 0.8]  # its EMA 0.9: 0.2, 0.22, 0.258, 0.3122
FINAL = {"raw": 0.5, "ema": 0.3122, "window": 0.5, "best": 0.8}


def experiment(smoothing: str, **sections: Any) -> Experiment:
    evaluation = {"smoothing": smoothing, "target": [0.25]}
    return Experiment.of({"methods": [{"name": "fedavg"}], "evaluation": evaluation, **sections})


@pytest.mark.parametrize("smoothing", FINAL)
def test_the_console_and_json_show_the_smoothed_accuracy(smoothing: Any) -> None:
    seeds = [trial("A", 0, records(RISING)), trial("A", 1, records([0.1] * 4))]
    table = methods_table({"A": seeds}, Evaluation(smoothing=smoothing, target=[0.1]))
    mean, apart = (FINAL[smoothing] + 0.1) / 2, (FINAL[smoothing] - 0.1) / 2**0.5
    assert table.rows[0][1] == f"{100 * mean:.2f} ± {100 * apart:.2f}"
    figures = comparison_summary({"A": seeds}, experiment(smoothing))["A"]
    assert figures["accuracy"] == pytest.approx(mean)
    assert figures["accuracy_std"] == pytest.approx(apart)
    assert figures["accuracies"] == pytest.approx([FINAL[smoothing], 0.1])
    assert figures["rounds_to_target"] == [3 if smoothing == "ema" else 2, None]
    assert figures.get("smoothing", "raw") == smoothing


def test_the_console_says_what_its_accuracy_is() -> None:
    seeds = [trial("A", 0, records(RISING))]
    notes = {each: methods_table({"A": seeds}, Evaluation(smoothing=each)).note for each in FINAL}
    assert notes["raw"].endswith("mean of the evaluations on the test set in the last ten rounds")
    assert "moving average (EMA 0.9)" in notes["ema"]
    assert "best of all evaluations" in notes["best"]
    assert all(note.endswith("targets as well") for key, note in notes.items() if key != "raw")


def test_json_of_one_trial() -> None:
    one = trial("A", 0, records(RISING))
    plain, smoothed = trial_summary(one), trial_summary(one, "ema")
    assert (plain["accuracy"], plain["loss"]) == (0.8, pytest.approx(0.2))
    assert "smoothing" not in plain
    assert smoothed["smoothing"] == "ema"
    assert smoothed["accuracy"] == pytest.approx(0.3122)
    assert smoothed["loss"] == pytest.approx(1 - 0.3122)
    unmeasured = trial_summary(trial("A", 0, []))
    assert (unmeasured["accuracy"], unmeasured["loss"]) == (None, None)


def test_the_best_cell_is_the_one_with_the_highest_figure_shown() -> None:
    """The last ten of the first are higher, and so is the average of the second."""
    late = trial("A lr=1", 0, records([0.0] * 5 + [0.9] * 5), facts={"title": "A"})
    early = trial("A lr=2", 0, records([0.44] * 10), facts={"title": "A"})
    assert late.reached("ema") == pytest.approx(0.9 * (1 - 0.9**5))  # 0.3686
    assert best_cells([late, early])["A"] == [late]
    assert best_cells([late, early], "ema")["A"] == [early]
    assert [each.label for each in best_trials([late, early], "ema")] == ["A"]


def validated(accuracies: Sequence[float], validation: Sequence[float]) -> list[Record]:
    pairs = zip(records(accuracies), validation, strict=True)
    return [replace(each, validation_accuracy=value) for each, value in pairs]


def cell(lr: float, runs: list[Record], **options: Any) -> Trial:
    facts = {"title": "FedAvg", "cell": {"method.lr": lr}}
    return trial(f"FedAvg lr={lr}", 0, runs, facts=facts, **options)


class TestChoosing:
    GOOD = cell(0.1, validated([0.7, 0.7], [0.4, 0.6]))
    LUCKY = cell(0.2, validated([0.9, 0.9], [0.3, 0.5]))  # better on the test set alone
    BROKEN = cell(0.3, validated([0.9], [0.9]), status="diverged", rounds=2)

    def test_by_validation_where_it_was_measured(self) -> None:
        trials = [self.LUCKY, self.GOOD, self.BROKEN]
        assert best_cells(trials)["FedAvg"] == [self.GOOD]
        assert CellScore.of(trials, "raw").name == "validation accuracy"
        assert CellScore.of(trials, "ema")([self.GOOD]) == pytest.approx(0.9 * 0.4 + 0.1 * 0.6)

    def test_by_the_test_set_where_some_cell_has_no_validation(self) -> None:
        without = cell(0.4, records([0.1, 0.1]))
        assert best_cells([self.GOOD, self.LUCKY, without])["FedAvg"] == [self.LUCKY]
        assert CellScore.of([without], "ema").name == "accuracy (EMA 0.9)"

    def test_a_run_that_diverged_counts_as_nothing(self) -> None:
        assert best_cells([self.BROKEN, self.LUCKY])["FedAvg"] == [self.LUCKY]
        assert not CellScore.of([self.BROKEN], "raw").validated

    def test_it_is_said(self) -> None:
        trials = [self.LUCKY, self.GOOD]
        asked = experiment("raw", sweep={"grid": {"method.lr": [0.1, 0.2]}})
        table = results_table(trials, asked)
        assert table.rows[0][:3] == ["FedAvg", "0.1", "70.00"]  # the test set of the chosen one
        assert table.note.endswith("; cells are chosen by validation accuracy")
        assert "chosen" not in results_table([self.GOOD], asked).note
        notes = method_notes(asked, best_trials(trials), trials)
        assert notes["FedAvg"].endswith("lr=0.1, the best of 2 cells, by validation accuracy.")
        summary = comparison_summary(best_cells(trials), asked)["FedAvg"]
        assert summary["validation_accuracy"] == pytest.approx(0.5)
        assert summary["cell"] == {"method.lr": 0.1}

    def test_heat_maps_are_of_the_score(self) -> None:
        lists: dict[str, list[Any]] = {"method.lr": [0.1, 0.2], "training.clip": [1.0]}
        trials = [
            replace(each, facts={"cell": {**each.facts["cell"], "training.clip": 1.0}})
            for each in (self.LUCKY, self.GOOD)
        ]
        cells = {each.label: [each] for each in trials}
        (grid,) = grids({"FedAvg": cells}, Sweep(grid={**lists}), CellScore.of(trials, "raw"))
        assert grid.figures == [[pytest.approx(0.5)], [pytest.approx(0.4)]]
        assert "validation accuracy %" in str(grid.table().title)


def test_a_heat_map_for_the_two_fields_that_concern_a_method() -> None:
    """Three fields are swept, of which each method has two."""
    sweep = Sweep(grid={"a.x": [1, 2], "b.y": [3], "method.lr": [0.1]})
    a, b = (
        trial(name, 0, records([0.5]), facts={"cell": {path: value, "method.lr": 0.1}})
        for name, path, value in (("A", "a.x", 2), ("B", "b.y", 3))
    )
    first, second = grids({"A": {"": [a]}, "B": {"": [b]}}, sweep)
    assert (first.rows, first.figures) == ("a.x", [[None], [0.5]])
    assert (second.rows, second.figures) == ("b.y", [[0.5]])
