"""What `test_here.py` runs in several processes: every rank makes its own clients' data alone.

`main` takes a folder. Every rank writes what it found to FOLDER/found-R.json.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # torch.func needs it; so copies of this process need not import it each

import undrift as ud
from tests.jobs.processes import records_of, refusal
from undrift import testing
from undrift.engine.processes.rendezvous import join
from undrift.engine.world import RankBlocks

SIZES = (9, 4, 7, 9, 12, 5, 8)
EVALUATION = ud.EvaluationOptions(every=2, train_loss=True, client_metrics=True)
ALL: dict[str, Any] = {"work": ud.Steps(3), "rounds": 4, "evaluation": EVALUATION}
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "fedavg": (ud.FedAvg(lr=0.1), {"weighting": "size"}),
    "scaffold": (ud.Scaffold(lr=0.1), {"participation": ud.FixedSize(1)}),  # most ranks have nobody
    "fedlin": (ud.FedLin(lr=0.1), {"fleet": "phone:5,gpu-node:2"}),
    "deadline": (ud.FedAvg(lr=0.1), {"fleet": "phone", "work": ud.Deadline(3, ud.Steps(4))}),
    "compressed": (ud.Compressed(ud.FedACG(lr=0.1), ud.QSGD(bits=4)), {"mode": "stacked"}),
    "some tested": (ud.FedAvg(lr=0.1), {"evaluation": ud.EvaluationOptions(every=1, samples=11)}),
    "median": (ud.FedAvg(lr=0.1), {"aggregation": "median", "on_bad": "drop"}),
    "netfleet": (ud.NetFleet(lr=0.05), {}),
    "marsit": (ud.Marsit(lr=0.1), {}),
    "psgd": (ud.PSGD(lr=0.1), {"allreduce": "torus:7x1"}),
}
SAVED = {"scaffold": ud.Scaffold(lr=0.1), "netfleet": ud.NetFleet(lr=0.05)}


class Hidden:
    """Makes samples of single clients; those of other ranks' clients do not exist on a rank."""

    def __init__(self) -> None:
        self.allowed: Sequence[int] = range(len(SIZES))

    def samples(self, client: int, count: int, purpose: int = 0) -> tuple[Any, Any]:
        """Return samples of a client, or raise if they are not here."""
        assert client in self.allowed, f"client {client} is on another rank"
        noise = torch.Generator().manual_seed(100 * client + purpose)
        inputs = torch.randn(count, 6, generator=noise, dtype=torch.float64) + client / 3
        return inputs, torch.randint(0, 3, (count,), generator=noise)

    def given(self, clients: Sequence[int]) -> dict[str, Any]:
        """Return the arguments of `Clients` for some clients; client 2 is not tested."""
        tests = [self.samples(i, 0 if i == 2 else 2 + i, 1) for i in clients]
        held = [self.samples(i, 3, 2) for i in clients]
        return {
            "data": [self.samples(i, SIZES[i]) for i in clients],
            "test": tests,
            "validation": tuple(torch.cat(part) for part in zip(*held, strict=True)),
        }


HIDDEN = Hidden()


def dealt(ranks: int) -> list[range]:
    """The clients of each rank as the engine deals them where all can read everything."""
    return [range(rank, len(SIZES), ranks) for rank in range(ranks)]


def blocks(ranks: int) -> list[range]:
    """Blocks of consecutive clients, the larger ones first."""
    return [RankBlocks(len(SIZES), ranks).of(rank) for rank in range(ranks)]


def start(name: str, clients: ud.Clients, **options: Any) -> ud.Run:
    """A run of this name."""
    algorithm, own = RUNS[name]
    return testing.start(algorithm, clients=clients, **(ALL | own | options))


def found_of(run: ud.Run) -> dict[str, Any]:
    """Records and the model."""
    return records_of(run) | {"x": run.x.tolist()}


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    world = join()
    rank, size = world.rank, world.size
    mine = {"dealt": dealt(size)[rank], "blocks": blocks(size)[rank]}
    found: dict[str, Any] = {"runs": {}, "resumed": {}}

    HIDDEN.allowed = mine["blocks"]
    here = ud.Clients.here(**HIDDEN.given(mine["blocks"]))
    found["clients"] = [repr(here), here.sizes.tolist(), here.mine.tolist()]
    found["foreign"] = refusal(lambda: here[(mine["blocks"][-1] + 1) % len(SIZES)])
    peers = [name for name, (each, _) in RUNS.items() if isinstance(each, ud.Peer)]
    found["modes"] = [start(name, here, mode="auto").mode for name in peers]
    for name in RUNS:
        found["runs"][f"{name} | blocks"] = found_of(start(name, here))
    for name, algorithm in SAVED.items():
        places: dict[str, Any] = {"checkpoint": folder / name}
        run = testing.start(algorithm, clients=here, **(ALL | places))
        next(run), next(run)
        run.close()
        again = testing.start(algorithm, clients=here, **ALL, resume=folder / name)
        found["resumed"][name] = found_of(again)
        whole = testing.start(algorithm, clients=here, **ALL)
        found["runs"][f"{name} saved | blocks"] = found_of(whole)
    HIDDEN.allowed = mine["dealt"]
    here = ud.Clients.here(**HIDDEN.given(mine["dealt"]), numbers=list(mine["dealt"]))
    for name in RUNS:
        if isinstance(RUNS[name][0], ud.Federated):
            found["runs"][f"{name} | dealt"] = found_of(start(name, here))
    found["other layout"] = refusal(
        lambda: testing.start(SAVED["scaffold"], clients=here, **ALL, resume=folder / "scaffold")
    )
    found["peers"] = refusal(lambda: start("netfleet", here))

    found["tables"] = tables(folder, rank)
    HIDDEN.allowed = range(len(SIZES))  # as every rank can read everything today
    everything = HIDDEN.given(range(len(SIZES)))
    found["all here"] = {name: found_of(start(name, ud.Clients(**everything))) for name in RUNS}
    found["refused"] = refusals(rank)
    (folder / f"found-{rank}.json").write_text(json.dumps(found))


