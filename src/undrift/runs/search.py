"""A search: Optuna chooses the cells of a sweep one after another, for each method by itself.

Every choice depends on the seed and on what the cells before came to, so a search repeats itself.
When a search goes on, the same choices are made again, and finished trials are read, not run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from undrift.check import require
from undrift.config.experiment import Experiment, Range, Sweep
from undrift.engine.processes.rendezvous import launched
from undrift.errors import UndriftError, optional
from undrift.results.filenames import SEARCH
from undrift.results.trial import CellScore, Trial
from undrift.runs.jobs import (
    Cell,
    Choice,
    Job,
    JobPlanner,
    cell_key,
    merged,
    read_choice,
    sweep_axes,
)
from undrift.runs.spelling import Spelling

STARTUP = 5  # The first cells are drawn by chance, because there is nothing to learn from yet.
PATIENCE = 10  # After so many proposals of cells that were tried, a cell is drawn by chance.
DIGITS = 4  # A number drawn from a range has so many digits, so that it can be read.
Axis = list[Cell] | tuple[str, Range]


def new_search(experiment: Experiment, count: int, spelling: Spelling) -> Search:
    """Return a search for `count` cells of each method; raise if there can be none."""
    option = spelling.option("search")
    require(count >= 1, option, "a number of cells >= 1", count)
    single = experiment.engine.processes == 1 and not launched()
    require(single, option, "one process", "several", "leave engine.processes (--processes) out")
    _optuna()
    return Search(experiment, count)


class Search:
    """Makes the jobs of a search, each cell chosen by what the method's cells before came to."""

    def __init__(self, experiment: Experiment, count: int) -> None:
        self._experiment = experiment
        self._count = count
        methods = range(len(experiment.methods))
        self._axes = [self._axes_of(position) for position in methods]

    @property
    def count(self) -> int:
        """Return the number of cells for each method."""
        return self._count

    def probes(self) -> list[Job]:
        """Return jobs with every value of every axis, to be checked before the first is run."""
        planner = JobPlanner(self._experiment)
        return [
            job
            for position, choices in enumerate(self._axes)
            for part in _parts(choices)
            for job in _beside(part, choices, partial(planner.jobs, position))
        ]

    @property
    def rounds(self) -> int:
        """Return the rounds of all jobs, as far as they are known."""
        cells = sum(min(self._count, _size(choices)) for choices in self._axes)
        return int(cells) * len(self._experiment.seeds) * self._experiment.training.rounds

    def jobs(self, folder: Path, done: Sequence[Trial]) -> Iterator[Job]:
        """Yield the jobs; the caller appends their trials to `done`."""
        before = read_choice(folder) or Choice(0, {})
        planner, chosen = JobPlanner(self._experiment), dict(before.cells)
        count = max(self._count, before.count)
        for position, method in enumerate(self._experiment.methods):
            noted = list(before.cells.get(method.title, ()))
            chooser = _Chooser(self._axes[position], self._experiment.seeds[0])
            tried: list[Cell] = []
            while len(tried) < count and not chooser.exhausted:
                cell = chooser.next(noted[len(tried)] if len(tried) < len(noted) else None)
                try:
                    upcoming = planner.jobs(position, cell)
                except ValueError:  # Values may not go together, though each is fine.
                    chooser.refuse()
                    continue
                tried.append(cell)
                chosen[method.title] = [*tried, *noted[len(tried) :]]
                Choice(count, chosen).write(folder)
                begun = len(done)
                yield from upcoming
                seeds = done[begun:]
                score = CellScore.of(done, self._experiment.evaluation.smoothing)
                chooser.tell(score(seeds))

    def _axes_of(self, position: int) -> list[Axis]:
        """Return what may be chosen for a method, without what concerns other methods only."""
        sweep, planner = self._experiment.sweep, JobPlanner(self._experiment)
        lists = {path: each for path, each in sweep.grid.items() if isinstance(each, list)}
        axes = sweep_axes(Sweep(grid={**lists}, together=sweep.together))
        choices: list[Axis] = [
            list({cell_key(part): part for part in axis}.values())
            for axis in planner.own_axes(position, axes)
        ]
        choices += [(p, r) for p, r in sweep.ranges.items() if planner.own(position, {p: r.low})]
        return choices


