"""The curves as figures for a paper: one column wide, fonts embedded, the same bytes every time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undrift.check import require_choice
from undrift.errors import optional
from undrift.report import style
from undrift.report.comparison import Comparison
from undrift.report.curves import AXES, METRICS, Axis, DrawnMetric, MethodCurve, curves
from undrift.results.metrics import measured as own_metrics

FORMATS = ("png", "pdf", "svg")
DRAWN = ("accuracy", "loss")
AGAINST = ("rounds", "bytes", "gradients", "simulated_seconds")
INCHES = (3.35, 2.4)  # a column of two
LONGEST = 48  # characters of a label
POINTS = 1000  # of a curve, more than a column shows
IN_THE_PLOT = 6  # methods; the legend of more of them goes below
# A date or a version in a file would change its bytes.
METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}
# Each unit has the number from which on it is used, its divisor and its name, as in the page.
UNITS: dict[str, tuple[tuple[float, float, str], ...]] = {
    "bytes": ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e3, 1e3, "kB")),
    "count": ((1e9, 1e9, "billions"), (1e6, 1e6, "millions"), (1e4, 1e3, "thousands")),
    "seconds": ((36000.0, 3600.0, "hours"), (600.0, 60.0, "minutes")),
    "rounds": (),
}
PLAIN = {"bytes": "bytes", "count": "", "seconds": "s", "rounds": ""}

Drawn = dict[int, tuple[str, MethodCurve]]  # number of a method -> its label and curve


def figures(
    comparison: Comparison, folder: Path, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Write `accuracy-rounds.pdf`, `loss-bytes.png` and so on, and return their paths."""
    for name in formats:
        require_choice("figures", "formats", name, FORMATS)
    folder = Path(folder)
    paths = []
    with style.drawing(style.PAPER):
        folder.mkdir(parents=True, exist_ok=True)
        own = [DrawnMetric(name, name) for name in own_metrics(comparison.records)]
        for metric in (*METRICS, *own):
            if metric.key in DRAWN or metric in own:
                paths += _write_metric(comparison, metric, folder, formats)
    return paths


def _write_metric(
    comparison: Comparison, metric: DrawnMetric, folder: Path, formats: Sequence[str]
) -> list[Path]:
    """Write one figure for each axis along which some method moves, and return the paths."""
    measured = {
        label: curves(trials, [metric]).get(metric.key)
        for label, trials in comparison.methods.items()
    }
    paths = []
    for axis in AXES:
        # A method keeps its number, and so its colour, where another one has nothing to show.
        drawn = {
            number: (label, curve.thinned(POINTS))
            for number, (label, curve) in enumerate(measured.items())
            if curve is not None and axis.key in AGAINST and axis.key in curve.x
        }
        if not any(curve.x[axis.key][-1] > 0 for _, curve in drawn.values()):
            continue
        figure = _draw(drawn, metric, axis, comparison.targets if metric.percent else ())
        for ending in formats:
            path = folder / f"{metric.key}-{axis.key.replace('_', '-')}.{ending}"
            style.save(figure, path, dpi=style.PAPER_DPI, metadata=METADATA[ending])
            paths.append(path)
    return paths


def _draw(drawn: Drawn, metric: DrawnMetric, axis: Axis, targets: Sequence[float]) -> Any:
    """Return a figure with the curves, the targets and a legend."""
    names = [_shortened(label) for label, _ in drawn.values()]
    below = len(drawn) > IN_THE_PLOT
    columns = max(1, int(72 * INCHES[0] / (30 + 3.8 * max(map(len, names)))))  # about, in points
    lines = -(-len(drawn) // columns) if below else 0
    figure = style.new_figure((INCHES[0], INCHES[1] + 0.14 * lines))
    axes = figure.subplots()
    most = max(float(curve.x[axis.key][-1]) for _, curve in drawn.values())
    divisor, unit = _unit(axis, most)
    for number, (_, curve) in drawn.items():
        _draw_curve(axes, curve, style.line(number), metric, axis, divisor)
    for target in targets:
        axes.axhline(100 * target, color="#777777", linewidth=0.6, linestyle=(0, (1, 3)))
    axes.set_xlabel(f"{axis.label}, {unit}" if unit else axis.label)
    axes.set_ylabel(f"{metric.label}, %" if metric.percent else metric.label)
    if axis.kind == "rounds":
        style.whole_ticks(axes.xaxis, 7)
    axes.set_xlim(0, most / divisor)
    style.trim(axes)
    _limit_height(axes, [curve for _, curve in drawn.values()], metric)
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns} if below else {}
    (figure if below else axes).legend(
        [_sample(number) for number in drawn],
        [style.literal(name) for name in names],
        frameon=False,
        handlelength=2.6,
        columnspacing=1,
        **place,
    )
    return figure


def _draw_curve(
    axes: Any,
    curve: MethodCurve,
    look: dict[str, Any],
    metric: DrawnMetric,
    axis: Axis,
    divisor: float,
) -> None:
    """Draw the mean of a method's seeds, the band between them, and a cross for each crash."""
    scale = 100 if metric.percent else 1
    x, line = curve.x[axis.key] / divisor, curve.lines["raw"]
    marker = "o" if np.isfinite(line.mean).sum() == 1 else None  # a line of one point is invisible
    axes.plot(x, scale * line.mean, marker=marker, ms=3, **look)
    if (curve.seeds > 1).any():
        low, high = scale * line.low, scale * line.high
        band = {"color": look["color"], "alpha": style.BAND_ALPHA, "linewidth": 0}
        axes.fill_between(x, low, high, **band)
    for crash in curve.crashes:
        height = scale * crash.values["raw"]
        axes.plot(x[crash.at], height, color=look["color"], marker="x", ms=4, mew=1.2)


def _unit(axis: Axis, most: float) -> tuple[float, str]:
    """Return divisor and name of the unit for an axis that goes up to `most`."""
    fitting = ((divisor, unit) for least, divisor, unit in UNITS[axis.kind] if most >= least)
    return next(fitting, (1.0, PLAIN[axis.kind]))


def _limit_height(axes: Any, drawn: Sequence[MethodCurve], metric: DrawnMetric) -> None:
    """Cut off a run whose loss exploded, because it would flatten all other curves."""
    if metric.percent:
        return
    highs, lows = (
        np.concatenate([getattr(curve.lines["raw"], side) for curve in drawn])
        for side in ("high", "low")
    )
    highs, lows = highs[np.isfinite(highs)], lows[np.isfinite(lows)]
    bulk = float(np.quantile(highs, 0.95)) if len(highs) else 0.0
    if 0 < 4 * bulk < highs.max():
        axes.set_ylim(lows.min() - 0.05 * (1.5 * bulk - lows.min()), 1.5 * bulk)


def _shortened(label: str) -> str:
    """Return a label that is short enough for a column."""
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "\u2026"


def _sample(number: int) -> Any:
    """Return the line that stands for a method in the legend."""
    lines = optional("matplotlib.lines", "A figure", "report")
    return lines.Line2D([], [], **style.line(number))