def frame_of(rank: int) -> Any:
    """The table of a rank, with words and a range of numbers of its own."""
    import pandas as pd

    rng = np.random.default_rng(rank)
    rows = 40 + 10 * rank
    age = rng.normal(50 + 7 * rank, 9, rows)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.1, np.nan, age),
            "dose": rng.integers(0, 9, rows),
            "ward": rng.choice(["a", "b", f"only {rank}"], rows),
            "died": np.where(age + rng.normal(0, 5, rows) > 55, "yes", "no"),
        }
    )


TABLE_RUN: dict[str, Any] = {"work": ud.Steps(3), "rounds": 3, "batch_size": 8, "seed": 1}


def tables(folder: Path, rank: int) -> dict[str, Any]:
    """What ranks find whose tables have agreed on their columns."""
    frame = frame_of(rank).dropna()
    here = ud.Clients.here([frame], target="died")
    assert here.preprocessing is not None
    net = torch.nn.Linear(len(here.preprocessing.features), 2)
    torch.nn.init.zeros_(net.weight)
    torch.nn.init.zeros_(net.bias)
    run = ud.simulate(ud.FedAvg(lr=0.1), net, here, mode="loop", kernels=False, **TABLE_RUN)
    found = found_of(run) | {"columns": here.preprocessing.to_json()}
    frame_of(rank).to_csv(folder / f"site-{rank}.csv", index=False)
    data = {
        "path": str(folder / "site-{rank}.csv"),
        "target": "died",
        "missing": "impute",
        "here": True,
    }
    result = ud.run(
        {
            "data": data,
            "model": {"name": "logistic"},
            "methods": [{"name": "scaffold", "lr": 0.1}],
            "training": {"rounds": 2, "batch_size": 10, "work": "steps:2"},
        },
        out=folder / "experiment",
    )
    found["experiment"] = [trial.records[-1].loss for trial in result.trials]
    spoken = frame.assign(dose="many") if rank == 1 else frame
    found["refused"] = {
        "kinds": refusal(lambda: ud.Clients.here([spoken], target="died")),
        "target": refusal(lambda: ud.Clients.here([frame], target="died" if rank else "dyed")),
        "column": refusal(
            lambda: ud.Clients.here(
                [frame.drop(columns="ward") if rank == 1 else frame], target="died"
            )
        ),
    }
    return found


def refusals(rank: int) -> dict[str, str]:
    """What each rank is told of data that do not fit."""
    pair = HIDDEN.samples(0, 6)
    wide, single = (pair[0][:, :5], pair[1]), (pair[0].float(), pair[1])
    bad = (torch.full_like(pair[0], math.nan), pair[1])
    many = (pair[0], pair[1] + 4 * (rank == 1))
    calls: dict[str, Callable[[], object]] = {
        "shape": lambda: ud.Clients.here([wide if rank == 1 else pair]),
        "dtype": lambda: ud.Clients.here([single if rank == 1 else pair]),
        "bad": lambda: ud.Clients.here([bad if rank == 1 else pair]),
        "none": lambda: ud.Clients.here([] if rank == 1 else [pair]),
        "twice": lambda: ud.Clients.here([pair], numbers=[0]),
        "beyond": lambda: ud.Clients.here([pair], numbers=[rank + 5 * (rank == 1)]),
        "some numbered": lambda: ud.Clients.here([pair], numbers=[0] if rank == 0 else None),
        "away": lambda: ud.Clients.here([pair], availability=ud.Spans([(0, None)])),
        "sharpness": lambda: start(
            "fedavg",
            ud.Clients.here([pair]),
            evaluation=ud.EvaluationOptions(sharpness=True),
        ),
        "labels": lambda: start("fedavg", ud.Clients.here([many]), participation=1.0),
        "not here": lambda: (
            ud.Clients.here([pair]) if rank else start("fedavg", ud.Clients([pair] * 7))
        ),
    }
    return {name: refusal(call) for name, call in calls.items()}


if __name__ == "__main__":
    main()
