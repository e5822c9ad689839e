"""What `Outer` costs: a local step beside plain torch, and a meeting over a slow link.

    python -m benchmarks.outer_speed step [--turns 15]
    python -m benchmarks.outer_speed meeting [--link 100mbit] [--repeat 9] [--huge-pages]
    python -m benchmarks.outer_speed report

`step`: the GPT of `examples/outer_gpt.py` with about 10M parameters, batches of 16 windows; plain
loops and `Outer` take turns with the same batch, and their CPU seconds are compared by the median
of the ratios within a turn. FedSpeed, which asks for two gradients a step, is compared with a loop
that computes two. `meeting`: four hosts (`benchmarks/network.py`, needs root) take one step of
Marsit on a ring, and of PSGD and FedAvg, whose sums in full precision the backend's own all-reduce
makes; seconds from the end of the last rank's local step to the last rank's new model, medians and
ranges of --repeat meetings after the first few, in which the process still takes new memory.
`--huge-pages` has torch ask for huge pages (THP_MEM_ALLOC_ENABLE=1), for all methods alike: a new
vector of 100 MB then costs 50 page faults instead of 25,000.

What is measured is kept in --json with the date, the machine and the load; `report` prints the
tables of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.network import hosts, launch
from benchmarks.speed.results import machine, now, paired
from examples.outer_gpt import GPT, WINDOW
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import undrift as ud

WIDTH, DEPTH, LETTERS, BATCH = 320, 8, 65, 16
Make = Callable[[nn.Module], torch.optim.Optimizer]
ADAMW, SGD, TWICE = "torch's AdamW", "torch's SGD", "torch's SGD, two gradients a step"


def plain_sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=1e-2)


def by(method: Any) -> Make:
    return lambda net: ud.Outer(net, method, 1000)


def with_inner_adamw(net: nn.Module) -> torch.optim.Optimizer:
    return ud.Outer(
        net, ud.DiLoCo(lr=1.0), 1000, inner=torch.optim.AdamW(net.parameters(), lr=1e-3)
    )


# What takes the steps, and the plain loop that it is compared with.
VARIANTS: dict[str, tuple[Make, str]] = {
    ADAMW: (lambda net: torch.optim.AdamW(net.parameters(), lr=1e-3), ""),
    "`inner=` torch's AdamW, DiLoCo": (with_inner_adamw, ADAMW),
    "`rule=ud.AdamW()`, DiLoCo": (by(ud.DiLoCo(lr=1e-3)), ADAMW),
    SGD: (plain_sgd, ""),
    "FedAvg": (by(ud.FedAvg(lr=1e-2)), SGD),
    "SCAFFOLD": (by(ud.Scaffold(lr=1e-2)), SGD),
    "Marsit": (by(ud.Marsit(lr=1e-2)), SGD),
    TWICE: (plain_sgd, ""),
    "FedSpeed": (by(ud.FedSpeed(lr=1e-2)), TWICE),
}
RESULTS = Path(__file__).parent / "results" / "outer_speed.json"
WARM_UP = 4  # meetings that are not counted
TITLES = {
    "marsit": "Marsit, ring of one bit",
    "fedavg": "FedAvg, the backend's all-reduce",
    "psgd": "PSGD, the backend's all-reduce",
}
METHODS = {"marsit": ud.Marsit(lr=0.1), "psgd": ud.PSGD(lr=0.1), "fedavg": ud.FedAvg(lr=0.1)}


def measure_steps(turns: int) -> dict[str, Any]:
    """Return the CPU seconds of each variant's steps."""
    torch.set_num_threads(1)
    optimisers, closures = {}, {}
    codes = torch.randint(LETTERS, (BATCH, WINDOW + 1), generator=torch.Generator().manual_seed(0))
    for name, (make, _) in VARIANTS.items():
        torch.manual_seed(0)
        net = GPT(LETTERS, WIDTH, DEPTH)
        optimisers[name] = optimiser = make(net)

        def closure(
            net: nn.Module = net,
            optimiser: torch.optim.Optimizer = optimiser,
            gradients: int = 1 + (name == TWICE),
        ) -> Tensor:
            for _ in range(gradients):
                optimiser.zero_grad()
                loss = cross_entropy(net(codes[:, :-1]).flatten(0, 1), codes[:, 1:].flatten())
                loss.backward()
            return loss

        closures[name] = closure
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for turn in range(-1, turns):  # the first is to warm up
        for name, optimiser in optimisers.items():
            began = time.process_time()
            optimiser.step(closures[name])
            if turn >= 0:
                seconds[name].append(time.process_time() - began)
    parameters = sum(p.numel() for p in net.parameters())
    return {"parameters": parameters, "batch": BATCH, "seconds": seconds}


