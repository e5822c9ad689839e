"""Heat maps of sweeps: axes, means over seeds, pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undrift.config.experiment import Sweep
from undrift.report.sweep_heatmap import grids, plot_grids, swept_fields
from undrift.results.record import Record
from undrift.results.trial import Trial


def trial_of_cell(accuracy: float, seed: int, status: Any = "finished", **cell: Any) -> Trial:
    """Return a trial of one round in the cell; `__` in a name stands for a dot."""
    record = Record(1, 1, 1.0, accuracy, 0, 0, 0, 0, 0.0)
    facts = {"cell": {key.replace("__", "."): value for key, value in cell.items()}}
    return Trial("x", "X", {}, seed, 1, [record], status, facts=facts)


class TestHeat:
    SWEEP = Sweep(
        grid={"method.lr": [0.1, 0.2]},
        together=[{"training.rounds": [4, 2], "training.work": ["epochs:1", "epochs:2"]}],
    )

    def test_axes(self) -> None:
        assert swept_fields(self.SWEEP) == [("method.lr", [0.1, 0.2]), ("training.rounds", [4, 2])]

    def test_means_over_seeds_at_their_places(self) -> None:
        found = {
            "a": [trial_of_cell(0.2, 0, method__lr=0.1, training__rounds=4)],
            "b": [trial_of_cell(0.5, s, method__lr=0.2, training__rounds=4) for s in (0, 1)],
            "c": [
                trial_of_cell(0.4, 0, method__lr=0.2, training__rounds=2),
                trial_of_cell(0.9, 1, "diverged", method__lr=0.2, training__rounds=2),
            ],
            "d": [trial_of_cell(0.9, 0, "stopped", method__lr=0.1, training__rounds=2)],
        }
        (grid,) = grids({"X": found}, self.SWEEP)
        assert grid.figures == [[0.2, None], [0.5, 0.2]]
        assert grid.best == (1, 0)
        assert grid.table().row_count == 2

    def test_of_equals_the_first_is_best(self) -> None:
        found = {
            str(lr): [trial_of_cell(0.5, 0, method__lr=lr, training__rounds=4)] for lr in (0.1, 0.2)
        }
        (grid,) = grids({"X": found}, self.SWEEP)
        assert grid.best == (0, 0)

    def test_two_fields_only(self) -> None:
        one = {"a": [trial_of_cell(0.2, 0, method__lr=0.1)]}
        assert grids({"X": one}, Sweep(grid={"method.lr": [0.1, 0.2]})) == []
        assert grids({"X": one}, self.SWEEP) == []  # not of a method that one field concerns

    def test_pictures_do_not_overwrite_each_other(self, tmp_path: Path) -> None:
        found = {"a": [trial_of_cell(0.2, 0, method__lr=0.1, training__rounds=4)]}
        made = grids({"A b": found, "a B": found, "é": found}, self.SWEEP)
        paths = plot_grids(made, tmp_path)
        assert len(set(paths)) == 3
        assert all(path.stat().st_size > 1000 for path in paths)
