"""Heat maps of two swept fields, one for each method, as tables and as pictures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from undrift.config.experiment import Sweep
from undrift.report import style
from undrift.results.trial import CellScore, Trial


@dataclass(frozen=True)
class Grid:
    """Holds the scores of one method over two fields; rows are the first field's values."""

    method: str
    rows: str
    columns: str
    row_values: Sequence[Any]
    column_values: Sequence[Any]
    figures: Sequence[Sequence[float | None]]  # scores of the cells; None without a run
    score: CellScore = CellScore()  # what the scores are

    @property
    def best(self) -> tuple[int, int] | None:
        """Return row and column of the best score, the first among equal ones."""
        places = {
            (i, j): value
            for i, line in enumerate(self.figures)
            for j, value in enumerate(line)
            if value is not None
        }
        return max(places, key=lambda place: places[place]) if places else None

    def table(self) -> Table:
        """Return the scores as a table for a terminal."""
        where = f"{_short(self.rows)} down, {_short(self.columns)} across"
        title = f"{escape(self.method)}: {self.score.heading}, {where}"
        table = Table("", *map(str, self.column_values), title=title)
        for i, value in enumerate(self.row_values):
            cells = [
                "-"
                if figure is None
                else f"{self.score.shown(figure)}{' *' * (self.best == (i, j))}"
                for j, figure in enumerate(self.figures[i])
            ]
            table.add_row(str(value), *cells)
        return table


def swept_fields(sweep: Sweep) -> list[tuple[str, list[Any]]]:
    """Return the swept fields with their values; for fields that change together the first."""
    single = [(path, values) for path, values in sweep.grid.items() if isinstance(values, list)]
    return [*single, *(next(iter(table.items())) for table in sweep.together)]


def grids(
    methods: Mapping[str, Mapping[str, Sequence[Trial]]],
    sweep: Sweep,
    score: CellScore = CellScore(),
) -> list[Grid]:
    """Return a grid for each method of which exactly two fields were swept."""
    if sweep.ranges:
        return []
    result = []
    for title, cells in methods.items():
        own = {path for seeds in cells.values() for path in seeds[0].facts.get("cell", {})}
        swept = [(path, values) for path, values in swept_fields(sweep) if path in own]
        if len(swept) != 2:
            continue
        (rows, row_values), (columns, column_values) = swept
        scores: dict[tuple[str, str], float] = {}
        for seeds in cells.values():
            cell = seeds[0].facts.get("cell", {})
            ended = [trial for trial in seeds if trial.ended]
            if rows in cell and columns in cell and ended:
                scores[str(cell[rows]), str(cell[columns])] = score(ended)
        figures = [[scores.get((str(r), str(c))) for c in column_values] for r in row_values]
        if scores:
            axes = rows, columns, row_values, column_values
            result.append(Grid(title, *axes, figures, score))
    return result


def plot_grids(grids: Sequence[Grid], folder: Path) -> list[Path]:
    """Write one picture for each grid and return the paths; write none without matplotlib."""
    if not style.can_draw():
        return []
    paths: list[Path] = []
    for grid in grids:
        path = folder / f"heat-{_file_name(grid.method, [p.stem for p in paths])}.png"
        with style.drawing(style.SCREEN):
            style.save(_draw(grid), path)
        paths.append(path)
    return paths


def _draw(grid: Grid) -> Any:
    """Return a figure with one shaded and numbered cell for each pair of values."""
    rows, columns = len(grid.row_values), len(grid.column_values)
    figure = style.new_figure((1.6 + 0.8 * columns, 1.4 + 0.5 * rows))
    axes = figure.subplots()
    factor = (100 if grid.score.percent else 1) * (1 if grid.score.rising else -1)
    values = np.array([[np.nan if v is None else factor * v for v in row] for row in grid.figures])
    values[~np.isfinite(values)] = np.nan
    image = axes.imshow(values, cmap=style.COLOUR_MAP, aspect="auto")
    middle = np.nanmean(values) if np.isfinite(values).any() else 0.0
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "black" if value > middle else "white"
            weight = "bold" if grid.best == (i, j) else "normal"
            text = f"{value:.1f}" if grid.score.percent else f"{value:.3g}"
            axes.text(j, i, text, ha="center", va="center", color=colour, weight=weight)
    axes.set_xticks(range(columns), [str(v) for v in grid.column_values], rotation=30)
    axes.set_yticks(range(rows), [str(v) for v in grid.row_values])
    axes.set(xlabel=_short(grid.columns), ylabel=_short(grid.rows))
    axes.set_title(style.literal(grid.method))
    figure.colorbar(image, ax=axes, label=grid.score.heading)
    return figure


def _short(path: str) -> str:
    """Return the last part of a field's path."""
    return path.rpartition(".")[2]


def _file_name(method: str, taken: Sequence[str]) -> str:
    """Return a name for a method's file that is not taken."""
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in method.lower())[:100]
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(each for each in names if f"heat-{each}" not in taken)
