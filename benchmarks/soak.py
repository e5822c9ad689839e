"""A long run: memory and descriptors over 10^4 rounds, with a plot.

    python -m benchmarks.soak [--rounds 10000] [--picture docs/soak.svg] [--json FILE]

An experiment as the command line runs it: SCAFFOLD on the embedded digits, 20 clients of which ten
take part, records and checkpoints into a folder, tests in every tenth round, a checkpoint in every
hundredth. After every hundredth round the resident memory and the open descriptors are read. The
growth is that of a straight line through the points from the tenth part of the rounds on, when
caches are filled, over its value there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import undrift as ud
from undrift.config.experiment import Experiment
from undrift.runs.options import RunOptions
from undrift.runs.run_job import Observer
from undrift.runs.runner import run_experiment

EVERY = 100


def resident_bytes() -> int:
    """Return the memory of this process that is not shared with files, in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


class Sampler(Observer):
    """Reads memory and descriptors after every hundredth round."""

    def __init__(self) -> None:
        self.points: list[tuple[int, int, int]] = []  # round, bytes, descriptors

    def add(self, job: object, record: ud.Record) -> None:
        """Hear of a round that is done and written."""
        if record.round % EVERY == 0:
            gc.collect()
            descriptors = len(os.listdir("/proc/self/fd")) - 1
            self.points.append((record.round, resident_bytes(), descriptors))


def growth(rounds: np.ndarray, values: np.ndarray) -> float:
    """Return by what share a straight line grows from a tenth of the rounds to the end."""
    late = rounds >= 0.1 * rounds[-1]
    slope, start = np.polyfit(rounds[late], values[late], 1)
    first, last = slope * rounds[late][0] + start, slope * rounds[-1] + start
    return float(last / first - 1)


def draw(points: np.ndarray, path: Path) -> None:
    """Draw memory and descriptors against rounds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(6, 4), sharex=True, layout="constrained")
    axes[0].plot(points[:, 0], points[:, 1] / 1e6)
    axes[0].set_ylabel("memory, MB")
    axes[0].set_ylim(bottom=0)
    axes[1].plot(points[:, 0], points[:, 2])
    axes[1].set_ylabel("descriptors")
    axes[1].set_ylim(bottom=0)
    axes[1].set_xlabel("round")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Run, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    experiment = Experiment.of(
        {
            "data": {"name": "digits", "clients": 20},
            "training": {"rounds": options.rounds, "work": "steps:1", "participation": 10},
            "evaluation": {"every": 10},
            "engine": {"checkpoint_every": EVERY, "kernels": False},
            "methods": [{"name": "scaffold", "lr": 0.05}],
        }
    )
    sampler, begin = Sampler(), time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        run_options = RunOptions(out=Path(place) / "run", observer=sampler, jobs=1)
        (trial,) = run_experiment(experiment, "soak", run_options).trials
    points = np.array(sampler.points)
    memory = growth(points[:, 0], points[:, 1])
    late = points[points[:, 0] >= 0.1 * options.rounds]
    print(
        f"{trial.status} after {len(trial.records)} rounds in {time.perf_counter() - begin:.0f} s: "
        f"memory {late[0, 1] / 1e6:.1f} MB after round {late[0, 0]}, {late[-1, 1] / 1e6:.1f} MB at "
        f"the end, growth {100 * memory:+.2f} %; descriptors {late[:, 2].min()} to "
        f"{late[:, 2].max()}, {late[0, 2]} then and {late[-1, 2]} at the end."
    )
    if options.json is not None:
        options.json.write_text(json.dumps(sampler.points) + "\n")
    if options.picture is not None:
        draw(points, options.picture)
    sys.exit(memory >= 0.01 or int(late[-1, 2]) > int(late[0, 2]))


if __name__ == "__main__":
    main()
