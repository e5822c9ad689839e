"""The thesis's Figures 3.1a and 3.5: seconds of an iteration by method and route.

    python -m benchmarks.wire --figure 3.1a [--links loopback 1gbit] [--out runs/figure3_1a.json]
    python -m benchmarks.wire --figure 3.5 [--workers 4] [--code gamma]
    python -m benchmarks.wire --figure 3.5 --links 100mbit --coordinates 2300000 --keep

`--keep` writes every repetition on one link into the package's results, which `undrift papers show`
and the pages judge claims by (`benchmarks/wire_results.py`).

Figure 3.1a has 3 workers and compares a parameter server with a ring for full precision ("none"),
SSDM with sums of signs that grow from hop to hop, cascading compression, and Marsit. Figure 3.5 has
PSGD, signSGD, EF-signSGD, SSDM, Marsit-100 and Marsit on ring, torus and server, in three phases.

Workers are processes of this machine with one thread each, and the parameter server is one more
process; on a limited link each of them is a host of its own (`benchmarks/network.py`, needs root).
So computation and compression are those of the machine's cores, which all processes share; the
document has 32 nodes with two GPUs each and does not print the bandwidth between them. Compare the
methods and routes of one link with each other, not the seconds with the document's.

The phases are those of `benchmarks/wire.py`. Compression has in addition what a method computes
around its reduction and PSGD does not: scale and error of EF-signSGD, norm of SSDM, compensation of
Marsit, and on the server route the work of the server, for which all workers wait. Marsit-100 is 99
rounds of Marsit and one in full precision, from the medians of both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.wire import (
    Clock,
    Row,
    TimedMerge,
    TimedTransport,
    over_workers,
    rows_over,
    timed,
    training_step,
)
from torch import Tensor

from benchmarks import wire_results
from undrift import keyed
from undrift.comm.merges import Cascade, Code, Mean, OneBit, SignSum, euclidean
from undrift.comm.routes import Ring, Torus
from undrift.core import Merge
from undrift.engine.collectives.allreduce import all_reduce
from undrift.engine.processes.transport import Incoming, Outgoing
from undrift.topology import near_square

FIGURES = {
    "3.1a": {"none": "PSGD", "SSDM": "SSDM", "cascading": "cascading", "Marsit": "Marsit"},
    "3.5": {name: name for name in ("PSGD", "signSGD", "EF-signSGD", "SSDM", "Marsit")},
}
FIGURE_ROUTES = {"3.1a": ["server", "ring"], "3.5": ["ring", "torus", "server"]}
FIGURE_WORKERS = {"3.1a": 3, "3.5": 4}
# The document's Section 3.4 uses Elias coding for the baselines of Figure 3.5; Section 3.2.1
# speaks of a bit length that grows with the logarithm of the workers.
FIGURE_CODES: dict[str, Code] = {"3.1a": "fixed", "3.5": "gamma"}
PARTS = ("computation", "compression", "communication", "iteration")  # seconds of a row
STEP = 1e-3  # of a coordinate in a round of one bit
PERIOD = 100  # of Marsit-100


@dataclass
class Worker:
    """One process: its vector, what its method keeps, and how it reduces; the server has rank M."""

    all_ranks: TimedTransport
    workers: TimedTransport | None  # of the workers alone, None for the server
    v: Tensor
    clock: Clock = field(default_factory=Clock)
    kept: dict[str, Tensor] = field(default_factory=dict)
    number: int = 0  # of the reduction, for its draws
    route: str = "ring"

    @property
    def count(self) -> int:
        """Return the number of workers."""
        return self.all_ranks.size - 1

    @contextmanager
    def compressing(self) -> Iterator[None]:
        """Count what is done inside as compression."""
        start = time.perf_counter()
        yield
        self.clock.worked(time.perf_counter() - start)

    def memory(self, name: str) -> Tensor:
        """Return what the method has kept from the round before, zeros at first."""
        return self.kept.setdefault(name, torch.zeros_like(self.v))

    def reduce(self, v: Tensor, merge: Merge) -> Tensor:
        """Return the result of all workers' vectors on the route that is measured."""
        self.number += 1
        how: Any = TimedMerge(merge, self.clock) if merge.lossy else merge
        if self.route == "server":
            return self._by_server(v, how)
        if self.workers is None:
            return v  # a ring and a torus have no server
        self.workers.clock = self.clock
        size = self.workers.size
        route = Torus(*near_square(size)) if self.route == "torus" else Ring()
        own = {self.workers.rank: [v]}
        return all_reduce(self.workers, own, how, route, [self._draws]).vectors[0]

    def _draws(self, purpose: str, *place: int) -> np.random.Generator:
        return keyed.generator(self.number, purpose, *place)

    def _by_server(self, v: Tensor, how: Any) -> Tensor:
        """Send the share to the server and return the result that it sends back."""
        self.all_ranks.clock = self.clock
        server, rank = self.count, self.all_ranks.rank
        if rank == server:
            return self._serve(v, how)
        rng = self._draws("worker", rank)
        data = how.send(how.start(v, rng), 1, rng)
        self.all_ranks.exchange([Outgoing(server, "share", data)], []).wait()
        length = how.nbytes(v, self.count, result=True)
        (answer,) = self.all_ranks.exchange([], [Incoming(server, "result", length)]).wait()
        result: Tensor = how.decode_result(answer.data, self.count, v)
        return result

    def _serve(self, like: Tensor, how: Any) -> Tensor:
        """Merge the shares of all workers in their order and send the result to each."""
        rng, workers = self._draws("server", self.count), range(self.count)
        length = how.nbytes(like, 1, result=False)
        incoming = [Incoming(worker, "share", length) for worker in workers]
        first, *others = self.all_ranks.exchange([], incoming).wait()
        share = how.receive(first.data, 1, like)
        for merged, received in enumerate(others, 1):
            other = how.receive(received.data, 1, like)
            share = how.merge(other, 1, share, merged, how.prepare(1, share, merged, rng))
        data = how.encode_result(share, self.count, rng)
        self.all_ranks.exchange([Outgoing(w, "result", data) for w in workers], []).wait()
        return like


