"""Pictures for a screen: accuracy curves, partitions and loss surfaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from undrift.check import require
from undrift.errors import optional
from undrift.report import style
from undrift.results.metrics import measured, value_of
from undrift.results.record import Record

if TYPE_CHECKING:
    from undrift.analysis.loss_surface import Surface

Runs = Sequence[Sequence[Record]]  # one list of records per seed


def curves(runs: Mapping[str, Runs], path: Path, title: str = "") -> bool:
    """Draw a metric against rounds and megabytes sent; return False without matplotlib.

    It is accuracy where all runs classify, else the first metric of all of them, or the loss.
    """
    if not style.can_draw():
        return False
    tests = [r for seeds in runs.values() for rs in seeds for r in rs if r.loss is not None]
    names = ("accuracy", *measured(tests))
    whole = (name for name in names if all(value_of(r, name) is not None for r in tests))
    metric = next(whole, "loss")
    with style.drawing(style.SCREEN):
        figure = style.new_figure((10, 3.3))
        by_round, by_bytes = figure.subplots(1, 2, sharey=True)
        for index, (name, seeds) in enumerate(runs.items()):
            rounds, sent, values = _points(seeds, metric)
            look = style.line(index)
            for axes, x in ((by_round, rounds), (by_bytes, sent)):
                axes.plot(x, values.mean(0), label=style.literal(name), **look)
                if len(values) > 1:
                    band = {"color": look["color"], "alpha": style.BAND_ALPHA, "linewidth": 0}
                    axes.fill_between(x, values.min(0), values.max(0), **band)
        by_round.set(xlabel="round", ylabel=metric if metric == "loss" else f"test {metric}")
        style.whole_ticks(by_round.xaxis)
        by_bytes.set(xlabel="megabytes sent")
        style.trim(by_round)
        style.trim(by_bytes)
        by_round.legend(frameon=False)
        figure.suptitle(style.literal(title))
        style.save(figure, path)
    return True


def _points(seeds: Runs, metric: str) -> tuple[list[int], NDArray[np.float64], NDArray[np.float64]]:
    """Return the evaluated rounds, megabytes sent by then, and (seeds, rounds) of values."""
    common = min(len(records) for records in seeds)  # seeds may diverge at different rounds
    seeds = [records[:common] for records in seeds]
    evaluated = [[r for r in records if r.loss is not None] for records in seeds]
    values = np.array([[value_of(r, metric) for r in rs] for rs in evaluated], np.float64)
    sent = np.mean([_sent(records) for records in seeds], axis=0)
    return [r.round for r in evaluated[0]], sent, values


def _sent(records: Sequence[Record]) -> list[float]:
    """Return the megabytes that were sent up to each evaluated round."""
    total, sent = 0, []
    for record in records:
        total += record.bytes_up + record.bytes_down
        if record.loss is not None:
            sent.append(total / 1e6)
    return sent


def partition(counts: NDArray[np.int64], path: Path, title: str = "") -> bool:
    """Draw how many samples of each label each client holds; return False without matplotlib."""
    if not style.can_draw():
        return False
    clients, labels = counts.shape
    width, height = np.clip([clients / 8 + 2, labels / 5 + 1.5], [5, 3], [16, 10])
    with style.drawing(style.SCREEN):
        figure = style.new_figure((float(width), float(height)))
        axes = figure.subplots()
        # Empty cells stay white, so that no samples of a label look different from a few.
        samples = np.ma.masked_equal(counts.T, 0)
        colours = {"cmap": style.COUNT_MAP, "vmin": 0}
        image = axes.imshow(samples, aspect="auto", interpolation="nearest", **colours)
        axes.set(xlabel="client", ylabel="label")
        for axis in (axes.xaxis, axes.yaxis):
            style.whole_ticks(axis, 20)
        axes.spines[["top", "right"]].set_visible(False)
        figure.colorbar(image, ax=axes, label="samples")
        figure.suptitle(style.literal(title))
        style.save(figure, path)
    return True


def plot_surface(surface: Surface, path: str | Path, title: str = "") -> None:
    """Draw contours of the loss with the three models and their mean; the suffix says the kind."""
    optional("matplotlib", "plot_surface", "report")
    losses = np.ma.masked_invalid(surface.losses)
    require(losses.count() > 0, "plot_surface", "finite losses", "none")
    with style.drawing(style.SCREEN):
        figure = style.new_figure((6, 5))
        axes = figure.subplots()
        filled = axes.contourf(surface.u, surface.v, losses, levels=20, cmap=style.COLOUR_MAP)
        figure.colorbar(filled, ax=axes, label="loss")
        edge = {"markeredgecolor": "black"}
        axes.plot(*surface.points.T, "o", color="white", label="local models", **edge)
        axes.plot(*surface.mean, "*", color="red", ms=12, label="mean", **edge)
        for number, point in enumerate(surface.points, 1):
            offset = {"xytext": (5, 5), "textcoords": "offset points"}
            axes.annotate(str(number), point, color="white", **offset)
        axes.set(xlabel="along 1 to 2", ylabel="across", aspect="equal")
        axes.set_title(style.literal(title))
        axes.legend(loc="upper right", fontsize=8)
        style.save(figure, path)
