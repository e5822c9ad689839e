"""Heat maps of results, for figures whose methods are a grid of two hyper-parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from undrift.papers.file import Paper
from undrift.papers.find import Side
from undrift.papers.quantity import Quantity
from undrift.papers.words import head_text


@dataclass(frozen=True)
class HeatMap:
    """Holds one part of a figure: the mean over seeds in each cell of a grid."""

    title: str
    axis: str  # what is shown
    across: tuple[str, tuple[str, ...]]  # the hyper-parameter of the columns and its values
    down: tuple[str, tuple[str, ...]]
    values: tuple[tuple[float | None, ...], ...]  # None where all seeds diverged or none was run


def grid_of(methods: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
    """Return two hyper-parameters with their values if the methods are all of their pairs.

    Such methods have labels like "eta 0.05, lam 0.1".
    """
    pairs = [[word.rpartition(" ")[::2] for word in label.split(", ")] for label in methods]
    names = {tuple(name for name, _ in pair) for pair in pairs}
    if len(names) != 1 or len(next(iter(names))) != 2:
        return None
    first, second = next(iter(names))
    columns, rows = (tuple(dict.fromkeys(pair[k][1] for pair in pairs)) for k in (0, 1))
    cells = {(pair[0][1], pair[1][1]) for pair in pairs}
    whole = cells == set(itertools.product(columns, rows)) and min(len(columns), len(rows)) > 1
    numbers = all(_is_number(value) for value in (*columns, *rows))
    return ((first, columns), (second, rows)) if whole and numbers else None


def heat_maps(paper: Paper, sides: Sequence[Side], quantity: Quantity) -> list[HeatMap]:
    """Return a heat map for each panel that was run, none if the methods are no grid."""
    grid = grid_of(paper.method_names)
    if grid is None:
        return []
    (across, columns), (down, rows) = grid
    found = []
    run = [side for side in sides if side.stored is not None]
    for side in run:
        ours = {
            (row.cell.panel, row.cell.method): row.ours.value.number
            for row in side.all_rows
            if row.ours is not None and row.cell.quantity.text == quantity.text
        }
        for panel in dict.fromkeys(panel for panel, _ in ours):
            values = tuple(
                tuple(_known(ours.get((panel, f"{across} {c}, {down} {r}"))) for c in columns)
                for r in rows
            )
            title = "\n".join([panel, *([side.name] if len(run) > 1 else [])])
            axis = head_text((quantity, None))
            found.append(HeatMap(title, axis, (across, columns), (down, rows), values))
    return found


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
