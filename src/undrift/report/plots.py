"""Accuracy curves and partitions as pictures, when matplotlib is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from undrift.results.record import Record

Runs = Sequence[Sequence[Record]]  # one list of records per seed


def curves(runs: Mapping[str, Runs], path: Path, title: str = "") -> bool:
    """Accuracy (or loss) against rounds and against megabytes sent; False without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return False
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    by_round, by_bytes = figure.subplots(1, 2, sharey=True)
    classified = all(
        record.accuracy is not None or record.loss is None
        for seeds in runs.values()
        for records in seeds
        for record in records
    )
    for name, seeds in runs.items():
        done = min(len(records) for records in seeds)  # seeds may diverge at different rounds
        seeds = [records[:done] for records in seeds]
        seen = [[r for r in records if r.loss is not None] for records in seeds]
        values = np.array([[r.accuracy if classified else r.loss for r in rs] for rs in seen])
        rounds = [r.round for r in seen[0]]
        sent = np.mean([_sent(records) for records in seeds], axis=0)
        for axis, x in ((by_round, rounds), (by_bytes, sent)):
            (line,) = axis.plot(x, values.mean(0), label=_plain(name), linewidth=1.6)
            if len(values) > 1:
                axis.fill_between(
                    x, values.min(0), values.max(0), color=line.get_color(), alpha=0.12, linewidth=0
                )
    by_round.set(xlabel="round", ylabel="test accuracy" if classified else "loss")
    by_round.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_bytes.set(xlabel="megabytes sent")
    for axis in (by_round, by_bytes):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    by_round.legend(frameon=False)
    figure.suptitle(_plain(title), fontsize=10)
    figure.savefig(path, dpi=150)
    return True


def _plain(text: str) -> str:
    """A dollar is a dollar, not the beginning of a formula."""
    return text.replace("$", r"\$")


def _sent(records: Sequence[Record]) -> list[float]:
    """Megabytes sent up to each evaluated round."""
    total, sent = 0, []
    for record in records:
        total += record.bytes_up + record.bytes_down
        if record.loss is not None:
            sent.append(total / 1e6)
    return sent


def partition(counts: NDArray[np.int64], path: Path, title: str = "") -> bool:
    """Heat map of how many samples of each label each client holds; False without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return False
    clients, labels = counts.shape
    width, height = np.clip([clients / 8 + 2, labels / 5 + 1.5], [5, 3], [16, 10])
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    # Empty cells stay white, so that a label a client has not is told from one it has little of.
    shown = np.ma.masked_equal(counts.T, 0)
    image = axis.imshow(shown, cmap="YlGnBu", vmin=0, aspect="auto", interpolation="nearest")
    axis.set(xlabel="client", ylabel="label")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(MaxNLocator(integer=True, nbins=20, steps=[1, 2, 5, 10]))
    axis.spines[["top", "right"]].set_visible(False)
    figure.colorbar(image, ax=axis, label="samples")
    figure.suptitle(_plain(title), fontsize=10)
    figure.savefig(path, dpi=150)
    return True
