"""The cells that tuning tries, and the choice among them, as functions of what cells came to.

Nothing is remembered between two decisions: whoever asks again, with more cells run, is given all
cells so far and the next ones. So a run that was stopped goes on, and a folder can be read back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift import keyed
from undrift.check import require
from undrift.config.experiment import Experiment, Method
from undrift.results.tuning import CellRank
from undrift.runs.axes import NumericAxis
from undrift.runs.jobs import Cell, JobPlanner, cell_key, cells, positions, sweep_axes

ROUNDS = "training.rounds"  # is in cells that are run for fewer rounds than the experiment has
DRAWS = 100  # of a subsample with equally many of all values; after these chance decides
Ranks = Callable[[str, Cell], CellRank | None]  # of a method's title and cell; None: not run yet


@dataclass(frozen=True)
class Edge:
    """Says that a choice is the largest or the smallest value of its field that was tried."""

    path: str
    value: Any
    side: int  # 1 or -1


@dataclass(frozen=True)
class Decision:
    """Holds all cells to be run so far by method, and the choice once all of them were."""

    tried: Mapping[str, Sequence[Cell]]
    # The choice is None while cells are missing. A method of which no cell finished has none.
    chosen: Mapping[str, Cell] | None = None


class Tuner:
    """Decides which cells of an experiment's methods are tried, the same number for each."""

    def __init__(self, experiment: Experiment, only: Sequence[str] = ()) -> None:
        self._experiment, self._sweep = experiment, experiment.sweep
        axes, planner = sweep_axes(experiment.sweep), JobPlanner(experiment)
        grids = [
            _Grid(i, method, planner.own_axes(i, axes))
            for i, method in enumerate(experiment.methods)
        ]
        for grid in grids:
            remedy = "name two values for it, such as method.lr (--tune lr=0.03,0.1)"
            who = f"Tuning {grid.title}"
            require(len(grid.cells) > 1, who, "at least two cells", len(grid.cells), remedy)
        most = min(len(grid.cells) for grid in grids)
        self.count = min(most, experiment.sweep.trials or most)  # cells of a method
        self._grids = [grids[i] for i in positions(experiment, only)]

    @property
    def first(self) -> dict[str, list[Cell]]:
        """Return the cells of the grids that are tried, larger grids subsampled by seed."""
        seed = self._sweep.seeds_beside(self._experiment.seeds)[0]
        return {grid.title: grid.sample(self.count, seed) for grid in self._grids}

    @property
    def rungs(self) -> list[int]:
        """Return the rounds after which cells are compared; the last are all rounds."""
        rounds = self._experiment.training.rounds
        halvings = int(math.log2(self.count)) if self._sweep.halving else 0
        shares = (max(1, math.ceil(rounds / 2**i)) for i in range(halvings, 0, -1))
        return [*dict.fromkeys(share for share in shares if share < rounds), rounds]

    def decide(self, rank: Ranks) -> Decision:
        """Return what is to be run as far as it is known, and the choice if nothing is missing."""
        tried: dict[str, list[Cell]] = {grid.title: [] for grid in self._grids}
        left = self.first
        for rung, rounds in enumerate(self.rungs):
            for title, own in left.items():
                tried[title] += [self._at(cell, rounds) for cell in own]
            if _missing(tried, rank):
                return Decision(tried)
            keep = math.ceil(self.count / 2 ** (rung + 1))
            left = {t: self._better(t, own, rounds, rank, keep) for t, own in left.items()}
        for _ in range(self._sweep.extend):
            best = {grid.title: self._best(tried[grid.title], grid, rank) for grid in self._grids}
            if not any(grid.edges(best[grid.title], tried[grid.title]) for grid in self._grids):
                break
            added = {grid.title: self._next(grid, tried[grid.title], rank) for grid in self._grids}
            for title, cell in added.items():
                tried[title] += [] if cell is None else [cell]
            if _missing(tried, rank):
                return Decision(tried)
        best = {grid.title: self._best(tried[grid.title], grid, rank) for grid in self._grids}
        finished = {title: cell for title, cell in best.items() if _of(rank, title, cell).finished}
        return Decision(tried, {title: without_rounds(c) for title, c in finished.items()})

    def edges(self, title: str, cell: Cell, own: Sequence[Cell]) -> list[Edge]:
        """Return the fields of a method's cell that are at an edge of what was tried."""
        (grid,) = (grid for grid in self._grids if grid.title == title)
        return grid.edges(cell, own)

    def _at(self, cell: Cell, rounds: int) -> Cell:
        """Return a cell as it is run for so many rounds."""
        return cell if rounds == self.rungs[-1] else {**cell, ROUNDS: rounds}

    def _better(
        self, title: str, own: Sequence[Cell], rounds: int, rank: Ranks, keep: int
    ) -> list[Cell]:
        """Return the better part of the cells in their order, without those that diverged."""
        ranks = {cell_key(cell): _of(rank, title, self._at(cell, rounds)) for cell in own}
        ordered = sorted(own, key=lambda cell: ranks[cell_key(cell)], reverse=True)
        kept = {cell_key(c) for c in ordered[:keep] if ranks[cell_key(c)].finished}
        return [cell for cell in own if cell_key(cell) in kept]

    def _best(self, own: Sequence[Cell], grid: _Grid, rank: Ranks) -> Cell:
        """Return the best of the cells with the most rounds; the first one of equal ones."""
        return max(own, key=lambda cell: self._rank(grid.title, cell, rank))

    def _rank(self, title: str, cell: Cell, rank: Ranks) -> tuple[int, CellRank]:
        found = _of(rank, title, cell)
        # A cell that diverged is worse than one that was cut, whatever their rounds.
        return (cell.get(ROUNDS, self.rungs[-1]) if found.finished else 0), found

    def _next(self, grid: _Grid, own: Sequence[Cell], rank: Ranks) -> Cell | None:
        """Return one more cell of a method: beyond an edge, between two cells, or of its grid."""
        best = self._best(own, grid, rank)
        known = {cell_key(without_rounds(cell)) for cell in own}
        by_key = {cell_key(without_rounds(cell)): cell for cell in own}

        def value(cell: Cell) -> tuple[bool, tuple[int, CellRank] | None]:
            there = by_key.get(cell_key(cell))
            return there is not None, None if there is None else self._rank(grid.title, there, rank)

        for cell in grid.proposals(without_rounds(best), own, value):
            if cell_key(cell) not in known and self._fits(grid, cell):
                return cell
        return None

    def _fits(self, grid: _Grid, cell: Cell) -> bool:
        """Return whether the method takes the values of a cell."""
        try:
            return bool(JobPlanner(self._experiment).jobs(grid.position, cell))
        except ValueError:
            return False


