"""Seconds to a target accuracy under slow links: Marsit against PSGD, on Fashion-MNIST.

    python -m benchmarks.time_to_accuracy [--rate 100mbit] [--target 0.82]

Four workers, each a host of its own (`benchmarks/network.py`, needs root), an MLP of 1.03M
parameters, the data dealt at random, one step of batch 64 a round. Each method first looks for its
own learning rates in a small grid, by the rounds that it needs in one process: those do not depend
on the links. The best of each then runs between the hosts. Seconds are of whole rounds, with
computation and the evaluation every ten rounds, from the first round's start; joining is not
counted, as it is alike for both.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from typing import Any

import torch
from benchmarks.network import hosts, launch

import undrift as ud

WORKERS, BATCH, HIDDEN, EVERY = 4, 64, 1300, 10
GRIDS: dict[str, dict[str, list[Any]]] = {
    "psgd": {"lr": [0.1, 0.3, 1.0]},
    "marsit": {"lr": [0.1, 0.3], "server_lr": [0.001, 0.003], "period": [100]},
}


def method(name: str, settings: dict[str, Any]) -> Any:
    return {"psgd": ud.PSGD, "marsit": ud.Marsit}[name](**settings)


def train(name: str, settings: dict[str, Any], target: float, rounds: int) -> dict[str, Any]:
    """Return rounds and seconds until the target, or None if it is not reached."""
    torch.set_num_threads(1)
    data = ud.data.load("fashion-mnist", quiet=True)
    parts = ud.data.iid(data.train[1], WORKERS, seed=0)
    clients = ud.Clients.split(*data.train, parts, test=data.test)
    torch.manual_seed(0)
    model = ud.models.build("mlp", shape=(1, 28, 28), classes=10, hidden=HIDDEN)
    run = ud.simulate(
        method(name, settings),
        model,
        clients,
        loss=torch.nn.functional.cross_entropy,
        allreduce="ring",
        work=ud.Steps(1),
        batch_size=BATCH,
        rounds=rounds,
        evaluation=ud.EvaluationOptions(every=EVERY),
        seed=0,
    )
    start = time.perf_counter()
    try:
        for record in run:
            if record.accuracy is not None and record.accuracy >= target:
                return {"rounds": record.round, "seconds": time.perf_counter() - start}
    except ud.UndriftError as error:
        if "finite" not in str(error):
            raise
    return {"rounds": None, "seconds": None}


def tuned(name: str, target: float, rounds: int) -> dict[str, Any]:
    """Return the settings of the grid that need the fewest rounds."""
    best, fewest = None, rounds
    for values in itertools.product(*GRIDS[name].values()):
        settings = dict(zip(GRIDS[name], values, strict=True))
        found = train(name, settings, target, fewest)["rounds"]
        print(f"{name} {settings}: {found or f'more than {fewest}'} rounds", flush=True)
        if found and (best is None or found < fewest):
            best, fewest = settings, found
    if best is None:
        raise SystemExit(f"{name} needs to reach {target} in {rounds} rounds and did not.")
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--target", type=float, default=0.82)
    parser.add_argument("--rounds", type=int, default=1000, help="at most")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--worker", nargs=2, metavar=("METHOD", "SETTINGS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, settings = options.worker[0], json.loads(options.worker[1])
        print(json.dumps(train(name, settings, options.target, options.rounds)))
        return
    chosen = {name: tuned(name, options.target, options.rounds) for name in GRIDS}
    seconds: dict[str, list[float]] = {name: [] for name in GRIDS}
    with hosts(WORKERS, rate=options.rate) as world:
        for _ in range(options.repeat):
            for name, settings in chosen.items():
                argv = ["-m", "benchmarks.time_to_accuracy", "--target", str(options.target)]
                argv += ["--rounds", str(options.rounds), "--worker", name, json.dumps(settings)]
                before = world[0].sent_bytes()
                outputs = launch(world, argv, timeout=3600)
                sent = world[0].sent_bytes() - before
                found = json.loads(outputs[0].splitlines()[-1])
                if found["seconds"] is None:
                    raise SystemExit(f"{name} needs to reach {options.target} again and did not.")
                seconds[name].append(found["seconds"])
                print(f"{name} {settings}: {found}, {sent / 1e6:.1f} MB sent by a host", flush=True)
    ratio = statistics.median(seconds["psgd"]) / statistics.median(seconds["marsit"])
    print(f"{options.rate}, {options.target:.0%}: PSGD / Marsit = {ratio:.2f}")


if __name__ == "__main__":
    main()
