"""Sweeps: cells and jobs against brute force, resuming, and the search by Optuna."""

from __future__ import annotations

import itertools
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from undrift.cli.main import app
from undrift.config.experiment import Experiment, Sweep
from undrift.errors import UndriftError
from undrift.results.filenames import SEARCH
from undrift.results.trial import Trial
from undrift.runs import folder
from undrift.runs.jobs import ONLY_JOB, Choice, JobPlanner, cells, jobs, read_choice, sweep_axes
from undrift.runs.options import RunOptions
from undrift.runs.result import ExperimentResult
from undrift.runs.runner import run_experiment

SMALL: dict[str, Any] = {
    "data": {"clients": 3, "partition": "iid", "test_samples": 50},
    "training": {"rounds": 2, "work": "steps:1", "batch_size": 10, "participation": 1.0},
}


def experiment(*methods: Any, seeds: tuple[int, ...] = (0,), **sweep: Any) -> Experiment:
    named = [{"name": each} if isinstance(each, str) else each for each in methods]
    return Experiment.of({**SMALL, "seeds": list(seeds), "methods": named, "sweep": sweep})


class TestCells:
    @given(
        st.lists(st.integers(1, 3), max_size=3),
        st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3)), max_size=2),
    )
    def test_every_combination_once(self, grid: list[int], together: list[tuple[int, int]]) -> None:
        """By counting in mixed radices, the last digit fastest."""
        sweep = Sweep(
            grid={f"g{i}": list(range(n)) for i, n in enumerate(grid)},
            together=[
                {f"t{i}{j}": [10 * j + r for r in range(rows)] for j in range(wide)}
                for i, (wide, rows) in enumerate(together)
            ],
        )
        sizes = [*grid, *(rows for _, rows in together)]
        expected = []
        for number in range(int(np.prod(sizes, initial=1))):
            digits: list[int] = []
            for size in reversed(sizes):
                number, digit = divmod(number, size)
                digits.insert(0, digit)
            cell = {f"g{i}": digits[i] for i in range(len(grid))}
            for i, (wide, _) in enumerate(together):
                cell |= {f"t{i}{j}": 10 * j + digits[len(grid) + i] for j in range(wide)}
            expected.append(cell)
        assert cells(sweep_axes(sweep)) == expected

    def test_a_range_cannot_be_tried_to_the_end(self) -> None:
        sweep = Sweep(grid={"method.lr": {"low": 0.1, "high": 1.0}})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match=r"the range 0\.1 to 1\.0 for 'method\.lr'; search it"):
            sweep_axes(sweep)


