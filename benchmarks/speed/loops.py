"""CPU time of rounds with local steps in a compiled loop and one by one, rounds taking turns.

    python -m benchmarks.speed.loops [--workloads W1b10 W1b100] [--rounds 12]

Both have the same kernel, one thread and the same bits; CPU time says what other load would hide.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from benchmarks.speed import workloads
from benchmarks.speed.contestants.undrift import clients_of, simulation
from benchmarks.speed.workloads import WORK, WORKLOADS

import undrift as ud
from undrift.engine.settings import ExecutionRecord

METHODS = ud.FedAvg, ud.Scaffold, ud.FedSpeed


def one(name: str, clients: ud.Clients, method: Any, *, loops: bool) -> ud.Run:
    """Return a run with a kernel, with or without compiled loops."""
    like = ExecutionRecord(mode="stacked", channels_last=False, kernels=True, loops=loops)
    execution = ud.ExecutionOptions(like=like, threads=1)
    return simulation(WORKLOADS[name], clients, method(lr=1e-3), execution=execution)


def measured(name: str, rounds: int) -> dict[tuple[str, bool], list[float]]:
    """Return CPU seconds of each round after the first."""
    path, _ = workloads.write(name, WORK)
    clients = clients_of(str(path), None)
    runs = {
        (method.__name__, loops): one(name, clients, method, loops=loops)
        for method in METHODS
        for loops in (False, True)
    }
    taken: dict[tuple[str, bool], list[float]] = {which: [] for which in runs}
    for turn in range(rounds + 1):
        for which, run in runs.items():
            start = time.process_time()
            next(run)
            if turn:
                taken[which].append(time.process_time() - start)
    return taken


def main() -> None:
    """Print a line for each workload and method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", default=["W1b10", "W1b100"], choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.workloads:
        taken = measured(name, options.rounds)
        plain = taken["FedAvg", True]
        for method in METHODS:
            single, loop = (taken[method.__name__, loops] for loops in (False, True))
            gain = statistics.median(a / b for a, b in zip(single, loop, strict=True))
            ratio = statistics.median(a / b for a, b in zip(loop, plain, strict=True))
            before, after = (1e3 * statistics.median(times) for times in (single, loop))
            print(
                f"{name} {method.__name__}: {before:.1f} ms of CPU a round step by step, "
                f"{after:.1f} in a loop, {gain:.2f}x; {ratio:.2f} of FedAvg's"
            )


if __name__ == "__main__":
    main()