def psgd(worker: Worker, code: Code) -> Tensor:
    return worker.reduce(worker.v, Mean())


def signsgd(worker: Worker, code: Code) -> Tensor:
    return worker.reduce(worker.v, SignSum(code, vote=True))


def ef_signsgd(worker: Worker, code: Code) -> Tensor:
    with worker.compressing():
        p = worker.v + worker.memory("error")
        scale = p.abs().mean().view(1)
    a = worker.reduce(scale, Mean())
    signs = worker.reduce(p, SignSum(code))
    with worker.compressing():
        worker.kept["error"] = p - a * torch.where(p >= 0, 1.0, -1.0)
        return a * signs


def ssdm(worker: Worker, code: Code) -> Tensor:
    with worker.compressing():
        shares = (worker.v / euclidean(worker.v)).clamp(-1, 1)
    return worker.reduce(shares, SignSum(code, stochastic=True))


def cascading(worker: Worker, code: Code) -> Tensor:
    return worker.reduce(worker.v, Cascade())


def marsit(worker: Worker, code: Code) -> Tensor:
    with worker.compressing():
        u = worker.v + worker.memory("compensation")
    bits = worker.reduce(u, OneBit())
    with worker.compressing():
        worker.kept["compensation"] = u - STEP * bits
    return bits


METHODS: dict[str, Callable[[Worker, Code], Tensor]] = {
    "PSGD": psgd,
    "signSGD": signsgd,
    "EF-signSGD": ef_signsgd,
    "SSDM": ssdm,
    "cascading": cascading,
    "Marsit": marsit,
}


