"""Seconds a round against the clients of a round, the registered clients and the parameters.

    python -m benchmarks.growth [--rounds 20] [--picture docs/growth.png] [--out FILE.json]

Each line has one quantity grow while the others stay. Random data, FedAvg and SCAFFOLD (which keeps
a state for each client) with everything at its default, which is compiled kernels where the net has
some; ten samples a client, five steps of batch 10, no evaluation. All points of a line take turns,
one round each, and a point is the median of the rounds after the first five, in seconds of the
processor on one thread, which other processes disturb little. Memory is the resident set of a
process that runs one point alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import undrift as ud

METHODS = {"FedAvg": ud.FedAvg, "SCAFFOLD": ud.Scaffold}
SAMPLES, BATCH, STEPS, CLASSES = 10, 10, 5, 10
WARM_UP = 5
LONG = 10_000  # rounds that a run is said to have; it is left after a few of them


@dataclass(frozen=True)
class Point:
    """Holds the sizes of one run."""

    cohort: int = 100  # clients of a round
    registered: int = 3_000
    parameters: int = 1_000

    def model(self) -> nn.Module:
        """Return a linear model of 1,000 parameters, or else a net with a hidden layer."""
        torch.manual_seed(0)
        if self.parameters <= 1_000:
            return nn.Linear(self.features, CLASSES)
        hidden = round((self.parameters - CLASSES) / (self.features + 1 + CLASSES))
        return nn.Sequential(
            nn.Linear(self.features, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
        )

    @property
    def features(self) -> int:
        """Return the number of inputs."""
        return 99

    def clients(self) -> ud.Clients:
        """Return the registered clients with random samples."""
        generator = np.random.default_rng(0)
        count = self.registered * SAMPLES
        inputs = generator.standard_normal((count, self.features), dtype=np.float32)
        targets = generator.integers(0, CLASSES, count)
        parts = np.arange(count).reshape(self.registered, SAMPLES)
        return ud.Clients.split(torch.from_numpy(inputs), torch.from_numpy(targets), list(parts))

    def start(self, method: str) -> Any:
        """Return the run of a method, long enough for whatever pays in long runs."""
        return ud.simulate(
            METHODS[method](lr=0.01),
            self.model(),
            self.clients(),
            loss=F.cross_entropy,
            work=ud.Steps(STEPS),
            batch_size=BATCH,
            participation=self.cohort,
            rounds=LONG,
            evaluation=ud.EvaluationOptions(every=LONG),
        )


LINES: dict[str, tuple[str, list[Point]]] = {
    "cohort": ("clients a round", [Point(cohort=n) for n in (10, 30, 100, 300, 1_000, 3_000)]),
    "registered": (
        "registered clients",
        [Point(registered=n) for n in (1_000, 3_000, 10_000, 30_000, 100_000)],
    ),
    "parameters": (
        "parameters",
        [
            Point(cohort=10, registered=100, parameters=10**k // d)
            for k in range(3, 8)
            for d in (3, 1)
            if 10**k // d >= 1_000
        ],
    ),
}


def measured(points: Sequence[Point], method: str, rounds: int) -> list[float]:
    """Return the median seconds of a round for each point, with rounds taken in turns."""
    runs = [point.start(method) for point in points]
    seconds: list[list[float]] = [[] for _ in points]
    for _ in range(rounds + WARM_UP):
        for i, run in enumerate(runs):
            start = time.process_time()
            next(run)
            seconds[i].append(time.process_time() - start)
    return [statistics.median(each[WARM_UP:]) for each in seconds]


def peak(point: Point, method: str) -> float:
    """Return the peak megabytes of a process that runs eight rounds of a point."""
    context = multiprocessing.get_context("fork")  # which spares importing torch once more
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_play, args=(point, method, theirs))
    process.start()
    theirs.close()
    found: float = ours.recv()
    process.join()
    return found


def _play(point: Point, method: str, to: Any) -> None:
    """Run one point and send the peak of this process in megabytes."""
    for _, _ in zip(range(8), point.start(method), strict=False):
        pass
    to.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a table of Markdown."""
    lines = ["| | | " + " | ".join(f"{m}, ms a round | MB" for m in METHODS) + " |"]
    lines.append("|---|---|" + "---|" * 2 * len(METHODS))
    for row in rows:
        cells = " | ".join(f"{1e3 * row[m]:.3g} | {row[f'{m} MB']:,.0f}" for m in METHODS)
        lines.append(f"| {row['title']} | {row['size']:,} | {cells} |")
    return "\n".join(lines)


def picture(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw a panel for each line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    looks = {"FedAvg": ("#0072B2", "o"), "SCAFFOLD": ("#E69F00", "s")}
    for axis, (title, points) in zip(
        figure.subplots(1, len(LINES), squeeze=False)[0], LINES.values(), strict=True
    ):
        mine = [row for row in rows if row["title"] == title]
        for method, (colour, marker) in looks.items():
            times = [1e3 * row[method] for row in mine]
            axis.plot([row["size"] for row in mine], times, color=colour, marker=marker)
            axis.plot([], [], color=colour, marker=marker, label=method)
        axis.set(xscale="log", yscale="log", xlabel=title, ylabel="CPU milliseconds a round")
        axis.set_title(_kept(title, points[0]), fontsize=10)
        low, high = axis.get_ylim()
        if high < 10 * low:  # what hardly changes should look so
            axis.set_ylim(low / 3, high * 3)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def _kept(title: str, point: Point) -> str:
    """Return what stays while a quantity grows."""
    sizes = {
        "clients a round": point.cohort,
        "registered clients": point.registered,
        "parameters": point.parameters,
    }
    return ", ".join(f"{size:,} {name}" for name, size in sizes.items() if name != title)


def lines_of(
    lines: dict[str, tuple[str, list[Point]]], rounds: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each line."""
    # Processes are forked before this one has held any run.
    peaks = {(m, p): peak(p, m) for _, points in lines.values() for p in points for m in METHODS}
    for field, (title, points) in lines.items():
        rows: list[dict[str, Any]] = [{"title": title, "size": getattr(p, field)} for p in points]
        for method in METHODS:
            times = measured(points, method, rounds)
            for row, point, seconds in zip(rows, points, times, strict=True):
                row |= {method: seconds, f"{method} MB": peaks[method, point]}
        yield rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds (%(default)s)")
    parser.add_argument("--picture", type=Path, help="where to draw, such as docs/growth.png")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = [row for each in lines_of(LINES, options.rounds) for row in each]
    date = datetime.now(UTC).date()
    print(table(rows))
    print(f"\n{date}, {platform.machine()}, 1 thread, {options.rounds} rounds")
    if options.out:
        options.out.write_text(json.dumps({"date": str(date), "rows": rows}, indent=1) + "\n")
    if options.picture:
        picture(rows, options.picture)


if __name__ == "__main__":
    main()
