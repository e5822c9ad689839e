"""Does FedSpeed's perturbation pay where clients over-fit? Figures of docs/perturbation.md.

    python -m benchmarks.overfitting tune     # lr and rho of each method, on validation samples
    python -m benchmarks.overfitting final    # fresh seeds at what was chosen
    python -m benchmarks.overfitting interval # the same with T x E = 1500 and other E
    python -m benchmarks.overfitting show     # tables from the file of results

1,000 samples of Fashion-MNIST at 50 clients of 20, Dirichlet(0.6), 5 clients a round, 5 epochs of
batch 10, 300 rounds, weight decay 0.001, lr falling by 0.9996 an epoch, no augmentation; a net of
100,026 parameters, which fits all samples. 5,000 other training samples validate, the test set
tests. Every method has nine trials; where the largest lr or rho is chosen, the next one is tried,
too. What is finished is kept in the file, so that a call goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from undrift.files import write_atomic

SAMPLES, VALIDATION, CLIENTS, EPOCHS, ROUNDS = 1000, 5000, 50, 5, 300
INTERVALS = 1, 20  # epochs a round besides 5, with as many rounds as make T x E = 1500
LRS, RHOS = (0.03, 0.1, 0.3), (0.03, 0.1, 0.3)  # of methods that perturb; then at most twice
WIDER = (1.0, 3.0)  # values of either, should its largest be chosen
FINE_LRS = 0.03, 0.05, 0.07, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3  # as many trials for the others
METHODS = "FedAvg", "FedSAM", "FedSpeed without perturbation", "FedSpeed"
PAIRS = ("FedSAM", "FedAvg"), ("FedSpeed", "FedSpeed without perturbation")
TUNING_SEED = 100
RESULTS = Path(__file__).resolve().parent / "results" / "overfitting.json"
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}  # n seeds


def net(seed: int) -> nn.Module:
    """Return a convolutional net of 100,026 parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 240), nn.ReLU(), nn.Linear(240, 10)),
    )


def clients(seed: int, *, tests: bool) -> ud.Clients:
    """Return the clients of a seed, tested on test samples or on validation samples."""
    dataset = ud.data.load("fashion-mnist")
    order = torch.randperm(60_000, generator=torch.Generator().manual_seed(seed))
    inputs, targets = _some(dataset, order[:SAMPLES])
    parts = ud.data.dirichlet(targets, CLIENTS, alpha=0.6, seed=seed)
    held = _some(dataset, order[SAMPLES : SAMPLES + VALIDATION])
    test = _some(dataset, None) if tests else held
    return ud.Clients.split(inputs, targets, parts, test=test)


