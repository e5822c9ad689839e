"""ResNet-18 trained with convolutions by torch, F(2x2) and F(4x4), and the errors of gradients.

    python -m benchmarks.winograd [--stems 7 3] [--seeds 3] [--steps 300] [--out results.json]
    python -m benchmarks.winograd show [--out results.json]
    python -m benchmarks.winograd errors --steps 60   # before and after a training with F(4x4)
    python -m benchmarks.winograd time [--turns 8]    # CPU time of a gradient of 50 samples

Each training is one of CIFAR-10 (random images where the data set is not here) on one thread, with
the same batches for all three. What is finished is kept in the file, so that a call goes on where
the last one ended; what was trained on other data, with other options or with other C++ is trained
again, and not shown beside the new. Errors are those of the whole gradient against double
precision, relative to its norm, at the start and after torch's training.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import undrift as ud
from undrift.data.datasets import find
from undrift.files import write_atomic
from undrift.gradients.task import Autograd, Batch, Oracle, Task
from undrift.gradients.winograd import build_winograd, convolution
from undrift.gradients.winograd.library import Scheme, source
from undrift.models.layout import Layout
from undrift.models.resnet import ResNet18

WAYS = "torch", "F(2x2)", "F(4x4)"
BATCH, LR, LAST = 20, 0.02, 50
ERRORS = 5  # batches whose gradients are compared
RESULTS = Path(__file__).resolve().parent / "results" / "winograd.json"


@contextmanager
def oracle_of(way: str) -> Iterator[Oracle]:
    """Yield what computes gradients in this way."""
    chosen = convolution.scheme_for
    if way == "F(2x2)":
        convolution.scheme_for = lambda *form: (
            Scheme.F2 if chosen(*form) is Scheme.F4 else chosen(*form)
        )
    try:
        yield Autograd() if way == "torch" else build_winograd()
    finally:
        convolution.scheme_for = chosen


def data() -> tuple[Tensor, Tensor]:
    """Return inputs and targets, of random images where the data set is not here."""
    if find("cifar10") is None:
        noise = torch.Generator().manual_seed(0)
        inputs = torch.randn(5000, 3, 32, 32, generator=noise)
        return inputs, torch.randint(10, (5000,), generator=noise)
    dataset = ud.data.load("cifar10")
    stored, targets = dataset.stored_train
    return dataset.prepare.plain()(stored, torch.float32), targets


def batches(inputs: Tensor, targets: Tensor, seed: int, number: int) -> Iterator[Batch]:
    """Yield the same minibatches for every way."""
    noise = torch.Generator().manual_seed(seed)
    for _ in range(number):
        index = torch.randint(len(targets), (BATCH,), generator=noise)
        yield Batch(inputs[index], targets[index].long())


def task_of(stem: int, seed: int) -> Task:
    torch.manual_seed(seed)
    model = ResNet18(stem=stem)
    return Task(model, Layout.of(model), F.cross_entropy, channels_last=True)


def errors(task: Task, x: Tensor, inputs: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """Return the error of each way's gradients on some batches."""
    model = copy.deepcopy(task.model).double()
    double = Task(model, Layout.of(model), F.cross_entropy)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for batch in batches(inputs, targets, 1000, ERRORS):
        wide = batch._replace(inputs=batch.inputs.double())
        exact = Autograd().gradient(double, x.double(), wide)
        for way in WAYS:
            with oracle_of(way) as oracle:
                g = oracle.gradient(task, x, batch).double()
            found[way].append(float((g - exact).norm() / exact.norm()))
    return found


def errors_around_training(stem: int, steps: int) -> None:
    """Print the median errors before and after a training with F(4x4)."""
    inputs, targets = data()
    task = task_of(stem, 0)
    x = task.layout.gather(task.model)
    for when in ("at the start", f"after {steps} steps"):
        if when != "at the start":
            with oracle_of("F(4x4)") as oracle:
                for batch in batches(inputs, targets, 0, steps):
                    x = x - LR * oracle.gradient(task, x, batch)
        found = errors(task, x, inputs, targets)
        shown = " | ".join(f"{statistics.median(found[way]):.1e}" for way in WAYS)
        print(f"| {stem}x{stem} | {when} | {shown} |", flush=True)


def setting(steps: int) -> dict[str, Any]:
    """Return what trainings must have in common to be compared, the C++ by its hash."""
    data = "random images" if find("cifar10") is None else "CIFAR-10"
    code = hashlib.sha256(source().encode()).hexdigest()[:16]
    common = {"data": data, "steps": steps, "batch": BATCH, "lr": LR}
    return common | {"torch": torch.__version__, "code": code}


