"""What `tests/outer/test_absence.py` runs in 2 and 3 processes: `main` with a folder as argument.

Every rank writes its models to FOLDER/models-RANK and what it found to FOLDER/found-RANK.json.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import undrift as ud
from tests.support import outer as support
from undrift.engine.processes.rendezvous import join

COHORTS = {2: [[1], [0, 1], [0]], 3: [[1, 2], [0], [2, 0]]}  # by the number of ranks
# Who takes part if rank 1 is late once.
LEFT_OUT = {2: [[0], [0], [0, 1]], 3: [[0, 2], [0, 2], [0, 1, 2]]}
METHODS = {
    "FedAvg": ud.FedAvg(lr=0.1),
    "Scaffold": ud.Scaffold(lr=0.1),
    "FedaGrac": ud.FedaGrac(lr=0.1),
    "DiLoCo": ud.DiLoCo(lr=0.01),
    "packed": ud.Compressed(ud.FedACG(lr=0.1), ud.QSGD(bits=4), error_feedback=False),
}
PATIENCE, LATE, LATER = 4.0, 10.0, 18.0  # seconds


def late(rank: int, size: int, method: Any) -> tuple[ud.Outer, list[str]]:
    """Return Outer after three rounds, to the first of which rank 1 comes too late."""
    counts = [3] * size
    model, batches = support.net(seed=rank), support.Batches(rank, size, counts[rank])
    outer = ud.Outer(model, method, 3, seed=support.SEED, weight=batches.samples, patience=PATIENCE)
    said = []
    while outer.t < support.ROUNDS:
        t = outer.t
        for k, batch in enumerate(batches.of(t)):
            if k == 2 and (rank, t) == (1, 0):
                time.sleep(LATE)
            if k == 2 and rank != 1 and t == 1:
                time.sleep(LATER - PATIENCE)  # so that rank 1 is back before the second meeting
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                outer.step(support.closure_of(model, batch))
            said += [str(each.message) for each in caught if "too late" in str(each.message)]
    return outer, said


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    world = join()
    rank, size = world.rank, world.size
    models, found = {}, {}
    for name, method in METHODS.items():
        outer = support.trained(method, rank, size, participation=COHORTS[size])
        models[name] = outer.server.x.clone()
        found[name] = outer.metrics["ranks"]
    outer, found["said"] = late(rank, size, ud.Scaffold(lr=0.1))
    models["late"] = outer.server.x.clone()
    timed = ud.Outer(support.net(), ud.FedaGrac(lr=0.1), ud.Seconds(0.2))
    model = timed.param_groups[0]["params"]
    while timed.t < 3:
        timed.zero_grad()
        time.sleep(0.02 if rank == 0 else 0.06)
        sum(p.square().sum() for p in model).backward()
        timed.step()
    found["counts"] = list(timed._rounds.counts)
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    save_file({k: v.contiguous() for k, v in models.items()}, folder / f"models-{rank}")
    world.close()
