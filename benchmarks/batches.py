"""What it costs to make local minibatches, beside the training step they are made for.

    python benchmarks/batches.py [--rounds 5] [--threads 1 2] [--data-dir FOLDER]

A method that only looks at the clock runs through `simulate`, so that the engine itself makes every
batch: the round's permutation, the gather by index from the pool of bytes, crop, flip and
normalisation. All of it, from the entry into the local loop and between two steps, counts as batch;
gradient and update count as step. Ten clients are stacked where any are. Rounds of all cases take
turns, so that a busy machine slows them alike; figures are medians over rounds. A data set that is
not on this machine is replaced by random bytes, and the last lines say so.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import undrift as ud
from undrift.data.datasets import PUBLISHED, find

BATCH, CLIENTS = 50, 100
SHAPES = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28)}
ENDLESS = 10**6  # rounds; as many as are asked for are played, and none is evaluated


@dataclass(frozen=True)
class Stopwatch(ud.FedAvg):
    """Runs FedAvg and notes when each step begins and ends."""

    moments: list[float] = field(default_factory=list, compare=False, repr=False)

    def local(self, down: Any, client: Any, steps: Any) -> tuple[Any, Any]:
        def step(y: Tensor, f: Any) -> Tensor:
            self.moments.append(time.perf_counter())
            y = y - self.lr * f.grad(y)
            self.moments.append(time.perf_counter())
            return y

        self.moments[:] = [time.perf_counter()]
        return steps(step, down) - down, client


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    limit: float  # share of the step that the batch may cost
    data: str
    model: str
    options: dict[str, Any]
    mode: str
    clients: int  # in a round; more than one only where they are stacked
    steps: int
    turn: int  # rounds in one; more of those that are short

    def rounds(self, dataset: ud.Dataset) -> Iterator[tuple[float, float]]:
        """Yield seconds of a batch and of the step it is for, round after round."""
        torch.manual_seed(0)
        watch = Stopwatch(lr=1e-3)
        run = ud.simulate(
            watch,
            ud.models.build(self.model, shape=dataset.shape, classes=10, **self.options),
            dataset.split("iid", CLIENTS),
            loss=nn.functional.cross_entropy,
            work=ud.Steps(self.steps),
            batch_size=BATCH,
            participation=self.clients,
            rounds=ENDLESS,
            evaluation=ud.EvaluationOptions(every=ENDLESS),
            mode=self.mode,  # type: ignore[arg-type]
        )
        for _ in run:
            spans = [b - a for a, b in zip(watch.moments, watch.moments[1:], strict=False)]
            yield sum(spans[::2]) / self.steps, sum(spans[1::2]) / self.steps


RESNET, CNN = {"stem": 3}, {"dropout": 0.0}  # dropout would only lengthen the step
CASES = (
    Case("ResNet-18, CIFAR-10 augmented", 0.05, "cifar10", "resnet18-gn", RESNET, "loop", 1, 2, 1),
    Case("2-layer CNN, MNIST", 0.10, "mnist", "cnn2", CNN, "loop", 1, 12, 5),
    Case("2-layer CNN, MNIST, stacked", 0.10, "mnist", "cnn2", CNN, "stacked", 10, 12, 1),
)


def dataset(name: str, data_dir: Path | None) -> ud.Dataset:
    """Return the data set if it is on this machine, else random bytes of its shape."""
    if find(name, data_dir) is not None:
        return ud.data.load(name, data_dir)
    noise = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (50_000, *SHAPES[name]), generator=noise, dtype=torch.uint8)
    part = ud.data.Samples(inputs.numpy(), torch.arange(50_000).numpy() % 10)
    stored = ud.data.Stored(part, part, classes=10)
    return ud.Dataset.of(stored, name=f"{name} (random bytes)", prepare=PUBLISHED[name].prepare)


def measure(
    cases: dict[tuple[Case, int], Iterator[tuple[float, float]]], rounds: int
) -> dict[tuple[Case, int], list[tuple[float, float]]]:
    """Return seconds of each case and number of threads, taken in turns after a warm-up."""
    taken: dict[tuple[Case, int], list[tuple[float, float]]] = {key: [] for key in cases}
    for turn in range(rounds + 1):
        for (case, threads), timed in cases.items():
            torch.set_num_threads(threads)
            for _ in range(case.turn):
                seconds = next(timed)
                if turn:
                    taken[case, threads].append(seconds)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    data = {name: dataset(name, options.data_dir) for name in SHAPES}
    cases = {(case, n): case.rounds(data[case.data]) for case in CASES for n in options.threads}
    machine = f"{platform.machine()}, torch {torch.__version__}"
    shown = Table(title=f"Batches of {BATCH}, medians ({machine})")
    for column in ("", "threads", "batch ms", "step ms", "share", "limit"):
        shown.add_column(column, justify="left" if column == "" else "right")
    for (case, threads), taken in measure(cases, options.rounds).items():
        batch, step = (1e3 * statistics.median(values) for values in zip(*taken, strict=True))
        share = statistics.median(batch / step for batch, step in taken)
        shown.add_row(
            case.name,
            str(threads),
            f"{batch:.2f}",
            f"{step:.2f}",
            f"{share:.1%}",
            f"{case.limit:.0%}" + ("" if share < case.limit else " EXCEEDED"),
        )
    console = Console()
    console.print(shown)
    for each in data.values():
        console.print(repr(each), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