def work(figure: str, coordinates: int, repeat: int, code: Code) -> None:
    """Run one rank, the last of which is the server; rank 0 prints the medians."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    among_workers = dist.new_group(range(size - 1))
    worker = Worker(
        TimedTransport(),
        TimedTransport(among_workers) if rank < size - 1 else None,
        torch.randn(coordinates, generator=torch.Generator().manual_seed(rank)),
    )
    step = training_step()
    computed: list[float] = []
    samples: dict[tuple[str, str], list[list[float]]] = {}
    sent: dict[tuple[str, str], tuple[int, int]] = {}
    square = min(near_square(worker.count)) > 1
    routes = [route for route in FIGURE_ROUTES[figure] if route != "torus" or square]
    check(worker, routes)
    for number in range(-1, repeat):  # the first is to warm up
        for name in dict.fromkeys(FIGURES[figure].values()):
            for route in routes:
                seconds, spent, sent[name, route] = measured(worker, name, route, code)
                if number >= 0:
                    samples.setdefault((name, route), []).append([seconds, *spent])
        if number >= 0:
            # The server does not train; it waits.
            computed.append(over_workers(timed(step if rank < size - 1 else lambda: None))[0])
    if rank == 0:
        common = {"figure": figure, "workers": worker.count, "coordinates": coordinates}
        common["code"] = code
        rows = labelled(figure, samples, computed, sent)
        for place, each in enumerate(rows):
            each |= {**common, "repetitions": []}
            for number in range(repeat):
                one = {key: [values[number]] for key, values in samples.items()}
                found = labelled(figure, one, [computed[number]], sent)[place]
                each["repetitions"].append({name: found[name] for name in PARTS})
        print(json.dumps(rows))
    dist.destroy_process_group()


def labelled(
    figure: str,
    samples: Mapping[tuple[str, str], Sequence[Sequence[float]]],
    computed: Sequence[float],
    sent: Mapping[tuple[str, str], tuple[int, int]],
) -> list[Row]:
    """Return the medians of every method and route under the names of the figure."""
    rows = [
        row(name, route, each, computed, sent[name, route])
        for (name, route), each in samples.items()
    ]
    named = [
        {**found, "method": label}
        for label, name in FIGURES[figure].items()
        for found in rows
        if found["method"] == name
    ]
    return [*named, *periodic(named)]


def measured(
    worker: Worker, name: str, route: str, code: Code
) -> tuple[float, tuple[float, float], tuple[int, int]]:
    """Return seconds of one synchronisation, of compression and hidden, and bytes.

    The bytes are those that this rank sends and those that all of them send.
    """
    worker.clock, worker.route = Clock(), route
    post = worker.all_ranks if route == "server" else worker.workers
    before = 0 if post is None else post.sent
    seconds = timed(METHODS[name], worker, code)
    nbytes = 0 if post is None else post.sent - before
    own = [seconds, worker.clock.critical, worker.clock.hidden, float(nbytes)]
    table = torch.zeros(worker.count + 1, len(own), dtype=torch.float64)
    table[dist.get_rank()] = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(table)
    workers, server = table[:-1], table[-1]
    means = workers.mean(0)
    # All workers wait for the server, whose compression is therefore that of each.
    compression = float(means[1]) + (float(server[1]) if route == "server" else 0.0)
    spent = compression, float(means[2])
    return float(workers[:, 0].max()), spent, (nbytes, int(table[:, 3].sum()))


def row(
    name: str,
    route: str,
    samples: Sequence[Sequence[float]],
    computed: Sequence[float],
    sent: tuple[int, int],
) -> Row:
    """Return the medians of one method on one route."""
    seconds, compression, hidden = (statistics.median(part) for part in zip(*samples, strict=True))
    computation = statistics.median(computed)
    return {
        "method": name,
        "route": route,
        "computation": computation,
        "compression": compression,
        "communication": seconds - compression,
        "iteration": computation + seconds,
        "hidden": hidden,
        "bytes": sent[0],  # that worker 0 hands to the backend
        "all_bytes": sent[1],  # the same of all workers and of the server
    }


def periodic(rows: Sequence[Row]) -> list[Row]:
    """Return Marsit-100 for each route that has Marsit and PSGD: the mean over its period."""
    found = []
    by_name = {(each["method"], each["route"]): each for each in rows}
    for name, route in by_name:
        if name != "Marsit" or ("PSGD", route) not in by_name:
            continue
        bits, full = by_name["Marsit", route], by_name["PSGD", route]
        means = {
            key: value + (full[key] - value) / PERIOD
            for key, value in bits.items()
            if key not in ("method", "route")
        }
        found.append({"method": f"Marsit-{PERIOD}", "route": route, **means})
    return found


def check(worker: Worker, routes: Sequence[str]) -> None:
    """Raise an error for wrong results, which are not worth timing."""
    whole, worker.v = worker.v, worker.v[: 8 * 1000].clone()
    serves = worker.workers is None
    share = 0.0 if serves else 1.0  # the server has no vector of its own
    mean, signs = share * worker.v, share * torch.where(worker.v >= 0, 1.0, -1.0)
    dist.all_reduce(mean)
    dist.all_reduce(signs)
    count = worker.count
    agreed = signs.abs() == count
    for name, method in METHODS.items():
        for route in routes:
            worker.clock, worker.route = Clock(), route
            result = method(worker, "fixed")
            worker.kept.clear()
            right = {
                "PSGD": lambda got: torch.allclose(got, mean / count, atol=1e-5),
                "signSGD": lambda got: torch.equal(got, torch.where(signs >= 0, 1.0, -1.0)),
                "EF-signSGD": lambda got: torch.equal(got[agreed].sign(), signs[agreed].sign()),
                "Marsit": lambda got: torch.equal(got[agreed], signs[agreed] / count),
            }.get(name, lambda got: bool(got.isfinite().all()))
            if not serves and not right(result):
                raise SystemExit(f"{name} on the {route} needs to give the right result.")
    worker.v = whole


def measure(link: str, figure: str, options: argparse.Namespace) -> list[Row]:
    """Return the rows of one link; the parameter server is one more process."""
    argv = ["-m", "benchmarks.wire_figures", "--figure", figure, "--code", options.code]
    argv += ["--coordinates", str(options.coordinates), "--repeat", str(options.repeat)]
    return rows_over(link, options.workers + 1, argv)


def report(rows: Sequence[Row]) -> None:
    """Print a line for each method and route."""
    one = rows[0]
    print(
        f"Figure {one['figure']}: {one['workers']} workers as processes of one machine with "
        f"{os.cpu_count()} cores ({platform.machine()}, torch {torch.__version__}), "
        f"{one['coordinates']:,} coordinates, sums of signs in {one['code']} code; seconds, "
        f"medians; load average {os.getloadavg()[0]:.1f} at the end."
    )
    print(
        f"{'link':>8} {'route':>7} {'method':>11} {'bits each':>9} {'iteration':>9}"
        f" {'compute':>8} {'compress':>8} {'communicate':>11} {'hidden':>7}"
    )
    for row in rows:
        print(
            f"{row['link']:>8} {row['route']:>7} {row['method']:>11}"
            f" {8 * row['bytes'] / row['coordinates']:9.3f} {row['iteration']:9.3f}"
            f" {row['computation']:8.3f} {row['compression']:8.3f} {row['communication']:11.3f}"
            f" {row['hidden']:7.3f}"
        )


def run(options: argparse.Namespace) -> None:
    """Measure a figure on all links, print it and write it as JSON."""
    figure: str = options.figure
    options.workers = options.workers or FIGURE_WORKERS[figure]
    options.code = options.code or FIGURE_CODES[figure]
    rows = [row for link in options.links for row in measure(link, figure, options)]
    rows.sort(key=lambda row: (options.links.index(row["link"]), row["route"]))
    report(rows)
    path = options.out or Path("runs") / f"figure{figure.replace('.', '_')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1))
    print(f"{path} written")
    if options.keep:
        print(f"{wire_results.keep(rows)} written")


def main() -> None:
    """Run one rank; `benchmarks.wire --figure` starts all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--figure", choices=FIGURES, required=True)
    parser.add_argument("--coordinates", type=int, required=True)
    parser.add_argument("--repeat", type=int, required=True)
    parser.add_argument("--code", required=True)
    options = parser.parse_args()
    work(options.figure, options.coordinates, options.repeat, options.code)


if __name__ == "__main__":
    main()