def comparable(results: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """Return the trainings of this setting; torch's own do not depend on the C++."""
    wanted = setting(steps)

    def fits(result: dict[str, Any]) -> bool:
        names = set(wanted) - ({"code"} if result["way"] == "torch" else set())
        return all(result.get(name) == wanted[name] for name in names)

    return [each for each in results if fits(each)]


def train(way: str, stem: int, seed: int, steps: int) -> dict[str, Any]:
    """Return losses and CPU seconds of one training, and with torch the errors of gradients."""
    inputs, targets = data()
    task = task_of(stem, seed)
    x = task.layout.gather(task.model)
    result: dict[str, Any] = {"way": way, "stem": stem, "seed": seed, **setting(steps)}
    if way == "torch":
        result["errors at the start"] = errors(task, x, inputs, targets)
    losses, seconds = [], 0.0
    with oracle_of(way) as oracle:
        for batch in batches(inputs, targets, seed, steps):
            start = time.process_time()
            seen: list[float] = []

            def value(y: Tensor, batch: Batch = batch, seen: list[float] = seen) -> Tensor:
                loss = task.value(y, batch)
                seen.append(loss.item())
                return loss

            x = x - LR * oracle.slope(value, x)
            seconds += time.process_time() - start
            losses.append(seen[-1])
    if way == "torch":
        result["errors after training"] = errors(task, x, inputs, targets)
    last = statistics.mean(losses[-LAST:])
    return result | {"loss": last, "cpu_seconds": seconds, "losses": losses}


def time_gradients(stem: int, turns: int) -> None:
    """Print the CPU time of a gradient on one thread; the ways take turns after one to warm up."""
    task = task_of(stem, 0)
    x, noise = task.layout.gather(task.model), torch.Generator().manual_seed(0)
    images = torch.randn(50, 3, 32, 32, generator=noise)
    batch = Batch(images, torch.randint(10, (50,), generator=noise))
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(turns + 1):
        for way in WAYS:
            with oracle_of(way) as oracle:
                start = time.process_time()
                oracle.gradient(task, x, batch)
                taken[way].append(time.process_time() - start)
    for way in WAYS:
        ratios = [a / b for a, b in zip(taken["torch"][1:], taken[way][1:], strict=True)]
        print(
            f"| {stem}x{stem} | {way} | {statistics.median(taken[way][1:]):.2f} | "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |",
            flush=True,
        )


def read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


def show(results: list[dict[str, Any]]) -> None:
    """Print a table of the trainings and one of the errors."""
    print(
        "| stem | convolutions | mean loss of the last 50 steps, each seed | mean | CPU seconds |"
    )
    print("|---|---|---|---|---|")
    for stem in sorted({each["stem"] for each in results}):
        for way in WAYS:
            own = [each for each in results if (each["stem"], each["way"]) == (stem, way)]
            if own:
                losses = [each["loss"] for each in own]
                seconds = statistics.median(each["cpu_seconds"] for each in own)
                each = ", ".join(f"{loss:.4f}" for loss in losses)
                size = f"{stem}x{stem}"
                print(
                    f"| {size} | {way} | {each} | {statistics.mean(losses):.4f} | {seconds:.0f} |"
                )
        own = [e["loss"] for e in results if (e["stem"], e["way"]) == (stem, "torch")]
        if len(own) > 1:
            print(f"Deviation of the seeds with torch, {stem}x{stem}: {statistics.stdev(own):.4f}")
    print("\n| stem | when | " + " | ".join(WAYS) + " |\n|---|---|---|---|---|")
    for when in ("at the start", "after training"):
        for stem in sorted({each["stem"] for each in results}):
            found = [e for e in results if e["stem"] == stem and f"errors {when}" in e]
            if found:
                medians = (
                    statistics.median(v for e in found for v in e[f"errors {when}"][way])
                    for way in WAYS
                )
                print(
                    f"| {stem}x{stem} | {when} | " + " | ".join(f"{m:.1e}" for m in medians) + " |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "command", nargs="?", choices=["train", "show", "errors", "time"], default="train"
    )
    parser.add_argument("--stems", nargs="+", type=int, default=[7, 3], choices=[3, 7])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.command == "errors":
        print("| stem | when | " + " | ".join(WAYS) + " |\n|---|---|---|---|---|")
        for stem in chosen.stems:
            errors_around_training(stem, chosen.steps)
        return
    if chosen.command == "time":
        print("| stem | convolutions | CPU seconds | torch / this |\n|---|---|---|---|")
        for stem in chosen.stems:
            time_gradients(stem, chosen.turns)
        return
    if chosen.command == "train":
        cases = [
            (way, stem, seed)
            for stem in chosen.stems
            for seed in range(chosen.seeds)
            for way in WAYS
        ]
        for case in cases:
            results = read(chosen.out)
            mine = comparable(results, chosen.steps)
            if case not in {(each["way"], each["stem"], each["seed"]) for each in mine}:
                result = train(*case, chosen.steps)
                write_atomic(chosen.out, json.dumps([*results, result], indent=1) + "\n")
                print(
                    f"{case}: loss {result['loss']:.4f}, {result['cpu_seconds']:.0f} s", flush=True
                )
    show(comparable(read(chosen.out), chosen.steps))


if __name__ == "__main__":
    main()