class _Chooser:
    """Asks Optuna's tree-structured Parzen estimator for cells, and never takes a cell twice."""

    def __init__(self, choices: Sequence[Axis], seed: int) -> None:
        optuna = _optuna()
        self._failed = optuna.trial.TrialState.FAIL
        sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=STARTUP)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._axes = choices
        self._spaces = {str(i): _distribution(axis, optuna) for i, axis in enumerate(choices)}
        self._chance = np.random.default_rng(seed)
        self._tried: set[str] = set()
        self._asked: Any = None

    def next(self, noted: Cell | None) -> Cell:
        """Return the next cell: `noted` if the search chose it before, or what Optuna proposes."""
        cell = noted if noted is not None else self._proposed()
        if noted is not None and cell_key(self._proposed()) != cell_key(noted):
            self._ask(self._parameters(noted))
        self._tried.add(cell_key(cell))
        return cell

    @property
    def exhausted(self) -> bool:
        """Return whether every cell was tried."""
        return bool(len(self._tried) >= _size(self._axes))

    def refuse(self) -> None:
        """Tell Optuna that the last cell cannot be run, so that it learns nothing from it."""
        self._study.tell(self._asked, state=self._failed)

    def tell(self, reached: float) -> None:
        """Tell Optuna the score that the last cell has reached."""
        self._study.tell(self._asked, reached)

    def _proposed(self) -> Cell:
        for _ in range(PATIENCE):
            cell = self._ask()
            if cell_key(cell) not in self._tried:
                return cell
            self.refuse()
        while True:
            drawn = {name: _drawn(axis, self._chance) for name, axis in self._named().items()}
            if cell_key(self._cell(drawn)) not in self._tried:
                return self._ask(drawn)

    def _ask(self, parameters: Mapping[str, Any] | None = None) -> Cell:
        if parameters is not None:
            self._study.enqueue_trial(dict(parameters))
        self._asked = self._study.ask(self._spaces)
        return self._cell(self._asked.params)

    def _named(self) -> dict[str, Axis]:
        return {str(i): axis for i, axis in enumerate(self._axes)}

    def _cell(self, parameters: Mapping[str, Any]) -> Cell:
        return merged([_part(axis, parameters[name]) for name, axis in self._named().items()])

    def _parameters(self, cell: Cell) -> dict[str, Any]:
        parameters: dict[str, Any] = {}
        for name, axis in self._named().items():
            part = {path: cell.get(path) for path in _first(axis)}
            if isinstance(axis, list):
                if part not in axis:
                    raise UndriftError(
                        f"{SEARCH} needs cells of the sweep, got {part}; search anew."
                    )
                parameters[name] = axis.index(part)
            else:
                parameters[name] = part[axis[0]]
        return parameters


def _first(axis: Axis) -> Cell:
    return axis[0] if isinstance(axis, list) else {axis[0]: axis[1].low}


def _ends(axis: Axis) -> list[Cell]:
    if isinstance(axis, list):
        return axis
    path, numbers = axis
    return [{path: numbers.low}, {path: numbers.high}]


def _parts(choices: Sequence[Axis]) -> list[Cell]:
    """Return every value of every axis, or one empty cell if there is no axis."""
    return [part for axis in choices for part in _ends(axis)] or [{}]


def _beside(part: Cell, choices: Sequence[Axis], make: Callable[[Cell], list[Job]]) -> list[Job]:
    """Return the jobs of a value beside the first, or else the last, values of the other axes."""
    ends = [_ends(axis) for axis in choices]
    try:
        return make({**merged([each[0] for each in ends]), **part})
    except ValueError as error:
        try:
            return make({**merged([each[-1] for each in ends]), **part})
        except ValueError:
            raise error from None


def _size(choices: Sequence[Axis]) -> Any:
    """Return the number of cells, infinity if numbers are drawn."""
    return math.prod(
        len(axis)
        if isinstance(axis, list)
        else axis[1].high - axis[1].low + 1
        if axis[1].whole
        else math.inf
        for axis in choices
    )


def _part(axis: Axis, value: Any) -> Cell:
    """Return what a parameter of Optuna's sets: an index into a list, or a number."""
    if isinstance(axis, list):
        return axis[int(value)]
    path, numbers = axis
    if numbers.whole:
        return {path: int(value)}
    readable = float(f"{value:.{DIGITS}g}")
    return {path: float(min(max(readable, numbers.low), numbers.high))}


def _drawn(axis: Axis, chance: np.random.Generator) -> Any:
    if isinstance(axis, list):
        return int(chance.integers(len(axis)))
    numbers = axis[1]
    if numbers.whole:
        return int(chance.integers(int(numbers.low), int(numbers.high) + 1))
    if numbers.log:
        return math.exp(chance.uniform(math.log(numbers.low), math.log(numbers.high)))
    return float(chance.uniform(numbers.low, numbers.high))


def _distribution(axis: Axis, optuna: Any) -> Any:
    kinds = optuna.distributions
    if isinstance(axis, list):
        return kinds.CategoricalDistribution(list(range(len(axis))))
    numbers = axis[1]
    kind = kinds.IntDistribution if numbers.whole else kinds.FloatDistribution
    return kind(numbers.low, numbers.high, log=numbers.log)


def _optuna() -> Any:
    optuna = optional("optuna", "A search", "sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
