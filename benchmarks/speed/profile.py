"""Where a round's time goes: `python -m benchmarks.speed.profile [--write docs/performance.md]`.

Parts of the engine are timed from outside, in the mode that a run chooses by itself. With clients
on several threads it is the time of all of them together, so shares compare and seconds do not.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed.contestants.undrift import clients_of, simulation
from benchmarks.speed.results import machine
from benchmarks.speed.table import replaced
from benchmarks.speed.workloads import WORK, WORKLOADS, write

from undrift.engine import federated_run
from undrift.engine.execution import aggregate, batches
from undrift.engine.execution.local import Group
from undrift.gradients.kernels import Kernels
from undrift.gradients.loops import CompiledLoops
from undrift.gradients.mlp import Dense
from undrift.gradients.task import Autograd

NAMES = ("W1", "W1b100", "W2")
PARTS = ("gradients", "batches", "aggregation", "records", "update arithmetic")
BEGIN, END = "<!-- profile:begin -->", "<!-- profile:end -->"


class Stopwatch:
    """Sums the time in functions over all threads; a nested function counts for itself."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._lock, self._inside = threading.Lock(), threading.local()

    def timed(self, owner: Any, name: str, part: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def measured(*positional: Any, **options: Any) -> Any:
            start, outer = time.perf_counter(), getattr(self._inside, "spent", 0.0)
            self._inside.spent = 0.0
            try:
                return function(*positional, **options)
            finally:
                whole = time.perf_counter() - start
                with self._lock:
                    self.seconds[part] += whole - self._inside.spent
                self._inside.spent = outer + whole

        setattr(owner, name, measured)


def watch() -> Stopwatch:
    """Time the parts of a round; the rest is the algorithm's arithmetic and the loop itself."""
    watch = Stopwatch()
    watch.timed(Autograd, "gradient", "gradients")
    watch.timed(Autograd, "gradients", "gradients")
    watch.timed(Dense, "gradient", "gradients")
    watch.timed(Dense, "gradients", "gradients")
    watch.timed(Kernels, "_call", "gradients")
    watch.timed(CompiledLoops, "run", "gradients")  # and the arithmetic of the steps
    watch.timed(Group, "table", "batches")
    watch.timed(batches.Minibatches, "at", "batches")
    watch.timed(aggregate.UploadSum, "add", "aggregation")
    watch.timed(federated_run.FederatedRun, "_record", "records")
    return watch


def profile(name: str, watch: Stopwatch, rounds: int, cohort: int | None) -> dict[str, Any]:
    """Return the share of each part, and the seconds and the mode of the run."""
    workload = WORKLOADS[name]
    if cohort is not None and cohort < workload.cohort <= 10:
        workload = replace(workload, cohort=cohort)
    place, _ = write(name, WORK)
    run = simulation(workload, clients_of(str(place), None if workload.cohort > 10 else 20))
    next(run)  # to warm up
    watch.seconds.clear()
    wall = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        next(run)
        wall += time.perf_counter() - start
    jobs = {"loop": 1, "threads": workload.cohort}
    stacks = -(-workload.cohort // run._executor.chunk)
    threads = min(run._executor.threads, jobs.get(run.mode, stacks))
    spent = dict(watch.seconds)
    spent["update arithmetic"] = max(0.0, wall * threads - sum(spent.values()))
    whole = sum(spent.values())
    shares = {part: spent.get(part, 0.0) / whole for part in PARTS}
    clients = workload.cohort
    return {"mode": run.mode, "clients": clients, "seconds": wall / rounds, "shares": shares}


def table(found: dict[str, dict[str, Any]]) -> str:
    head = ["workload", "mode", "clients", "seconds a round", *PARTS]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, one in found.items():
        shares = [f"{100 * one['shares'][part]:.1f} %" for part in PARTS]
        about = f"{name} | {one['mode']} | {one['clients']} | {one['seconds']:.3f}"
        lines.append(f"| {about} | {' | '.join(shares)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default=",".join(NAMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cohort", type=int, help="clients a round, instead of ten of them")
    parser.add_argument("--write", type=Path, help="a page with the two markers to put it between")
    chosen = parser.parse_args()
    clock = watch()
    names = chosen.workloads.split(",")
    found = {name: profile(name, clock, chosen.rounds, chosen.cohort) for name in names}
    about = machine()
    date = time.strftime("%Y-%m-%d")
    where = f"{about['cpu']}, {about['cores']} cores, torch {torch.__version__}"
    text = f"{table(found)}\n\n{date}, {where}."
    print(text)
    if chosen.write is not None:
        page = chosen.write.read_text(encoding="utf-8")
        chosen.write.write_text(replaced(page, text, BEGIN, END), encoding="utf-8")


if __name__ == "__main__":
    main()