def worker(coordinates: int, repeat: int) -> None:
    """Print the seconds of each method's meetings."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name, method in METHODS.items():
        net = nn.Linear(coordinates // 1000, 1000, bias=False)
        outer, samples = ud.Outer(net, method, every=1), []
        for _ in range(WARM_UP + repeat):
            net.weight.grad = torch.randn_like(net.weight)
            dist.barrier()
            outer.step()
            ended = time.perf_counter()  # one clock for all processes of a machine
            came = ended - outer.metrics["meeting_seconds"]
            last = torch.tensor([came, ended], dtype=torch.float64)
            dist.all_reduce(last, dist.ReduceOp.MAX)
            samples.append(float(last[1] - last[0]))
        found[name] = {"seconds": samples[WARM_UP:], "bytes": outer.bytes_sent / outer.t}
        del outer, net
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def measure_meetings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of each method's meetings, and the bytes that a rank sends."""
    argv = ["-m", "benchmarks.outer_speed", "worker", "--coordinates", str(options.coordinates)]
    argv += ["--repeat", str(options.repeat)]
    env = {"THP_MEM_ALLOC_ENABLE": str(int(options.huge_pages))}
    with hosts(4, rate=options.link) as four:
        out = launch(four, argv, timeout=1800, env=env)[0]
    found = json.loads(out.splitlines()[-1])
    setting = {name: getattr(options, name) for name in ("link", "coordinates", "huge_pages")}
    return {**setting, "ranks": 4, "methods": found}


def keep(path: Path, what: str, measure: Callable[[], dict[str, Any]]) -> None:
    """Measure, and write what was found with its circumstances into the file."""
    before = os.getloadavg()[0]
    found = measure()
    circumstances = {"date": now(), "machine": machine(), "load": [before, os.getloadavg()[0]]}
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(kept | {what: circumstances | found}, indent=1) + "\n")


def spread(seconds: Sequence[float], digits: int) -> str:
    """Return the median and the range."""
    median, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return f"{median:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def report_steps(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of the first table in docs/outer.md."""
    lines = ["| | CPU seconds | over plain torch |", "|---|---|---|"]
    for name, seconds in found["seconds"].items():
        base = VARIANTS[name][1]
        ratio = paired(seconds, found["seconds"][base]) if base else None
        over = "" if ratio is None else f"{100 * (ratio - 1):+.1f} %"
        lines.append(f"| {name} | {spread(seconds, 3)} | {over} |")
    return lines


def report_meetings(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of the second table in docs/outer.md."""
    lines = ["| | seconds | megabytes a rank | beside Marsit |", "|---|---|---|---|"]
    ours = statistics.median(found["methods"]["marsit"]["seconds"])
    for name, title in TITLES.items():
        seconds, sent = (found["methods"][name][key] for key in ("seconds", "bytes"))
        ratio = "" if name == "marsit" else f"{statistics.median(seconds) / ours:.1f} x"
        lines.append(f"| {title} | {spread(seconds, 2)} | {sent / 1e6:.3g} | {ratio} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["step", "meeting", "report", "worker"])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--coordinates", type=int, default=25_000_000)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--huge-pages", action="store_true", help="THP_MEM_ALLOC_ENABLE of torch")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.what == "worker":
        worker(options.coordinates, options.repeat)
        return
    if options.what == "step":
        keep(options.json, "step", lambda: measure_steps(options.turns))
    elif options.what == "meeting":
        keep(options.json, "meeting", lambda: measure_meetings(options))
    kept = json.loads(options.json.read_text())
    for what, lines in (("step", report_steps), ("meeting", report_meetings)):
        if what in kept:
            date, (before, after) = kept[what]["date"], kept[what]["load"]
            print(f"{what}: {date}, load average {before:.1f} to {after:.1f}")
            print("\n".join(lines(kept[what])))


if __name__ == "__main__":
    main()
