"""Seconds of a federated round on two processes against one, all with one thread.

    python -m benchmarks.processes [--rounds 5] [--processes 2]

FedAvg with full participation on random images of CIFAR-10's shape, an even share of equal clients
for every process, no evaluation. The run in one process and the run in several are alive at the
same time and take turns, round by round, so that a busy machine slows them alike; whoever is not
asked for a round waits without using the processor. Figures are medians over rounds after one to
warm up, the ratio is the median of the pairs' own. A round of several processes lasts as long as
the slowest's. The exchange is one all-reduce of as many floats as the model has parameters, which
is what the processes of a round send each other. The column cpu is the ratio of the seconds in
which the processor worked, for the one process and for the busiest of the several: what the ratio
would be if nobody had to wait, for the others or for a core.

With other work on the machine the processes have no cores of their own and the ratio says little:
where the load average was above 1 before the start, the result is marked as disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

import undrift as ud

TARGET = 1.6  # of two processes where cores are free
ENDLESS = 10**6  # rounds; as many as are asked for are played, and none is evaluated
EXCHANGES = 7
HERE = "127.0.0.1"


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    options: dict[str, Any]
    mode: str
    clients: int  # for each process
    steps: int
    batch: int
    turn: int  # rounds in one turn; more of those that are short

    def start(self, clients: int) -> ud.Run:
        """Return the run of this process: all of it, or its share of several processes."""
        torch.manual_seed(0)
        samples = self.steps * self.batch
        images = torch.randn(clients, samples, 3, 32, 32)
        labels = torch.arange(samples) % 10
        return ud.simulate(
            ud.FedAvg(lr=1e-3),
            ud.models.build(self.model, shape=(3, 32, 32), classes=10, **self.options),
            ud.Clients([(own, labels) for own in images]),
            loss=nn.functional.cross_entropy,
            work=ud.Steps(self.steps),
            batch_size=self.batch,
            rounds=ENDLESS,
            evaluation=ud.EvaluationOptions(every=ENDLESS),
            mode=self.mode,  # type: ignore[arg-type]
        )


CNN, RESNET = {"dropout": 0.0}, {"stem": 3}
CASES = (
    Case("2-layer CNN", "cnn2", CNN, "loop", 5, 10, 50, turn=2),
    Case("2-layer CNN, stacked", "cnn2", CNN, "stacked", 5, 10, 50, turn=2),
    Case("ResNet-18-GN", "resnet18-gn", RESNET, "loop", 1, 2, 20, turn=1),
)


class Took(NamedTuple):
    """Holds seconds by the clock, and those in which the processor worked."""

    clock: float
    processor: float


def work(case: Case, clients: int) -> None:
    """Run one process: for each line that it reads, play a round or exchange, and print seconds."""
    torch.set_num_threads(1)
    run = case.start(clients)
    message = torch.zeros(len(run.x))
    print(json.dumps({"coordinates": len(message), "mode": run.mode}), flush=True)
    for line in sys.stdin:
        start = Took(time.perf_counter(), time.process_time())
        if line.strip() == "round":
            next(run)
        else:
            dist.all_reduce(message)
        end = Took(time.perf_counter(), time.process_time())
        print(end.clock - start.clock, end.processor - start.processor, flush=True)
    os._exit(0)  # the others have been told to end, too


class Team:
    """Controls the processes of one run, which wait for commands."""

    def __init__(self, number: int, workers: Sequence[subprocess.Popen[str]]) -> None:
        self.number, self._workers = number, workers

    def about(self) -> dict[str, Any]:
        """Return what rank 0 prints when all are ready."""
        told: list[dict[str, Any]] = [json.loads(self._line(worker)) for worker in self._workers]
        return told[0]

    def time(self, what: str) -> Took:
        """Return the time of the slowest process."""
        for worker in self._workers:
            if worker.stdin is not None:
                worker.stdin.write(f"{what}\n")
                worker.stdin.flush()
        took = [[float(word) for word in self._line(worker).split()] for worker in self._workers]
        return Took(*(max(column) for column in zip(*took, strict=True)))

    def _line(self, worker: subprocess.Popen[str]) -> str:
        line = "" if worker.stdout is None else worker.stdout.readline()
        if not line:
            raise SystemExit(f"A worker of {self.number} ended early; see its error above.")
        return line


@contextmanager
def team(case: int, processes: int, clients: int) -> Iterator[Team]:
    """Start the processes of a run; they end with the block."""
    argv = [sys.executable, "-m", "benchmarks.processes", "--work", str(case), str(clients)]
    shared = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    port, workers = _free_port(), []
    try:
        for rank in range(processes):
            place = {"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": HERE}
            place["MASTER_PORT"] = str(port)
            own = place if processes > 1 else {}
            workers.append(subprocess.Popen(argv, env=shared | own, **pipes))
        yield Team(processes, workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _free_port() -> int:
    with socket.create_server((HERE, 0)) as probe:
        return int(probe.getsockname()[1])


def measure(case: int, processes: int, rounds: int) -> dict[str, Any]:
    """Return one row of the table."""
    turn, clients = CASES[case].turn, CASES[case].clients * processes
    with team(case, 1, clients) as one, team(case, processes, clients) as several:
        about = one.about()
        several.about()
        taken: list[tuple[Took, Took]] = []
        for number in range(rounds + 1):
            pair = [[each.time("round") for _ in range(turn)] for each in (one, several)]
            if number:
                taken += zip(*pair, strict=True)
        exchange = [several.time("exchange").clock for _ in range(EXCHANGES)]
    return {
        **about,
        "alone": statistics.median(first.clock for first, _ in taken),
        "shared": statistics.median(second.clock for _, second in taken),
        "ratio": statistics.median(first.clock / second.clock for first, second in taken),
        "processor": statistics.median(
            first.processor / second.processor for first, second in taken
        ),
        "exchange": statistics.median(exchange),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns after the first")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)  # case, clients
    options = parser.parse_args()
    if options.work is not None:
        work(CASES[options.work[0]], options.work[1])
    if options.rounds < 1 or options.processes < 2:
        parser.error("--rounds needs a number >= 1 and --processes one >= 2.")
    before = os.getloadavg()[0]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"
    shown = Table(title=f"A round on {options.processes} processes against one ({machine})")
    columns = "parameters", "one s", f"{options.processes} procs s", "ratio", "cpu", "exchange ms"
    for column in ("", *columns):
        shown.add_column(column, justify="left" if column == "" else "right", no_wrap=True)
    for number, case in enumerate(CASES):
        row = measure(number, options.processes, options.rounds)
        quiet = options.processes == 2 and before <= 1
        missed = " MISSED" if quiet and row["ratio"] < TARGET else ""
        shown.add_row(
            case.name,
            f"{row['coordinates']:,}",
            f"{row['alone']:.3f}",
            f"{row['shared']:.3f}",
            f"{row['ratio']:.2f}{missed}",
            f"{row['processor']:.2f}",
            f"{1e3 * row['exchange']:.1f}",
        )
    console = Console(width=100)
    console.print(shown)
    console.print(f"Load average {before:.2f} before, {os.getloadavg()[0]:.2f} after.")
    if before > 1:
        console.print("DISTURBED: other work had a share of the cores; run it on a quiet machine.")
    console.print(f"Target {TARGET} on 2 processes where cores are free.", highlight=False)


if __name__ == "__main__":
    main()
