"""What a federation in one process costs beside the simulator.

    python -m benchmarks.federation [--rounds 10] [--out benchmarks/results/federation.json]

Both play W1's rounds in turns: ten of a hundred clients with a small net on Fashion-MNIST, or on
random samples where it is not here, which the result says, in the mode loop without kernels. A
site's state is on disk before it replies, every message is encoded, and the centre saves after
every round. Evaluation is left out of both. Figures are medians over rounds after one to warm up,
of the clock and of the processor; ratios are those of the pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.speed.results import machine, now
from benchmarks.speed.workloads import WORK, WORKLOADS, read, write

import undrift as ud
from undrift.federation import Centre, FederatedExperiment, InProcess, Site


def played(rounds: Iterator[Any]) -> tuple[float, float]:
    """Return the seconds of the next round, by the clock and of this processor."""
    clock, processor = time.perf_counter(), time.process_time()
    next(rounds)
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="scaffold", choices=("scaffold", "fedavg"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    before = os.getloadavg()[0]
    workload = WORKLOADS["W1"]
    path, samples = write("W1", WORK)
    print(f"Data: {samples}.", file=sys.stderr, flush=True)
    data = read(path)
    pairs = [
        (torch.from_numpy(x), torch.from_numpy(y))
        for x, y in zip(data.inputs, data.targets, strict=True)
    ]
    torch.manual_seed(0)
    model = ud.models.build(workload.net, shape=workload.shape, classes=10)
    method = (ud.Scaffold if options.method == "scaffold" else ud.FedAvg)(lr=workload.lr)
    common: dict[str, Any] = {
        "work": ud.Steps(workload.steps),
        "batch_size": workload.batch,
        "rounds": options.rounds + 1,
        "participation": ud.FixedSize(workload.cohort),
        "loss": F.cross_entropy,
    }
    never = options.rounds + 2
    simulation = ud.simulate(
        method,
        model,
        ud.Clients(pairs),
        mode="loop",
        kernels=False,
        evaluation=ud.EvaluationOptions(every=never),
        **common,
    )
    described = FederatedExperiment(algorithm=method, model=model, evaluate_every=never, **common)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sites = [
            Site(described, ud.Clients([pair]), folder / f"{i:03d}", name=f"{i:03d}")
            for i, pair in enumerate(pairs)
        ]
        centre = Centre(described, InProcess(sites), checkpoint=folder / "centre")
        turns = [(played(simulation), played(centre)) for _ in range(options.rounds)]
    assert torch.equal(simulation.state.x, centre.x)
    result: dict[str, Any] = {
        "method": options.method,
        "data": samples,
        "date": now(),
        "machine": machine(),
        "torch": torch.__version__,
        "load_average": [before, os.getloadavg()[0]],
    }
    for k, kind in enumerate(("clock", "processor")):
        ratios = sorted(site[k] / simulated[k] for simulated, site in turns[1:])
        result[kind] = {
            "simulate": statistics.median(simulated[k] for simulated, _ in turns[1:]),
            "federation": statistics.median(site[k] for _, site in turns[1:]),
            "ratio": statistics.median(ratios),
            "ratios": [round(each, 3) for each in ratios],
        }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