def _some(dataset: Any, index: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return training samples as the net sees them, or without an index the test samples."""
    stored, targets = dataset.stored_test if index is None else dataset.stored_train
    chosen = slice(None) if index is None else index
    return dataset.prepare.plain()(stored[chosen], torch.float32), targets[chosen].long()


def algorithm(method: str, lr: float, rho: float, epochs: int) -> Any:
    """Return a method at these settings."""
    falling = ud.exponential(lr, 0.9996**epochs)
    if method == "FedAvg":
        return ud.FedAvg(lr=falling)
    if method == "FedSAM":
        return ud.FedSAM(lr=falling, rho=rho)
    return ud.FedSpeed(lr=falling, rho=rho, perturbation=method == "FedSpeed")


def perturbs(method: str) -> bool:
    return method in ("FedSAM", "FedSpeed")


class Results:
    """Holds the finished runs of a file by their settings."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runs: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def run(self, method: str, lr: float, rho: float, seed: int, epochs: int = EPOCHS) -> Any:
        """Return the run with these settings, and run it if it is not finished."""
        rho = rho if perturbs(method) else 0.0
        key = f"{method}, lr {lr:g}, rho {rho:g}, E {epochs}, seed {seed}"
        if key not in self._runs:
            self._runs[key] = simulate(method, lr, rho, seed, epochs)
            write_atomic(self._path, (json.dumps(self._runs, indent=1) + "\n").encode())
            print(key, self._runs[key], flush=True)
        return self._runs[key]

    def found(self, method: str, epochs: int) -> list[Any]:
        """Return the final runs of a method that are finished, by seed."""
        if not self._tried(method):
            return []
        lr, rho = self.chosen(method)
        key = f"{method}, lr {lr:g}, rho {rho:g}, E {epochs}, seed "
        seeds = sorted(int(k.removeprefix(key)) for k in self._runs if k.startswith(key))
        return [self._runs[f"{key}{seed}"] for seed in seeds if seed != TUNING_SEED]

    def chosen(self, method: str) -> tuple[float, float]:
        """Return the lr and rho with the highest accuracy on validation samples."""
        tried = self._tried(method)
        return max(tried, key=lambda cell: tried[cell])

    def _tried(self, method: str) -> dict[tuple[float, float], float]:
        """Return the accuracies of the cells that are finished."""
        cells = [*grid(method), *((lr, rho) for lr in (*LRS, *WIDER) for rho in (*RHOS, *WIDER))]
        keys = {
            (lr, rho): f"{method}, lr {lr:g}, rho {rho:g}, E {EPOCHS}, seed {TUNING_SEED}"
            for lr, rho in cells
        }
        return {
            cell: self._runs[key]["accuracy"] for cell, key in keys.items() if key in self._runs
        }


def grid(method: str) -> list[tuple[float, float]]:
    """Return the nine cells of a method: values of lr and rho, or of lr alone."""
    if perturbs(method):
        return [(lr, rho) for lr in LRS for rho in RHOS]
    return [(lr, 0.0) for lr in FINE_LRS]


def wider(method: str, chosen: tuple[float, float]) -> list[tuple[float, float]]:
    """Return the cells beyond a choice at the upper edge of what was tried."""
    lr, rho = chosen
    if not perturbs(method):
        return []
    steps = (*LRS, *WIDER)
    cells = [(steps[steps.index(lr) + 1], rho)] if lr in (LRS[-1], WIDER[0]) else []
    return cells + ([(lr, steps[steps.index(rho) + 1])] if rho in (RHOS[-1], WIDER[0]) else [])


def simulate(method: str, lr: float, rho: float, seed: int, epochs: int) -> dict[str, Any]:
    """Return test accuracy, test loss and training loss, means of the last three evaluations.

    A run that diverges has an accuracy of 0.
    """
    rounds = ROUNDS * EPOCHS // epochs
    run = ud.simulate(
        algorithm(method, lr, rho, epochs),
        net(seed),
        clients(seed, tests=seed != TUNING_SEED),
        loss=F.cross_entropy,
        work=ud.Epochs(epochs),
        batch_size=10,
        rounds=rounds,
        participation=0.1,
        weight_decay=1e-3,
        seed=seed,
        kernels="always",
        evaluation=ud.EvaluationOptions(every=rounds // 10, train_loss=True),
    )
    try:
        tests = [record for record in run if record.loss is not None]
    except ud.DivergenceError as error:
        return {"accuracy": 0.0, "diverged": error.round}
    fields = "accuracy", "loss", "train_loss"
    ends = {name: statistics.mean(getattr(r, name) for r in tests[-3:]) for name in fields}
    return ends | {"lowest loss": min(r.loss or math.inf for r in tests), "stalled": run.stalled}


def spread(values: list[float]) -> str:
    """Return a mean with its 95 % interval by Student's t."""
    if len(values) not in T_95:
        return f"{statistics.mean(values):.2f}"
    half = T_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.2f} ± {half:.2f}"


def show(results: Results) -> None:
    """Print what was chosen, and final runs with differences that are paired by seed."""
    print("| method | E | lr | rho | accuracy % | test loss | training loss | lowest test loss |")
    print("|---|---|---|---|---|---|---|---|")
    for epochs in (EPOCHS, *INTERVALS):
        for method in METHODS:
            runs = results.found(method, epochs)
            if runs:
                lr, rho = results.chosen(method)
                cells = [spread([100 * run["accuracy"] for run in runs])]
                fields = "loss", "train_loss", "lowest loss"
                cells += [f"{statistics.mean(run[name] for run in runs):.3f}" for name in fields]
                row = [method, str(epochs), f"{lr:g}", f"{rho:g}", *cells]
                print("| " + " | ".join(row) + " |")
        for one, other in PAIRS:
            runs = zip(results.found(one, epochs), results.found(other, epochs), strict=False)
            pairs = list(runs)
            if pairs:
                points = spread([100 * (a["accuracy"] - b["accuracy"]) for a, b in pairs])
                losses = spread([a["loss"] - b["loss"] for a, b in pairs])
                seeds = f"{len(pairs)} seeds"
                print(f"E {epochs}: {one} less {other}: {points} points, loss {losses}, {seeds}")


def main() -> None:
    """Run one part of the experiment, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("tune", "final", "interval", "show"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    results = Results(chosen.out)
    if chosen.part == "show":
        show(results)
        return
    for seed in [TUNING_SEED] if chosen.part == "tune" else range(chosen.seeds):
        for method in chosen.methods:
            if chosen.part == "tune":
                for lr, rho in grid(method):
                    results.run(method, lr, rho, seed)
                for _ in WIDER:
                    for lr, rho in wider(method, results.chosen(method)):
                        results.run(method, lr, rho, seed)
            else:
                for epochs in (EPOCHS,) if chosen.part == "final" else INTERVALS:
                    results.run(method, *results.chosen(method), seed, epochs)


if __name__ == "__main__":
    main()
