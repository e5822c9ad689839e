"""What a federation in one process costs beside the simulator: `python -m benchmarks.federation`.

Both play W1's rounds in turns: ten of a hundred clients with a small net on Fashion-MNIST, in the
mode loop without kernels. A site's state is on disk before it replies, every message is encoded,
and the centre saves after every round. Evaluation is left out of both. CPU time is compared, since
others may use the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.speed.workloads import WORK, WORKLOADS, read, write

import undrift as ud
from undrift.federation import Centre, FederatedExperiment, InProcess, Site


def played(rounds: Iterator[Any]) -> tuple[float, float]:
    """Return the CPU and wall seconds of the next round."""
    cpu, wall = time.process_time(), time.perf_counter()
    next(rounds)
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="scaffold", choices=("scaffold", "fedavg"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    workload = WORKLOADS["W1"]
    data = read(write("W1", WORK)[0])
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
    ratios = [site[0] / simulated[0] for simulated, site in turns[1:]]
    result = {
        "method": options.method,
        "simulate_cpu": statistics.median(simulated[0] for simulated, _ in turns[1:]),
        "federation_cpu": statistics.median(site[0] for _, site in turns[1:]),
        "ratio_cpu": statistics.median(ratios),
        "ratios_cpu": [round(each, 3) for each in sorted(ratios)],
        "ratio_wall": statistics.median(b[1] / a[1] for a, b in turns[1:]),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
