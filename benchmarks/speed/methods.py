"""Round time of every method, relative to FedAvg's with a server and to DSGD's among peers.

    python -m benchmarks.speed.methods [--workloads W1 W2] [--methods Scaffold FedSpeed]

All in one process: a run of each method at the engine's defaults, rounds taking turns; a ratio is
the median over turns. Some methods at a time, each time with what they are compared with, so that
their states fit into memory. Other hyper-parameters than lr keep their defaults, as they do not
change the cost.

Peers are as many as a cohort has clients and take the same local steps; DSGD gossips at each step,
others once a round. Links are Erdos-Renyi graphs of p = 0.5, all-reduces go around a ring.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.speed import results, show, workloads
from benchmarks.speed.contestants.undrift import clients_of, simulation
from benchmarks.speed.roster import FEDERATED
from benchmarks.speed.table import replaced
from benchmarks.speed.usage import Reading, Span
from benchmarks.speed.workloads import WORK, WORKLOADS
from rich.console import Console
from rich.table import Table

import undrift as ud
from undrift.errors import DivergenceError

METHODS = {kind.__name__: kind for kind in ud.ALGORITHMS}
LR = 1e-3  # small enough for all of them to stay finite, but
SMALLER = {"CascadingSSDM": 1e-30}  # whose every hop multiplies what it carries
BEGIN, END = "<!-- methods:begin -->", "<!-- methods:end -->"
COHORTS = 2  # how many cohorts the clients are, whose states are all kept

Play = Callable[[], object]


def measure(plays: Mapping[str, Play], rounds: int, warm_up: int) -> dict[str, list[float]]:
    """Return seconds of each round after warm-up, in alternating order, without diverging runs."""
    taken: dict[str, list[float]] = {name: [] for name in plays}
    for turn in range(warm_up + rounds):
        for name in list(taken)[:: 1 if turn % 2 == 0 else -1]:
            start = time.perf_counter()
            try:
                plays[name]()
            except DivergenceError:
                del taken[name]
                continue
            if turn >= warm_up:
                taken[name].append(time.perf_counter() - start)
    return taken


def base(method: str) -> str:
    """Return the method to compare with: the plainest of its family."""
    return "FedAvg" if issubclass(METHODS[method], ud.Federated) else "DSGD"


def groups(methods: Sequence[str], together: int) -> list[list[str]]:
    """Return groups of methods that share a base; a base stands alone only if it was asked for."""
    found = []
    for of in dict.fromkeys(map(base, methods)):
        others = [method for method in methods if base(method) == of and method != of] or [of]
        found += [others[start : start + together] for start in range(0, len(others), together)]
    return found


def compared(name: str, methods: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds of methods and of their base in the same turns, and the ratio."""
    workload = WORKLOADS[name]
    workload = replace(workload, cohort=options.cohort or workload.cohort)
    path, _ = workloads.write(name, WORK)
    reference = base(methods[0])
    some = workload.cohort * (1 if issubclass(METHODS[reference], ud.Peer) else COHORTS)
    clients = clients_of(str(path), some if workload.cohort < 100 else None)
    switches = {"execution": ud.ExecutionOptions(compile=options.compile)}
    runs: dict[str, ud.Run] = {}
    found: dict[str, Any] = {}
    for method in dict.fromkeys((reference, *methods)):
        algorithm = METHODS[method](lr=SMALLER.get(method, LR))
        try:
            runs[method] = simulation(workload, clients, algorithm, **switches)
        except ValueError as error:  # such as a net that it does not fit
            found[method] = {"left_out": str(error)}
    before = Reading.now([])
    taken = measure({m: run.__next__ for m, run in runs.items()}, options.rounds, options.warm_up)
    span = Span.alone(before, Reading.now([]))
    for method in runs:
        found[method] = {"left_out": "It diverged."}
        if method in taken and reference in taken:
            found[method] = {
                "seconds": taken[method],
                "base": reference,
                "base_seconds": taken[reference],
                "ratio": results.paired(taken[method], taken[reference]),
                "disturbed": span.disturbed,
            }
    return {method: found[method] for method in methods}