class TestJobs:
    def test_methods_then_cells_then_seeds(self) -> None:
        found = jobs(experiment("fedavg", "fedprox", seeds=(0, 3), grid={"method.lr": [0.1, 0.2]}))
        assert [job.name for job in found] == [
            f"{method}-lr{lr}-seed{seed}"
            for method, lr, seed in itertools.product(("fedavg", "fedprox"), (0.1, 0.2), (0, 3))
        ]
        assert [job.label for job in found][::2] == [
            f"{method} lr={lr}" for method in ("FedAvg", "FedProx") for lr in (0.1, 0.2)
        ]
        for job in found:
            assert job.method.settings["lr"] == job.cell["method.lr"]
            assert job.experiment.sweep.empty

    def test_an_only_job_has_a_plain_name(self) -> None:
        (job,) = jobs(experiment("fedavg"))
        assert (job.name, job.label) == (ONLY_JOB, "FedAvg")

    def test_a_cell_of_other_methods_does_not_repeat_one(self) -> None:
        sweep = {"fedprox.mu": [0.1, 1.0], "training.topology": ["ring", "complete"]}
        found = jobs(experiment("fedavg", "fedprox", "dsgd", grid=sweep))
        labels = [job.label for job in found]
        assert labels == [
            "FedAvg",
            "FedProx mu=0.1",
            "FedProx mu=1.0",
            "DSGD topology=ring",
            "DSGD topology=complete",
        ]
        for job in found[3:]:
            assert job.experiment.training.topology == job.cell["training.topology"]

    def test_work_of_its_own_is_not_swept(self) -> None:
        own = {"name": "fedprox", "work": "steps:3"}
        sweep = {"training.work": ["steps:1", "steps:2"]}
        labels = [job.label for job in jobs(experiment("fedavg", own, grid=sweep))]
        assert labels == ["FedAvg work=steps:1", "FedAvg work=steps:2", "FedProx"]

    def test_a_value_that_fits_one_method_only(self) -> None:
        """lr = 1 is more than lam of the other one allows, which has a grid of its own."""
        speed = {"name": "fedspeed", "lam": 0.5}
        found = jobs(experiment("fedavg", speed, grid={"fedavg.lr": [0.1, 1.0]}))
        assert [job.label for job in found] == ["FedAvg lr=0.1", "FedAvg lr=1.0", "FedSpeed"]

    def test_the_same_short_name_twice(self) -> None:
        sweep = {"data.name": ["digits"], "model.name": ["mlp", "logistic"]}
        found = jobs(experiment("fedavg", grid=sweep))
        assert [job.label for job in found] == [
            "FedAvg data.name=digits model.name=mlp",
            "FedAvg data.name=digits model.name=logistic",
        ]

    @given(
        st.lists(
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=300)
            | st.sampled_from(["a b", "a-b", "A b", "a=-b", "..", "/", "-", "con", "é", "e"]),
            min_size=2,
            max_size=6,
            unique=True,
        )
    )
    @settings(max_examples=50, deadline=None)
    def test_names_are_safe_and_differ(self, labels: list[str]) -> None:
        methods = [{"name": "fedavg", "label": label} for label in labels]
        found = jobs(experiment(*methods, seeds=(0, 1), grid={"method.lr": [0.1, 0.2]}))
        names = [job.name for job in found]
        assert len(names) == 4 * len(labels)
        assert len({name.lower() for name in names}) == len(names)
        for name in names:
            assert Path(name).name == name
            assert name.isascii()
            assert len(name) <= 120
            assert not name.startswith((".", "-"))
            assert not set(name) & set('<>:"/\\|?* \0')
        assert [
            job.name
            for job in jobs(experiment(*methods, seeds=(0, 1), grid={"method.lr": [0.1, 0.2]}))
        ] == names

    def test_values_that_read_alike_are_one_cell(self) -> None:
        assert len(jobs(experiment("fedavg", seeds=(0, 1), grid={"method.lr": [0.1, "0.1"]}))) == 2

    def test_labels_that_cannot_be_told_apart(self) -> None:
        methods = "fedavg", {"name": "fedprox", "label": "FedAvg lr=0.1"}
        with pytest.raises(
            ValueError, match=r"labels that tell its runs apart, got 'FedAvg lr=0\.1'"
        ):
            jobs(experiment(*methods, grid={"fedavg.lr": [0.1, 0.2]}))

    def test_a_value_that_does_not_fit(self) -> None:
        with pytest.raises(ValueError, match=r"training\.rounds needs a whole number, got 'ten'"):
            jobs(experiment("fedavg", grid={"training.rounds": [1, "ten"]}))

    def test_coupled_values(self) -> None:
        table = {"training.rounds": [4, 2], "training.work": ["epochs:1", "epochs:2"]}
        found = jobs(experiment("fedavg", together=[table]))
        assert [(j.experiment.training.rounds, j.experiment.training.work) for j in found] == [
            (4, "epochs:1"),
            (2, "epochs:2"),
        ]

    def test_rows_of_one_method_do_not_repeat_the_others(self) -> None:
        """Each method has a table of its own, and its lr is its own."""
        text = """
            methods = [{ name = "fedavg" }, { name = "fedprox" }, { name = "feddyn" }]
            [[sweep.together]]
            "FedProx.mu" = [0.1, 1.0]
            "FedProx.lr" = [0.2, 0.3]
            [[sweep.together]]
            "FedDyn.alpha" = [0.01, 0.1, 1.0]
            "FedDyn.lr" = [0.5, 0.6, 0.7]
        """
        found = [job.method.settings for job in jobs(Experiment.of(tomllib.loads(text)))]
        assert found == [
            {},
            {"mu": 0.1, "lr": 0.2},
            {"mu": 1.0, "lr": 0.3},
            {"alpha": 0.01, "lr": 0.5},
            {"alpha": 0.1, "lr": 0.6},
            {"alpha": 1.0, "lr": 0.7},
        ]

    @given(
        st.dictionaries(
            st.sampled_from(
                ["method.lr", "fedprox.mu", "FedDyn.alpha", "methods[0].lr", "training.topology"]
            ),
            st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=1, max_size=3),
            max_size=4,
        ),
        st.lists(st.tuples(*2 * [st.sampled_from([0.1, 0.2, 0.3])]), max_size=3),
    )
    @settings(max_examples=40, deadline=None)
    def test_the_jobs_are_those_of_all_axes_together(
        self, grid: dict[str, list[Any]], rows: list[tuple[float, float]]
    ) -> None:
        """Brute force: every cell of the whole product, each once where it changes a method."""
        if "training.topology" in grid:
            grid["training.topology"] = ["ring", "complete", "ring"]
        sweep: dict[str, Any] = {"grid": grid}
        if rows:  # a row changes two methods at a time
            sweep["together"] = [
                {"fedprox.lr": [a for a, _ in rows], "FedDyn.lr": [b for _, b in rows]}
            ]
        swept = experiment("fedavg", "fedprox", "feddyn", "dsgd", seeds=(0, 1), **sweep)
        planner = JobPlanner(swept)
        expected = [
            job
            for position in range(4)
            for cell in cells(sweep_axes(swept.sweep))
            for job in planner.jobs(position, cell)
        ]
        assert jobs(swept) == expected

    def test_ten_grids_of_one_method_each_do_not_multiply(self) -> None:
        """All together they would be 5^10, that is ten million cells."""
        names = "fedprox", "fedavgm", "fedcm", "feddyn", "fedacg"
        methods = [
            {"name": name, "label": f"{name}-{k}"} for name in names for k in ("first", "second")
        ]
        fields = {"fedprox": "mu", "fedavgm": "beta", "fedcm": "alpha", "feddyn": "alpha"}
        grid = {
            f"{each['label']}.{fields.get(each['name'], 'lam')}": [0.1, 0.2, 0.3, 0.4, 0.5]
            for each in methods
        }
        found = jobs(experiment(*methods, grid=grid))
        assert [tuple(job.cell.items()) for job in found] == [
            ((path, value),) for path, values in grid.items() for value in values
        ]


