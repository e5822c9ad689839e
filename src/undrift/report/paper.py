"""The curves as figures for a paper: one column wide, fonts embedded, the same bytes every time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undrift.check import require_choice
from undrift.errors import UndriftError
from undrift.report.comparison import Comparison
from undrift.report.curves import AXES, COLOURS, METRICS, Axis, Curve, Metric, curves, dash

FORMATS = ("png", "pdf", "svg")
DRAWN = ("accuracy", "loss")
AGAINST = ("rounds", "bytes", "gradients", "simulated_seconds")
INCHES = (3.35, 2.4)  # a column of two
LONGEST = 48  # characters of a label
POINTS = 1000  # of a curve, more than a column shows
IN_THE_PLOT = 6  # methods; the legend of more of them goes below
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same everywhere
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.1,
    "lines.scale_dashes": False,
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
    "svg.hashsalt": "undrift",
}
# Dates and versions would make every file another one.
METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}
UNITS: dict[
    str, tuple[tuple[float, float, str], ...]
] = {  # from which number on, divisor, name: as in the page
    "bytes": ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e3, 1e3, "kB")),
    "count": ((1e9, 1e9, "billions"), (1e6, 1e6, "millions"), (1e4, 1e3, "thousands")),
    "seconds": ((36000.0, 3600.0, "hours"), (600.0, 60.0, "minutes")),
    "rounds": (),
}
PLAIN = {"bytes": "bytes", "count": "", "seconds": "s", "rounds": ""}


def figures(
    comparison: Comparison, folder: Path, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """`accuracy-rounds.pdf`, `loss-bytes.png` and so on; returns what was written."""
    for each in formats:
        require_choice("figures", "formats", each, FORMATS)
    try:
        import matplotlib.style
    except ImportError:
        raise UndriftError(
            "Figures need matplotlib, which is not installed; pip install 'undrift[report]'."
        ) from None
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    # The user's own style must not change the files.
    with matplotlib.style.context(["default", STYLE]):
        for metric in METRICS:
            if metric.key in DRAWN:
                written += _of_metric(comparison, metric, folder, formats)
    return written


def _of_metric(
    comparison: Comparison, metric: Metric, folder: Path, formats: Sequence[str]
) -> list[Path]:
    found = {
        label: curves(trials, [metric]).get(metric.key)
        for label, trials in comparison.methods.items()
    }
    written = []
    for axis in AXES:
        # A method keeps its colour and dashes even where another one has nothing to show.
        there = {
            place: (label, each.thinned(POINTS))
            for place, (label, each) in enumerate(found.items())
            if each is not None and axis.key in AGAINST and axis.key in each.x
        }
        if not any(each.x[axis.key][-1] > 0 for _, each in there.values()):
            continue
        figure = _draw(there, metric, axis, comparison.targets if metric.percent else ())
        for ending in formats:
            path = folder / f"{metric.key}-{axis.key.replace('_', '-')}.{ending}"
            figure.savefig(path, dpi=300, metadata=METADATA[ending])
            written.append(path)
    return written


def _draw(
    there: dict[int, tuple[str, Curve]], metric: Metric, axis: Axis, targets: Sequence[float]
) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    below = len(there) > IN_THE_PLOT
    names = [_name(label) for label, _ in there.values()]
    columns = max(1, int(72 * INCHES[0] / (30 + 3.8 * max(map(len, names)))))  # about, in points
    lines = -(-len(there) // columns) if below else 0
    figure = Figure(figsize=(INCHES[0], INCHES[1] + 0.14 * lines), layout="constrained")
    axes = figure.subplots()
    most = max(float(each.x[axis.key][-1]) for _, each in there.values())
    large = ((divisor, unit) for least, divisor, unit in UNITS[axis.kind] if most >= least)
    divisor, unit = next(large, (1.0, PLAIN[axis.kind]))
    scale = 100 if metric.percent else 1
    for place, (_, each) in there.items():
        x, line = each.x[axis.key] / divisor, each.lines["raw"]
        style: Any = (0, dash(place)) if dash(place) else "solid"
        colour = COLOURS[place % len(COLOURS)]
        marker = "o" if np.isfinite(line.mean).sum() == 1 else None
        axes.plot(x, scale * line.mean, color=colour, linestyle=style, marker=marker, ms=3)
        if (each.seeds > 1).any():
            band = (scale * line.low, scale * line.high)
            axes.fill_between(x, *band, color=colour, alpha=0.15, linewidth=0)
        for crash in each.crashes:
            at = (x[crash.at], scale * crash.values["raw"])
            axes.plot(*at, color=colour, marker="x", ms=4, mew=1.2)
    for target in targets:
        axes.axhline(100 * target, color="#777777", linewidth=0.6, linestyle=(0, (1, 3)))
    axes.set_xlabel(f"{axis.label}, {unit}" if unit else axis.label)
    axes.set_ylabel(f"{metric.label}, %" if metric.percent else metric.label)
    if axis.kind == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlim(0, most / divisor)
    axes.grid(color="#e2e2e2", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _tame(axes, [each for _, each in there.values()], metric)
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": columns} if below else {}
    # A dollar sign would start mathematics.
    shown = [name.replace("$", r"\$") for name in names]
    (figure if below else axes).legend(
        [_sample(place) for place in there],
        shown,
        frameon=False,
        handlelength=2.6,
        columnspacing=1,
        **where,
    )
    return figure


def _tame(axes: Any, drawn: Sequence[Curve], metric: Metric) -> None:
    """A run that blew up must not flatten all others."""
    if metric.percent:
        return
    highs, lows = (
        np.concatenate([getattr(each.lines["raw"], side) for each in drawn])
        for side in ("high", "low")
    )
    highs, lows = highs[np.isfinite(highs)], lows[np.isfinite(lows)]
    bulk = float(np.quantile(highs, 0.95)) if len(highs) else 0.0
    if 0 < 4 * bulk < highs.max():
        axes.set_ylim(lows.min() - 0.05 * (1.5 * bulk - lows.min()), 1.5 * bulk)


def _name(label: str) -> str:
    """Short enough for a column."""
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "\u2026"


def _sample(place: int) -> Any:
    from matplotlib.lines import Line2D

    style: Any = (0, dash(place)) if dash(place) else "solid"
    return Line2D([], [], color=COLOURS[place % len(COLOURS)], linestyle=style)
