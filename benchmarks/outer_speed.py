"""What `Outer` costs: a local step beside plain torch, and a meeting over a slow link.

    python -m benchmarks.outer_speed step [--turns 7]
    python -m benchmarks.outer_speed meeting [--link 100mbit] [--coordinates 25000000]

`step`: the GPT of `examples/outer_gpt.py` with about 10M parameters, batches of 16 windows; a
plain loop and `Outer` take turns with the same batches; the medians of their CPU seconds are
compared. `meeting`: four hosts (`benchmarks/network.py`, needs root) take one step of Marsit on a
ring, and of PSGD and FedAvg, whose sums in full precision the backend's own all-reduce makes;
seconds from the end of the last rank's local step to the last rank's new model, medians and
ranges of --repeat meetings after the first few, in which the process still takes new memory.
`--huge-pages` has torch ask for huge pages (THP_MEM_ALLOC_ENABLE=1), for all methods alike: a new
vector of 100 MB then costs 50 page faults instead of 25,000.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from benchmarks.network import hosts, launch
from examples.outer_gpt import GPT, WINDOW
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import undrift as ud

WIDTH, DEPTH, LETTERS, BATCH = 320, 8, 65, 16
VARIANTS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "torch AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=1e-3),
    "Outer, inner AdamW": lambda net: ud.Outer(
        net, ud.DiLoCo(lr=1.0), 1000, inner=torch.optim.AdamW(net.parameters(), lr=1e-3)
    ),
    "Outer, rule AdamW": lambda net: ud.Outer(net, ud.DiLoCo(lr=1e-3), 1000),
    "torch SGD": lambda net: torch.optim.SGD(net.parameters(), lr=1e-2),
    "Outer, FedAvg": lambda net: ud.Outer(net, ud.FedAvg(lr=1e-2), 1000),
}
WARM_UP = 4  # meetings that are not counted
METHODS = {"marsit": ud.Marsit(lr=0.1), "psgd": ud.PSGD(lr=0.1), "fedavg": ud.FedAvg(lr=0.1)}


def measure_steps(turns: int) -> None:
    torch.set_num_threads(1)
    optimisers, closures = {}, {}
    codes = torch.randint(LETTERS, (BATCH, WINDOW + 1), generator=torch.Generator().manual_seed(0))
    for name, make in VARIANTS.items():
        torch.manual_seed(0)
        net = GPT(LETTERS, WIDTH, DEPTH)
        optimisers[name] = optimiser = make(net)

        def closure(net: nn.Module = net, optimiser: torch.optim.Optimizer = optimiser) -> Tensor:
            optimiser.zero_grad()
            loss = cross_entropy(net(codes[:, :-1]).flatten(0, 1), codes[:, 1:].flatten())
            loss.backward()
            return loss

        closures[name] = closure
    size = sum(p.numel() for p in net.parameters())
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for turn in range(-1, turns):  # the first is to warm up
        for name, optimiser in optimisers.items():
            began = time.process_time()
            optimiser.step(closures[name])
            if turn >= 0:
                seconds[name].append(time.process_time() - began)
    print(f"{size:,} parameters, batch {BATCH}, load average {os.getloadavg()[0]:.1f}")
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, median in medians.items():
        base = medians["torch SGD" if name in ("torch SGD", "Outer, FedAvg") else "torch AdamW"]
        print(f"{name:>20} {median:8.3f} s {100 * (median / base - 1):+6.2f} %")


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
        samples = samples[WARM_UP:]
        times = [statistics.median(samples), min(samples), max(samples)]
        found[name] = [*times, outer.bytes_sent / outer.t]
        del outer, net
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def measure_meetings(link: str, coordinates: int, repeat: int, huge_pages: bool) -> None:
    argv = ["-m", "benchmarks.outer_speed", "worker", "--coordinates", str(coordinates)]
    with hosts(4, rate=link) as four:
        env = {"THP_MEM_ALLOC_ENABLE": str(int(huge_pages))}
        out = launch(four, [*argv, "--repeat", str(repeat)], timeout=1800, env=env)[0]
    found = json.loads(out.splitlines()[-1])
    print(f"{coordinates:,} coordinates, 4 ranks, {link}, load average {os.getloadavg()[0]:.1f}")
    for name, (seconds, least, most, sent) in found.items():
        span = f"{seconds:8.2f} s ({least:.2f} to {most:.2f})"
        ratio = seconds / found["marsit"][0]
        print(f"{name:>8} {span} {sent / 1e6:8.2f} MB a rank, {ratio:5.1f} x marsit")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["step", "meeting", "worker"])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--coordinates", type=int, default=25_000_000)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--huge-pages", action="store_true", help="THP_MEM_ALLOC_ENABLE of torch")
    options = parser.parse_args()
    if options.what == "step":
        measure_steps(options.turns)
    elif options.what == "meeting":
        measure_meetings(options.link, options.coordinates, options.repeat, options.huge_pages)
    else:
        worker(options.coordinates, options.repeat)


if __name__ == "__main__":
    main()