def table(name: str, found: Mapping[str, Any]) -> Table:
    title = f"{name}, {WORKLOADS[name].title}: seconds a round, and ratio to the plainest method's"
    shown = Table(title=title)
    shown.add_column("")
    for column in ("seconds", "relative to", "ratio", "lowest", "highest", ""):
        shown.add_column(column, justify="right")
    for method, one in found.items():
        if "left_out" in one:
            continue
        pairs = zip(one["seconds"], one["base_seconds"], strict=True)
        ratios = [theirs / ours for theirs, ours in pairs]
        seconds = show.number(statistics.median(one["seconds"]))
        figures = map(show.number, (one["ratio"], min(ratios), max(ratios)))
        shown.add_row(method, seconds, one["base"], *figures, show.state(one["disturbed"]))
    return shown


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    console = Console(width=None if sys.stdout.isatty() else show.WIDTH)
    date = results.now()
    made: dict[str, Any] = {
        "date": date,
        "machine": results.machine(),
        "versions": results.versions([]),
        "rounds": options.rounds,
        "warm_up": options.warm_up,
        "compile": options.compile,
        "cohort": options.cohort,
        "workloads": {},
    }
    place = options.out or results.place(date, kind="methods")
    place.parent.mkdir(parents=True, exist_ok=True)
    for name in options.workloads:
        found: dict[str, Any] = made["workloads"].setdefault(name, {})
        for group in groups(options.methods, options.together):
            console.print(f"{name}: {', '.join(group)}", highlight=False)
            found |= compared(name, group, options)
            place.write_text(json.dumps(made, indent=1) + "\n")
        console.print(table(name, found))
        for method, one in found.items():
            if "left_out" in one:
                said = f"{method} is left out: {one['left_out']}"
                console.print(said, highlight=False, soft_wrap=True)
    console.print(f"Results are in {place}", highlight=False, soft_wrap=True)
    if options.write is not None:
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(replaced(page, markdown(made), BEGIN, END), encoding="utf-8")
    return 0


def markdown(made: Mapping[str, Any]) -> str:
    """Return a table for each base: a row for each method, a column for each workload."""
    held = made["workloads"]
    names = list(dict.fromkeys(method for found in held.values() for method in found))
    lines = []
    for of in dict.fromkeys(map(base, names)):
        lines += [f"| relative to {of} | {' | '.join(held)} |", "|---" * (1 + len(held)) + "|"]
        for method in names:
            if base(method) == of:
                cells = [_cell(found.get(method, {})) for found in held.values()]
                lines.append(f"| {method} | {' | '.join(cells)} |")
        lines.append("")
    about = made["machine"]
    where = f"{about['cpu']}, {about['cores']} cores, torch {made['versions']['undrift']['torch']}"
    cohort = f" {made['cohort']} clients a round." if made["cohort"] else ""
    said = f"medians of {made['rounds']} rounds after {made['warm_up']} to warm up."
    return "\n".join([*lines, f"{made['date'][:10]}, {where}; {said}{cohort}"])


def _cell(one: Mapping[str, Any]) -> str:
    if one.get("ratio") is None:
        return "-"
    return f"{one['ratio']:.2f}" + (" \\*" if one["disturbed"] else "")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.methods", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--workloads", nargs="+", default=["W1", "W2"], choices=FEDERATED)
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=METHODS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, help="measured turns (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=2, help="turns before (%(default)s)")
    parser.add_argument("--together", type=int, default=5, help="methods at a time (%(default)s)")
    parser.add_argument("--cohort", type=int, help="clients a round, where all would take too long")
    parser.add_argument("--compile", action="store_true", help="with compile=True")
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results/methods-<date>")
    parser.add_argument("--write", type=Path, help="a page with the two markers to put it between")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.together) < 1 or options.warm_up < 0:
        parser.error("--rounds and --together need to be at least 1, --warm-up at least 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
