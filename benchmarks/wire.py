"""Seconds of one synchronisation between processes, and what a round of training is made of.

    python -m benchmarks.wire [--coordinates 25000000] [--links loopback 10gbit 1gbit 100mbit]

Workers are processes with one thread each; on loopback they are as they come, at the other links
each is a host of its own (`benchmarks/network.py`, needs root), limited both ways. On each link all
variants take turns and the figures are medians; compare within a link only, as the machine's load
may change between links. A synchronisation lasts from a barrier until the slowest worker has the
result as float32:

backend   torch.distributed's all_reduce (gloo) of float32
mean      our ring or torus with float32
sign-vote our ring or torus of signSGD: sums of signs, which take more bits from hop to hop
one-bit   our ring or torus of Marsit

A round is computation (a forward and backward pass of the thesis's AlexNet of 23M parameters, all
workers at once on the cores that there are, no communication), compression and communication.
Compression is time inside the merge's packing, drawing, merging and unpacking, mean over workers,
where it held the worker up: work done while messages were under way is compression if they had come
by its end, and is hidden behind the communication if the worker then still had to wait. Adding up
float32 is no compression. Communication is the rest of the synchronisation: waiting, the system's
work for the messages, and what every merge has alike (the check for finite values, the result's
memory).

`--figure 3.1a` and `--figure 3.5` measure those figures of the thesis instead, with more methods
and a parameter server (`benchmarks/wire_figures.py`), and write them to --out.

Writes everything to --json, whole rounds without the backend to --rounds (for `scale.py
--measured`), and the picture of the rounds to --plot.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.network import bits_per_second, hosts, launch, this_machine
from torch import Tensor, nn

from undrift import keyed, models
from undrift.comm.merges import Mean, OneBit, SignSum
from undrift.comm.routes import Ring, Route, Torus
from undrift.core import Merge
from undrift.engine.collectives.allreduce import all_reduce
from undrift.engine.processes.transport import (
    Incoming,
    Outgoing,
    PendingMessages,
    Received,
    Transport,
)
from undrift.topology import near_square

MERGES: dict[str, Merge] = {"mean": Mean(), "sign-vote": SignSum(vote=True), "one-bit": OneBit()}
METHODS = {"mean": "PSGD", "sign-vote": "signSGD", "one-bit": "Marsit"}
TIMED = ("start", "send", "receive", "prepare", "merge", "encode_result", "decode_result")
BATCH = 32
Row = dict[str, Any]


class Clock:
    """Sums the seconds of the merge's calls, by whether a message was under way."""

    def __init__(self) -> None:
        self.critical = self.hidden = self.meanwhile = 0.0
        self.under_way = False

    def worked(self, seconds: float) -> None:
        if self.under_way:
            self.meanwhile += seconds
        else:
            self.critical += seconds

    def arrived(self, waited: float) -> None:
        if waited > self.meanwhile / 10:
            self.hidden += self.meanwhile
        else:
            self.critical += self.meanwhile
        self.meanwhile, self.under_way = 0.0, False


class TimedMerge:
    """A merge whose calls are timed."""

    def __init__(self, how: Merge, clock: Clock) -> None:
        self._how, self._clock = how, clock

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._how, name)
        return self._timed(attribute) if name in TIMED else attribute

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments, **options)
            self._clock.worked(time.perf_counter() - start)
            return result

        return timed


class TimedTransport(Transport):
    """A transport that tells the clock when messages are under way."""

    clock: Clock

    def exchange(
        self, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming], flag: int = 0
    ) -> PendingMessages:
        pending = super().exchange(outgoing, incoming, flag)
        self.clock.under_way = True
        wait = pending.wait

        def timed_wait() -> list[Received]:
            start = time.perf_counter()
            received = wait()
            self.clock.arrived(time.perf_counter() - start)
            return received

        pending.wait = timed_wait  # type: ignore[method-assign]
        return pending


@dataclass(frozen=True)
class Variant:
    route: str
    merge: str

    def reduce(self, transport: TimedTransport, v: Tensor, number: int) -> Tensor:
        if self.route == "backend":  # in place: `v` is a copy that was made before the clock ran
            dist.all_reduce(v)
            return v.div_(transport.size)

        def draws(purpose: str, *place: int) -> np.random.Generator:
            return keyed.generator(number, purpose, *place)

        how: Any = MERGES[self.merge]
        if how.lossy:
            how = TimedMerge(how, transport.clock)
        route = self._route(transport.size)
        return all_reduce(transport, {transport.rank: [v]}, how, route, [draws]).vectors[0]

    def _route(self, workers: int) -> Route:
        return Torus(*near_square(workers)) if self.route == "torus" else Ring()


def variants(workers: int) -> list[Variant]:
    square = min(near_square(workers)) > 1
    routes = ["ring", "torus"] if square else ["ring"]
    return [
        Variant("backend", "mean"),
        *(Variant(route, merge) for route in routes for merge in MERGES),
    ]