class _Grid:
    """Holds the cells of one method's own axes."""

    def __init__(self, position: int, method: Method, axes: Sequence[Sequence[Cell]]) -> None:
        self.position, self.title = position, method.title
        self.cells: list[Cell] = [*cells(axes)]
        self._axes = axes

    def sample(self, count: int, seed: int) -> list[Cell]:
        """Return so many of the cells in their order, drawn by the seed if there are more.

        The values of every axis are drawn equally often as far as possible, because a draw without
        the right learning rate would be no fair trial.
        """
        if count == len(self.cells):
            return self.cells
        chance = keyed.generator(seed, "trials", self.position)
        shape = [len(axis) for axis in self._axes]
        for _ in range(DRAWS):
            columns = [_evenly(size, count, chance) for size in shape]
            places = np.ravel_multi_index(columns, shape)
            if len(set(places.tolist())) == count:
                return [self.cells[i] for i in sorted(places)]
        return [self.cells[i] for i in sorted(chance.permutation(len(self.cells))[:count])]

    def numeric(self, own: Sequence[Cell]) -> list[NumericAxis]:
        """Return the numeric axes, with the values that were added to the grid's."""
        found = []
        for axis in self._axes:
            if any(len(part) != 1 for part in axis):
                continue  # Values that change together have no next one.
            ((path, _),) = axis[0].items()
            values = dict.fromkeys(cell[path] for cell in (*axis, *own) if path in cell)
            found.append(NumericAxis.of(path, list(values)))
        return [axis for axis in found if axis is not None]

    def edges(self, best: Cell, own: Sequence[Cell]) -> list[Edge]:
        """Return the fields whose value in this cell is the largest or the smallest."""
        axes = self.numeric(own)
        sides = [Edge(axis.path, best[axis.path], axis.side(best[axis.path])) for axis in axes]
        return [edge for edge in sides if edge.side]

    def proposals(
        self, best: Cell, own: Sequence[Cell], value: Callable[[Cell], Any]
    ) -> Iterator[Cell]:
        """Yield cells that may be tried next, of which the first new one is taken.

        They lie beyond edges, then beside the best cell where a larger grid was subsampled, then
        between it and its better neighbour; the grid's are last.
        """
        axes = self.numeric(own)
        for axis in axes:
            if axis.side(best[axis.path]):
                yield {**best, axis.path: axis.beyond(best[axis.path])}
        beside = {
            axis: [{**best, axis.path: each} for each in axis.neighbours(best[axis.path])]
            for axis in axes
        }
        yield from (cell for own_cells in beside.values() for cell in own_cells)
        for axis, neighbours in beside.items():
            for cell in sorted(neighbours, key=value, reverse=True):
                yield {**best, axis.path: axis.between(best[axis.path], cell[axis.path])}
        yield from self.cells


def without_rounds(cell: Cell) -> dict[str, Any]:
    """Return a cell without the rounds that it was cut to."""
    return {path: value for path, value in cell.items() if path != ROUNDS}


def _evenly(size: int, count: int, chance: np.random.Generator) -> NDArray[np.int64]:
    """Return `count` numbers below `size` in random order, each as often as the others."""
    rounds = [chance.permutation(size) for _ in range(-(-count // size))]
    return np.concatenate(rounds)[:count]


def _missing(tried: Mapping[str, Sequence[Cell]], rank: Ranks) -> bool:
    return any(rank(title, cell) is None for title, own in tried.items() for cell in own)


def _of(rank: Ranks, title: str, cell: Cell) -> CellRank:
    found = rank(title, cell)
    assert found is not None, "a decision needs the ranks of all cells before"
    return found
