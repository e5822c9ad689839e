"""What a run over torch.distributed costs where each rank has the data of its own clients alone.

    python -m benchmarks.here [--rounds 15] [--out benchmarks/results/here.json]

The run of ranks that can read everything and that of `Clients.here` are alive in the same two
processes, with one thread each, and take turns, round by round. Images of MNIST's shape, a small
net, twenty clients, no evaluation. Figures are medians over rounds after one to warm up, of the
clock and of the processor; ratios are those of the pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed.results import machine, now
from torch import nn

import undrift as ud

CLIENTS, SAMPLES = 20, 200
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "FedAvg": (ud.FedAvg(lr=0.01), {}),
    "SCAFFOLD": (ud.Scaffold(lr=0.01), {}),
    "NET-FLEET": (ud.NetFleet(lr=0.01), {"topology": "ring"}),
    "Marsit": (ud.Marsit(lr=0.01, server_lr=0.001), {"allreduce": "ring"}),
}


def start(name: str, clients: ud.Clients) -> ud.Run:
    """Return a run of the method on these clients."""
    method, options = METHODS[name]
    torch.manual_seed(0)
    return ud.simulate(
        method,
        ud.models.build("cnn2", shape=(1, 28, 28), classes=10, dropout=0.0),
        clients,
        loss=nn.functional.cross_entropy,
        work=ud.Steps(10),
        batch_size=20,
        rounds=10**6,
        evaluation=ud.EvaluationOptions(every=10**6, first=False),
        kernels="always",
        **options,
    )


def seconds(run: ud.Run) -> tuple[float, float]:
    """Return the seconds of the next round, by the clock and of this processor."""
    clock, processor = time.perf_counter(), time.process_time()
    next(run)
    return time.perf_counter() - clock, time.process_time() - processor


def rank_main(rounds: int, out: Path | None) -> None:
    """Measure on one rank; rank 0 prints and writes."""
    torch.set_num_threads(1)
    date, before, methods = now(), os.getloadavg()[0], []
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(CLIENTS, SAMPLES, 1, 28, 28, generator=generator)
    data = [(own, torch.arange(SAMPLES) % 10) for own in images]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    share = CLIENTS // size
    for name in METHODS:
        everywhere = start(name, ud.Clients(data))
        here = start(name, ud.Clients.here(data[rank * share : (rank + 1) * share]))
        pairs = [(seconds(everywhere), seconds(here)) for _ in range(rounds + 1)][1:]
        found: dict[str, Any] = {"method": name, "mode": [everywhere.mode, here.mode]}
        for i, kind in enumerate(("clock", "processor")):
            ratios = [own[i] / all_[i] for all_, own in pairs]
            found[kind] = {
                "everywhere": statistics.median(all_[i] for all_, _ in pairs),
                "here": statistics.median(own[i] for _, own in pairs),
                "ratio": statistics.median(ratios),
                "range": [min(ratios), max(ratios)],
            }
        methods.append(found)
        if rank == 0:
            print(json.dumps(found), flush=True)
    if rank == 0 and out is not None:
        result = {
            "date": date,
            "machine": machine(),
            "torch": torch.__version__,
            "load_average": [before, os.getloadavg()[0]],
            "methods": methods,
        }
        out.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    """Start two ranks by torchrun."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options.rounds, options.out)
        return
    module = ["-m", "benchmarks.here", "--rounds", str(options.rounds)]
    module += [] if options.out is None else ["--out", str(options.out)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    subprocess.run([*launcher, *module], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