def worker(coordinates: int, repeat: int) -> None:
    """Run one rank; rank 0 prints the medians."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    transport = TimedTransport()
    v = torch.randn(coordinates, generator=torch.Generator().manual_seed(transport.rank))
    scratch, step = torch.empty_like(v), training_step()
    samples: dict[Variant, list[list[float]]] = {}
    computed, sent = [], {}
    check(transport, v[: 8 * 10_000])
    for number in range(-1, repeat):  # the first is to warm up
        for variant in variants(transport.size):
            transport.clock, before = Clock(), transport.sent
            scratch.copy_(v)
            seconds = timed(variant.reduce, transport, scratch, number + 1)
            sent[variant] = transport.sent - before
            if number >= 0:
                times = over_workers(seconds, transport.clock.critical, transport.clock.hidden)
                samples.setdefault(variant, []).append(times)
        if number >= 0:
            computed.append(over_workers(timed(step))[0])
    if transport.rank == 0:
        rows = [row(variant, each, computed, sent[variant]) for variant, each in samples.items()]
        print(
            json.dumps([{**row, "workers": transport.size, "coordinates": len(v)} for row in rows])
        )
    dist.destroy_process_group()


def timed(call: Callable[..., object], *arguments: Any) -> float:
    dist.barrier()
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def over_workers(seconds: float, *parts: float) -> list[float]:
    """Return the slowest worker's seconds, and means of the parts."""
    together = torch.zeros(dist.get_world_size(), 1 + len(parts), dtype=torch.float64)
    together[dist.get_rank()] = torch.tensor([seconds, *parts], dtype=torch.float64)
    dist.all_reduce(together)
    return [float(together[:, 0].max()), *together[:, 1:].mean(0).tolist()]


def row(
    variant: Variant,
    samples: Sequence[Sequence[float]],
    computed: Sequence[float],
    sent: int,
) -> Row:
    seconds, compression, hidden = (statistics.median(part) for part in zip(*samples, strict=True))
    return {
        "route": variant.route,
        "merge": variant.merge,
        "seconds": seconds,
        "computation": statistics.median(computed),
        "compression": compression,
        "communication": seconds - compression,
        "hidden": hidden,
        "bytes": sent or None,  # handed to the backend by a worker; it does not tell its own
    }


def training_step() -> Callable[[], None]:
    torch.manual_seed(0)
    model = models.build("alexnet-wide", shape=(3, 32, 32), classes=10)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.arange(BATCH) % 10

    def step() -> None:
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]

    return step


def check(transport: TimedTransport, v: Tensor) -> None:
    """Raise an error for wrong results, which are not worth timing."""
    mean, signs = v.clone(), torch.where(v >= 0, 1.0, -1.0)
    dist.all_reduce(mean)
    dist.all_reduce(signs)
    transport.clock = Clock()
    agreed = signs.abs() == transport.size
    for variant in variants(transport.size):
        result = variant.reduce(transport, v.clone(), 0)
        right = {
            "mean": torch.allclose(result, mean / transport.size, atol=1e-5),
            "sign-vote": torch.equal(result, torch.where(signs >= 0, 1.0, -1.0)),
            "one-bit": torch.equal(result[agreed], signs[agreed] / transport.size)
            and abs(float((result - signs / transport.size).mean())) < 0.02,
        }
        if not right[variant.merge]:
            raise SystemExit(f"{variant} needs to give the right result and does not.")


def measure(link: str, workers: int, coordinates: int, repeat: int) -> list[Row]:
    argv = ["-m", "benchmarks.wire", "--worker"]
    argv += ["--coordinates", str(coordinates), "--repeat", str(repeat)]
    return rows_over(link, workers, argv)


def rows_over(link: str, processes: int, argv: Sequence[str]) -> list[Row]:
    """Return the rows that the first of several processes prints, which one link joins."""
    with ExitStack() as stack:
        if link == "loopback":
            world = [this_machine()] * processes
        else:
            world = stack.enter_context(hosts(processes, rate=link))
        rows: list[Row] = json.loads(launch(world, list(argv), timeout=3600)[0])
    bandwidth = None if link == "loopback" else bits_per_second(link)
    return [{**row, "link": link, "bandwidth": bandwidth} for row in rows]


def report(rows: Sequence[Row]) -> None:
    one = rows[0]
    print(
        f"{one['workers']} workers, {one['coordinates']:,} coordinates, {os.cpu_count()} cores "
        f"({platform.machine()}, torch {torch.__version__}); seconds, medians; load average "
        f"{os.getloadavg()[0]:.1f} at the end. Computation: AlexNet, 23M parameters, batch {BATCH}."
    )
    print(
        f"{'link':>8} {'route':>8} {'merge':>10} {'bits each':>9} {'seconds':>8}"
        f" {'backend / it':>12} {'compute':>8} {'compress':>8} {'communicate':>11} {'hidden':>7}"
    )
    backend = {row["link"]: row["seconds"] for row in rows if row["route"] == "backend"}
    for row in rows:
        each = f"{8 * row['bytes'] / row['coordinates']:.4f}" if row["bytes"] else "-"
        print(
            f"{row['link']:>8} {row['route']:>8} {row['merge']:>10} {each:>9} {row['seconds']:8.3f}"
            f" {backend[row['link']] / row['seconds']:11.1f}x {row['computation']:8.3f}"
            f" {row['compression']:8.3f} {row['communication']:11.3f} {row['hidden']:7.3f}"
        )