def contents(place: Path, *suffixes: str) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(place.iterdir()) if p.suffix in suffixes}


def without_times(place: Path) -> dict[str, Any]:
    """Everything recorded but how long it took."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in place.glob("*.jsonl") if ".earlier-" not in p.name):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.name] = [{**line, "seconds": 0, "evaluation_seconds": 0} for line in lines]
        ending = json.loads(path.with_suffix(".json").read_text())
        found[path.stem] = {key: ending[key] for key in ("label", "status", "model_sha256")}
    return found


def sweep_into(place: Path, what: Experiment, **options: Any) -> ExperimentResult:
    return run_experiment(what, "sweep", RunOptions(out=place, **options))


def search_into(what: Experiment, **options: Any) -> ExperimentResult:
    return run_experiment(what, "search", RunOptions(**options))


class TestResume:
    SWEPT = experiment("fedavg", seeds=(0, 1), grid={"method.lr": [0.1, 0.3]})

    @pytest.mark.parametrize("how", ["gone", "stopped"])
    def test_only_what_is_missing_is_run(self, tmp_path: Path, how: str) -> None:
        whole, part = tmp_path / "whole", tmp_path / "part"
        sweep_into(whole, self.SWEPT)
        sweep_into(part, self.SWEPT)
        lost = part / "fedavg-lr0.3-seed0.json"
        if how == "gone":
            lost.unlink()
        else:
            lost.write_text(json.dumps({**json.loads(lost.read_text()), "status": "stopped"}))
        kept = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in part.glob("*seed*")}
        outcome = CliRunner().invoke(app, ["sweep", "--resume", str(part), "--quiet", "--json"])
        assert outcome.exit_code == 0, outcome.output
        again = {p for p in kept if p.stat().st_mtime_ns != kept[p][0]}
        names = {f"fedavg-lr0.3-seed0{suffix}" for suffix in (".json", ".jsonl", ".csv")}
        assert {path.name for path in again | {lost}} == names
        assert all(path.read_bytes() == kept[path][1] for path in kept if path not in again)
        assert without_times(part) == without_times(whole)

    def test_the_stored_experiment_repeats_the_sweep(self, tmp_path: Path) -> None:
        sweep_into(tmp_path / "a", self.SWEPT)
        sweep_into(tmp_path / "b", folder.read_experiment(tmp_path / "a"))
        assert without_times(tmp_path / "a") == without_times(tmp_path / "b")

    def test_the_swept_work_is_done(self, tmp_path: Path) -> None:
        """Resolving says every method's work, which must not overrule the sweep's."""
        table = {"training.rounds": [2, 1], "training.work": ["steps:1", "steps:4"]}
        done = sweep_into(tmp_path / "a", experiment("fedavg", together=[table]))
        assert [trial.total("gradients") for trial in done.trials] == [2 * 1 * 3, 1 * 4 * 3]


class TestSearch:
    LISTS = experiment(
        "fedavg",
        "fedprox",
        seeds=(0, 1),
        grid={"method.lr": [0.01, 0.1, 0.3], "fedprox.mu": [0.1, 1.0]},
    )

    @staticmethod
    def chosen(place: Path) -> Choice:
        choice = read_choice(place)
        assert choice is not None
        return choice

    def test_count_cells_for_each_method_none_twice(self, tmp_path: Path) -> None:
        done = search_into(self.LISTS, search=4, out=tmp_path / "a")
        tried = self.chosen(tmp_path / "a").cells
        assert {title: len(each) for title, each in tried.items()} == {"FedAvg": 3, "FedProx": 4}
        assert all(list(cell) == ["method.lr"] for cell in tried["FedAvg"])
        for each in tried.values():
            assert len({repr(cell) for cell in each}) == len(each)
        assert len(done.trials) == 2 * (3 + 4)
        assert len(folder.read(tmp_path / "a").trials) == 2 * (3 + 4)

    def test_every_cell_in_the_end(self, tmp_path: Path) -> None:
        search_into(self.LISTS, search=100, out=tmp_path / "a")
        tried = self.chosen(tmp_path / "a").cells["FedProx"]
        every = itertools.product([0.01, 0.1, 0.3], [0.1, 1.0])
        assert sorted(tuple(cell.values()) for cell in tried) == sorted(every)

    def test_it_repeats_itself(self, tmp_path: Path) -> None:
        for name in "ab":
            search_into(self.LISTS, search=4, out=tmp_path / name)
        assert self.chosen(tmp_path / "a") == self.chosen(tmp_path / "b")
        assert without_times(tmp_path / "a") == without_times(tmp_path / "b")

    def test_another_seed_chooses_otherwise(self, tmp_path: Path) -> None:
        wide = {"method.lr": {"low": 0.001, "high": 1.0, "log": True}}
        orders = []
        for seed in (0, 1):
            place = tmp_path / str(seed)
            search_into(experiment("fedavg", seeds=(seed,), grid=wide), search=2, out=place)
            orders.append(self.chosen(place).cells)
        assert orders[0] != orders[1]

    def test_it_goes_on_where_it_was_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, part = tmp_path / "whole", tmp_path / "part"
        search_into(self.LISTS, search=4, out=whole)
        begun = 0

        def interrupted(job: Any, *arguments: Any, **options: Any) -> Trial:
            nonlocal begun
            begun += 1
            if begun == 4:
                raise KeyboardInterrupt
            return run_job(job, *arguments, **options)

        from undrift.runs.runner import run_job

        monkeypatch.setattr("undrift.runs.runner.run_job", interrupted)
        assert search_into(self.LISTS, search=4, out=part).stopped
        kept = contents(part, ".jsonl")
        assert len(kept) == 3
        monkeypatch.setattr("undrift.runs.runner.run_job", run_job)
        outcome = CliRunner().invoke(app, ["sweep", "--resume", str(part), "--quiet"])
        assert outcome.exit_code == 0, outcome.output
        assert self.chosen(part) == self.chosen(whole)
        assert without_times(part) == without_times(whole)
        assert {name: contents(part, ".jsonl")[name] for name in kept} == kept

    def test_a_longer_search_keeps_what_was_chosen(self, tmp_path: Path) -> None:
        place = tmp_path / "a"
        done = search_into(self.LISTS, search=2, out=place)
        first, files = self.chosen(place).cells, contents(place, ".jsonl")
        search_into(done.experiment, search=4, resume=place)
        assert self.chosen(place).count == 4
        for title, each in first.items():
            assert self.chosen(place).cells[title][:2] == each
        assert {name: contents(place, ".jsonl")[name] for name in files} == files

    def test_in_two_parts_as_in_one(self, tmp_path: Path) -> None:
        swept = experiment("fedavg", grid={"method.lr": {"low": 0.001, "high": 1.0, "log": True}})
        search_into(swept, search=7, out=tmp_path / "one")
        done = search_into(swept, search=3, out=tmp_path / "two")
        search_into(done.experiment, search=7, resume=tmp_path / "two")
        assert self.chosen(tmp_path / "two") == self.chosen(tmp_path / "one")

    def test_cells_noted_by_another_optuna_hold(self, tmp_path: Path) -> None:
        """They are run as noted, though today's choice would be another."""
        done = search_into(self.LISTS, search=3, out=tmp_path / "a")
        choice = self.chosen(tmp_path / "a")
        noted = {title: list(reversed(each)) for title, each in choice.cells.items()}
        Choice(4, noted).write(tmp_path / "a")
        search_into(done.experiment, search=4, resume=tmp_path / "a")
        tried = self.chosen(tmp_path / "a").cells
        assert {title: each[:3] for title, each in tried.items()} == noted
        assert len(tried["FedProx"]) == 4

    def test_ranges(self, tmp_path: Path) -> None:
        """Within their ends, whole where the ends are, readable, and in the report."""
        grid = {
            "method.lr": {"low": 0.001, "high": 1.0, "log": True},
            "training.batch_size": {"low": 5, "high": 7},
        }
        place = tmp_path / "a"
        search_into(experiment("fedavg", grid=grid), search=6, out=place)
        tried = self.chosen(place).cells["FedAvg"]
        assert len(tried) == 6
        for cell in tried:
            assert 0.001 <= cell["method.lr"] <= 1
            assert float(f"{cell['method.lr']:.4g}") == cell["method.lr"]
            assert cell["training.batch_size"] in (5, 6, 7)
            assert type(cell["training.batch_size"]) is int
        found = folder.read(place).trials
        assert [t.facts["cell"] for t in found] == tried
        assert [t.settings["lr"] for t in found] == [cell["method.lr"] for cell in tried]

    def test_values_that_do_not_go_together_are_passed_over(self, tmp_path: Path) -> None:
        grid = {"fedspeed.lr": [0.1, 1.0], "fedspeed.lam": [0.4, 10.0]}  # lam >= lr / 2 is needed
        search_into(experiment("fedspeed", grid=grid), search=10, out=tmp_path / "a")
        tried = [tuple(cell.values()) for cell in self.chosen(tmp_path / "a").cells["FedSpeed"]]
        assert sorted(tried) == [(0.1, 0.4), (0.1, 10.0), (1.0, 10.0)]

    @pytest.mark.parametrize(
        ("grid", "expected"),
        [
            ({"training.rounds": [1, "ten"]}, "training.rounds needs a whole number"),
            ({"model.name": ["mlp", "mlpp"]}, "model.name needs one of"),
            ({"training.participation": {"low": 1, "high": 9}}, "9"),
        ],
    )
    def test_what_cannot_run_is_refused_before(
        self, tmp_path: Path, grid: dict[str, Any], expected: str
    ) -> None:
        with pytest.raises(ValueError, match=expected):
            search_into(experiment("fedavg", grid=grid), search=5, out=tmp_path / "a")
        assert not (tmp_path / "a").exists()

    def test_bad_counts_and_processes(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"^search needs a number of cells >= 1, got -1"):
            search_into(self.LISTS, search=-1, out=tmp_path / "a")
        several = self.LISTS.changed({"engine.processes": 2})
        with pytest.raises(ValueError, match=r"^search needs one process, got 'several'"):
            search_into(several, search=3, out=tmp_path / "a")

    def test_without_optuna(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "optuna", None)
        with pytest.raises(UndriftError, match=r"pip install 'undrift\[sweep\]'"):
            search_into(self.LISTS, search=3, out=tmp_path / "a")
        assert not (tmp_path / "a").exists()

    def test_a_damaged_note(self, tmp_path: Path) -> None:
        (tmp_path / SEARCH).write_text("{")
        with pytest.raises(
            UndriftError, match="needs to list the cells of a search and is damaged"
        ):
            read_choice(tmp_path)

    def test_planner_tells_what_concerns_a_method(self) -> None:
        cell = {"method.lr": 0.1, "fedprox.mu": 1.0}
        planner = JobPlanner(self.LISTS)
        assert planner.own(0, cell) == {"method.lr": 0.1}
        assert planner.own(1, cell) == cell

    def test_what_does_not_fit_another_method_is_not_in_the_way(self) -> None:
        methods = "fedavg", {"name": "fedspeed", "lam": 0.4}  # lam >= lr / 2 is needed
        planner = JobPlanner(experiment(*methods, grid={"method.lr": [0.1, 1.0]}))
        (job,) = planner.jobs(0, {"method.lr": 1.0})
        assert job.method.settings["lr"] == 1.0
        with pytest.raises(ValueError, match="FedSpeed needs lam >= lr"):
            planner.jobs(1, {"method.lr": 1.0})


def test_a_field_of_one_method_by_its_place_is_swept() -> None:
    values = {"methods": [{"name": "fedavg"}, {"name": "fedspeed"}]}
    grid = {"sweep": {"grid": {"methods[0].lr": [0.01, 0.1]}}}
    planned = jobs(Experiment.of(values | grid))
    assert [job.label for job in planned] == ["FedAvg lr=0.01", "FedAvg lr=0.1", "FedSpeed"]
    assert [job.method.build().lr for job in planned] == [0.01, 0.1, 0.1]


def test_a_field_that_changes_no_method_is_refused() -> None:
    values = {"methods": [{"name": "fedavg", "work": "steps:1"}]}
    grid = {"sweep": {"grid": {"training.work": ["steps:2", "steps:3"]}}}
    with pytest.raises(ValueError, match=r"fields that change a method, got 'training\.work'"):
        jobs(Experiment.of(values | grid))
