"""Are bad updates dropped, and honest ones never? The figures of docs/reliability.md.

    python -m benchmarks.bad_updates

Bad: one client in ten sends NaN, Inf, numbers of 1e30, or what it computed times 1e6, in every
round of short runs on the digits. Honest: U(100, 400) local steps and Dirichlet(0.1), where clients
differ most; how far the largest norm per local step was from the bound is printed, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import undrift as ud
from undrift.aggregation.attacks import Attack, Scaling
from undrift.aggregation.validation import FACTOR, UsualSizes
from undrift.config.experiment import Experiment
from undrift.runs.build import build_run

METHODS = ("fedavg", "scaffold", "fedspeed", "fednova", "feddyn")
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Constant(Attack):
    """Uploads the same number everywhere."""

    value: float = 0.0
    name = "constant"

    def forged(self, own: Tensor, honest: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.full_like(own, self.value)


BAD: dict[str, Attack] = {
    "NaN": Constant(0.1, float("nan")),
    "Inf": Constant(0.1, float("inf")),
    "1e30": Constant(0.1, 1e30),
    "times 1e6": Scaling(0.1, 1e6),
}


def started(method: str, seed: int, rounds: int, work: str, **options: Any) -> ud.Run:
    """Return a run of 20 clients, half of which take part in a round."""
    experiment = Experiment.of(
        {
            "methods": [{"name": method, "lr": 0.05}],
            "data": {"clients": 20, "partition": "dirichlet:0.1"},
            "training": {"rounds": rounds, "work": work, "participation": 0.5, "on_bad": "drop"},
            "evaluation": {"every": rounds},
        }
    )
    return build_run(experiment, experiment.methods[0], seed, **options)


def bad(seeds: Sequence[int] = SEEDS, rounds: int = 3) -> None:
    """Print how many bad uploads were dropped."""
    print("| bad updates | sent | dropped | honest ones dropped |\n|---|---|---|---|")
    for name, attack in BAD.items():
        sent = dropped = wrong = 0
        for method, seed in product(METHODS, seeds):
            run = started(method, seed, rounds, "steps:5", attack=attack)
            evil = set(attack.attackers(20, seed).tolist())
            for record in run:
                plan = run._planner.plan(record.round - 1)
                found = {int(i) for i in record.dropped or {}}
                sent += len(evil.intersection(plan.ids.tolist()))
                dropped += len(found & evil)
                wrong += len(found - evil)
        print(f"| {name} | {sent} | {dropped} | {wrong} |", flush=True)


def honest(seeds: Sequence[int] = SEEDS, rounds: int = 4, work: str = "uniform:100:400") -> None:
    """Print how many honest uploads were dropped, and how far the largest was from the bound."""
    print(
        "\n| honest updates | sent | dropped | largest norm per step / usual one |\n"
        "|---|---|---|---|"
    )
    for method in METHODS:
        sent = dropped = 0
        with watched() as ratios:
            for seed in seeds:
                for record in started(method, seed, rounds, work):
                    sent += 10
                    dropped += len(record.dropped or {})
        print(f"| {method} | {sent} | {dropped} | {max(ratios):.1f} of {FACTOR:g} |", flush=True)


@contextmanager
def watched() -> Iterator[list[float]]:
    """Yield a list that gets the largest norm of each round, as a multiple of the usual one."""
    ratios: list[float] = []
    judge = UsualSizes.oversized

    def watching(
        self: UsualSizes, exchange: str, norms: Any, steps: Any, scale: float
    ) -> list[int]:
        large = judge(self, exchange, norms, steps, scale)
        rates = norms / np.asarray(steps)
        ratios.append(float(np.nanmax(rates / np.array(self.largest[exchange])[:, None])))
        return large

    with patch.object(UsualSizes, "oversized", watching):
        yield ratios


if __name__ == "__main__":
    bad()
    honest()
