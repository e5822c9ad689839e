"""What resists what: every robust rule under every attack. The tables of docs/robustness.md.

    python -m benchmarks.attacks          # runs what is missing in the file of results, and prints
    python -m benchmarks.attacks --show   # prints

FedAvg on the digits: 20 clients that all take part and weigh the same, a net of two layers, 40
rounds of 5 local steps of 20 samples, lr 0.1, three seeds, iid and Dirichlet(0.3). Rules that are
told a number of attackers are told the true one. Settings were fixed before the first run.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import undrift as ud
from undrift.config.experiment import Experiment
from undrift.files import write_atomic

RESULTS = Path(__file__).resolve().parent / "results" / "attacks.json"
RULES = ("mean", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum",
         "centered-clipping")  # fmt: skip
TOLD = ("trimmed-mean", "krum", "multi-krum")
ATTACKS = tuple(ud.attacks.ATTACKS)
SHARES = (0.1, 0.2, 0.4)
PARTITIONS = ("iid", "dirichlet:0.3")
SEEDS = (0, 1, 2)
CLIENTS, ROUNDS = 20, 40
LOST = 0.05  # accuracy that a rule may lose and still resist


class Case(NamedTuple):
    partition: str
    attack: str  # "none" without
    share: float
    rule: str
    seed: int

    @property
    def key(self) -> str:
        """Return the name of the case in the file."""
        return " ".join(map(str, self))


def cases() -> Iterator[Case]:
    """Yield all cases, those without an attack first."""
    for seed, partition, rule in product(SEEDS, PARTITIONS, RULES):
        yield Case(partition, "none", 0.2, rule, seed)
    shares = sorted(SHARES, key=lambda share: abs(share - 0.2))  # The middle one comes first.
    for share, seed, partition, attack, rule in product(shares, SEEDS, PARTITIONS, ATTACKS, RULES):
        yield Case(partition, attack, share, rule, seed)


def accuracy(case: Case) -> float:
    """Run one case and return the accuracy on the test set after its last round, 0 if it failed."""
    from undrift.runs.build import build_run

    told = f":{round(case.share * CLIENTS)}" if case.rule in TOLD else ""
    training: dict[str, Any] = {
        "rounds": ROUNDS, "work": "steps:5", "participation": 1.0, "weighting": "uniform",
        "aggregation": f"{case.rule}{told}", "on_bad": "drop",
    }  # fmt: skip
    if case.attack != "none":
        training["attack"] = f"{case.attack}:{case.share}"
    experiment = Experiment.of(
        {
            "methods": [{"name": "fedavg", "lr": 0.1}],
            "data": {"clients": CLIENTS, "partition": case.partition},
            "training": training,
            "evaluation": {"every": ROUNDS},
        }
    )
    try:
        *_, last = build_run(experiment, experiment.methods[0], case.seed)
    except ud.DivergenceError:
        return 0.0
    return float(last.accuracy or 0.0)


def run(results: dict[str, float]) -> None:
    """Run what is missing; the file is written after every case."""
    for case in cases():
        if case.key not in results:
            results[case.key] = accuracy(case)
            write_atomic(RESULTS, json.dumps(results, indent=1) + "\n")


def mean(results: dict[str, float], *case: Any) -> float | None:
    """Return the mean accuracy over the seeds, None if one is missing."""
    found = [results.get(Case(*case, seed).key) for seed in SEEDS]
    return None if None in found else statistics.fmean(filter(lambda x: x is not None, found))


def tables(results: dict[str, float]) -> str:
    """Return a table for each partition; what resists is set in bold."""
    parts = []
    for partition in PARTITIONS:
        lines = [f"| {partition} | share | {' | '.join(RULES)} |", "|---" * (2 + len(RULES)) + "|"]
        whole = mean(results, partition, "none", 0.2, "mean") or 1.0
        rows = [("none", 0.2), *product(ATTACKS, SHARES)]
        for attack, share in rows:
            cells = []
            for rule in RULES:
                value = mean(results, partition, attack, share, rule)
                if value is None:
                    cells.append("-")
                else:
                    text = f"{100 * value:.1f}"
                    cells.append(f"**{text}**" if value >= whole - LOST else text)
            told = "-" if attack == "none" else f"{share:.0%}"
            lines.append(f"| {attack} | {told} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def counts(results: dict[str, float]) -> str:
    """Return how many of the attacks each rule resists, over partitions and shares."""
    lines = ["| rule | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |", "|---" * 4 + "|"]
    for rule in RULES:
        cells = []
        for share in SHARES:
            borne = 0
            for partition, attack in product(PARTITIONS, ATTACKS):
                whole = mean(results, partition, "none", 0.2, "mean") or 1.0
                value = mean(results, partition, attack, share, rule)
                borne += value is not None and value >= whole - LOST
            cells.append(f"{borne} of {len(PARTITIONS) * len(ATTACKS)}")
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    if not options.show:
        run(results)
    print(counts(results), tables(results), sep="\n\n")


if __name__ == "__main__":
    main()