def rounds(rows: Sequence[Row]) -> list[Row]:
    """Return rounds as `benchmarks/scale.py` reads them; its model knows no backend."""
    names = ["route", "merge", "workers", "coordinates", "bandwidth", *PARTS]
    return [
        {**{name: row[name] for name in names}, "seconds": sum(row[part] for part in PARTS)}
        for row in rows
        if row["route"] != "backend"
    ]


PARTS = {"computation": "#9aa5b1", "compression": "#e0843b", "communication": "#2f6db5"}


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw a round of every method, one panel for each link."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    links = list(dict.fromkeys(row["link"] for row in rows))
    figure = Figure(figsize=(3.6 * len(links), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(links), squeeze=False)[0]
    for axis, link in zip(axes, links, strict=True):
        bars = [row for row in rows if row["link"] == link]
        groups = list(dict.fromkeys(row["route"] for row in bars))
        places = [i + 0.7 * groups.index(row["route"]) for i, row in enumerate(bars)]
        bottom = np.zeros(len(bars))
        for part, colour in PARTS.items():
            heights = np.array([row[part] for row in bars])
            axis.bar(places, heights, 0.75, bottom=bottom, label=part, color=colour)
            bottom += heights
        for place, row, top in zip(places, bars, bottom, strict=True):
            axis.annotate(
                f"{row['seconds']:.2f}",
                (place, top),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color=PARTS["communication"],
            )
        axis.set_xticks(places, [METHODS[row["merge"]] for row in bars], fontsize=8, rotation=45)
        for route in groups:
            middle = [p for p, row in zip(places, bars, strict=True) if row["route"] == route]
            axis.text(
                float(np.mean(middle)),
                -0.27,
                route,
                transform=axis.get_xaxis_transform(),
                ha="center",
                fontsize=9,
            )
        axis.set_title(_spoken(link), fontsize=10)
        axis.margins(y=0.1)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds of a round")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles[::-1], labels[::-1], frameon=False, fontsize=8, ncols=3, loc="outside lower center"
    )
    one = rows[0]
    figure.suptitle(
        f"{one['workers']} workers, {one['coordinates'] / 1e6:g}M coordinates; above each bar the "
        "seconds of its synchronisation",
        fontsize=9,
    )
    figure.savefig(path, dpi=150)


def _spoken(link: str) -> str:
    for unit, words in (("gbit", " Gbit/s"), ("mbit", " Mbit/s"), ("kbit", " kbit/s")):
        link = link.replace(unit, words)
    return link


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--coordinates", type=int, default=25_000_000)
    parser.add_argument("--workers", type=int, help="4; 3 in Figure 3.1a")
    parser.add_argument("--repeat", type=int, default=5, help="a third of it below 1 Gbit/s")
    parser.add_argument("--links", nargs="+", default=["loopback", "10gbit", "1gbit", "100mbit"])
    parser.add_argument("--json", type=Path, default=Path("runs/wire.json"))
    parser.add_argument("--rounds", type=Path, default=Path("runs/rounds.json"))
    parser.add_argument("--plot", type=Path, default=Path("docs/wire.png"))
    parser.add_argument("--figure", choices=["3.1a", "3.5"], help="a figure of the thesis instead")
    parser.add_argument(
        "--code", choices=["fixed", "gamma", "delta", "omega"], help="--figure only"
    )
    parser.add_argument("--out", type=Path, help="JSON of --figure")
    parser.add_argument(
        "--keep", action="store_true", help="write --figure on one link into the package's results"
    )
    parser.add_argument("--from-json", action="store_true", help="report and plot earlier results")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.coordinates, options.repeat)
        return
    if options.keep and (options.figure is None or len(options.links) != 1):
        parser.error("--keep needs --figure and one of --links.")
    if options.figure:
        from benchmarks import wire_figures

        wire_figures.run(options)
        return
    options.workers = options.workers or 4
    if not options.from_json:
        rows: list[Row] = []
        for link in options.links:
            slow = link != "loopback" and bits_per_second(link) < 1e9
            repeat = max(1, -(-options.repeat // 3)) if slow else options.repeat
            rows += measure(link, options.workers, options.coordinates, repeat)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1))
    rows = json.loads(options.json.read_text())
    options.rounds.parent.mkdir(parents=True, exist_ok=True)
    options.rounds.write_text(json.dumps(rounds(rows), indent=1))
    report(rows)
    plot(rows, options.plot)
    print(f"{options.json}, {options.rounds} and {options.plot} written")


if __name__ == "__main__":
    main()
