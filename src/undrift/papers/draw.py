"""Figures of results are drawn here, as SVG with text that can be searched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undrift.errors import optional
from undrift.papers.find import MEASURED, PRINTED, TUNED
from undrift.papers.heatmap import HeatMap
from undrift.papers.plots import Plot, digest
from undrift.report import style

SETTINGS = {**style.PAPER, "svg.fonttype": "none", "axes.titlesize": 7.5, "figure.titlesize": 8}
LOOKS: dict[str, dict[str, Any]] = {
    "the document": {"marker": "D", "color": "#777777", "markerfacecolor": "none"},
    TUNED: {"marker": "s", "color": style.COLOURS[1]},
    PRINTED: {"marker": "o", "color": style.COLOURS[0]},
    MEASURED: {"marker": "o", "color": style.COLOURS[0]},
}
WORDS = {"the document": "the document", MEASURED: "ours, measured"}  # in legends
WIDTH, HEIGHT, ROW = 2.5, 2.0, 0.19  # inches of a part, and of a row of dots
CELL = 3.4  # inches of the width of a heat map
COLUMNS = 3


def draw(parts: Sequence[Plot] | Sequence[HeatMap], path: Path) -> None:
    """Write a figure of the kind that the suffix says, with the hash of what it shows."""
    maps = [part for part in parts if isinstance(part, HeatMap)]
    with style.drawing(SETTINGS):
        plots = [part for part in parts if isinstance(part, Plot)]
        figure = _maps_figure(maps) if maps else _plots_figure(plots)
        metadata = {"Date": None, "Creator": None, "Description": digest(parts)}
        style.save(figure, path, metadata=metadata if path.suffix == ".svg" else None)


def _maps_figure(maps: Sequence[HeatMap]) -> Any:
    """Return a figure with a heat map for each part, whose cells say their values."""
    columns = min(2, len(maps))
    lines = math.ceil(len(maps) / columns)
    figure = style.new_figure((CELL * columns, HEIGHT * lines))
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, part in zip(grid, maps, strict=False):
        _draw_map(axes, part)
    for axes in grid[len(maps) :]:
        axes.set_axis_off()
    return figure


def _draw_map(axes: Any, part: HeatMap) -> None:
    known = [value for row in part.values for value in row if value is not None]
    middle = (min(known) + max(known)) / 2 if known else 0.0
    numbers = [[math.nan if value is None else value for value in row] for row in part.values]
    axes.imshow(numbers, cmap=style.COLOUR_MAP, aspect="auto")
    for i, row in enumerate(part.values):
        for j, value in enumerate(row):
            colour = "white" if value is not None and value < middle else "black"
            text = "-" if value is None else f"{value:.4g}"
            axes.text(j, i, text, ha="center", va="center", fontsize=6, color=colour)
    for axis, (name, values) in ((axes.xaxis, part.across), (axes.yaxis, part.down)):
        axis.set_ticks(range(len(values)), values)
        axis.set_label_text(style.literal(name))
    axes.set_title(style.literal(f"{part.title}\n{part.axis}"))


def _plots_figure(parts: Sequence[Plot]) -> Any:
    """Return a figure of curves or of rows of dots, with one legend."""
    columns = min(COLUMNS, _a_side(parts))
    lines = math.ceil(len(parts) / columns)
    tallest = max(len(part.rows) for part in parts)
    height = HEIGHT if not tallest else 0.7 + ROW * tallest
    wide = WIDTH + (0.9 if tallest else 0.0)
    labels = list(dict.fromkeys(line.label for part in parts for line in part.lines))
    figure = style.new_figure((wide * columns, height * lines + 0.35))
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, part in zip(grid, parts, strict=False):
        if part.lines:
            _draw_lines(axes, part, labels)
        else:
            _draw_rows(axes, part)
        axes.set_title(style.literal(part.title))
        style.trim(axes)
    for axes in grid[len(parts) :]:
        axes.set_axis_off()
    _legend(figure, parts, labels, columns)
    return figure


def _a_side(parts: Sequence[Plot]) -> int:
    """Return how many parts show the same kind of results, so that each kind begins a line."""
    tuned = sum(part.title.endswith(TUNED) for part in parts)
    return tuned if 0 < tuned <= COLUMNS and len(parts) > tuned else len(parts)


def _draw_lines(axes: Any, part: Plot, labels: Sequence[str]) -> None:
    for line in part.lines:
        look = style.line(labels.index(line.label))
        marker = "o" if len(line.rounds) == 1 else None
        axes.plot(line.rounds, line.mean, marker=marker, ms=3, **look)
        if line.low != line.high:
            band = {"color": look["color"], "alpha": style.BAND_ALPHA, "linewidth": 0}
            axes.fill_between(line.rounds, line.low, line.high, **band)
        if line.diverged:
            axes.plot(line.rounds[-1], line.mean[-1], color=look["color"], marker="x", ms=4)
    axes.set(xlabel="round", ylabel=part.axis)
    style.whole_ticks(axes.xaxis, 5)


def _draw_rows(axes: Any, part: Plot) -> None:
    """Draw a row of dots for each method, the first one on top."""
    kinds = {dot.whose for _, dots in part.rows for dot in dots}
    apart = 0.13 if {TUNED, PRINTED} <= kinds else 0.0
    for place, (_, dots) in enumerate(part.rows):
        for dot in dots:
            look = LOOKS[dot.whose]
            ends = None
            if dot.low is not None and dot.high is not None:
                ends = [[dot.mean - dot.low], [dot.high - dot.mean]]
            shift = {TUNED: -apart, PRINTED: apart}.get(dot.whose, 0.0)
            axes.errorbar(
                dot.mean, place + shift, xerr=ends, ms=3.5, capsize=1.5, linewidth=0.9, **look
            )
    names = [style.literal(name) for name, _ in part.rows]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(part.axis)
    axes.locator_params(axis="x", nbins=6)


def _legend(figure: Any, parts: Sequence[Plot], labels: Sequence[str], columns: int) -> None:
    lines = optional("matplotlib.lines", "A figure", "report")
    if labels:
        handles = [lines.Line2D([], [], **style.line(i)) for i in range(len(labels))]
        names = list(labels)
    else:
        shown = {dot.whose for part in parts for _, dots in part.rows for dot in dots}
        names = [whose for whose in LOOKS if whose in shown]
        handles = [lines.Line2D([], [], linestyle="none", ms=3.5, **LOOKS[n]) for n in names]
        names = [WORDS.get(n, f"ours, each method {n}") for n in names]
    widest = max(map(len, names))
    fitting = max(1, int(72 * WIDTH * columns / (34 + 3.8 * widest)))  # about, in points
    figure.legend(
        handles,
        [style.literal(name) for name in names],
        loc="outside lower center",
        ncols=min(fitting, len(names)),
        frameon=False,
        handlelength=2.6,
    )
