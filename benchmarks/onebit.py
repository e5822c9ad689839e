"""Throughput of the one-bit operations, beside NumPy's packbits and a full-precision ring.

    python benchmarks/onebit.py [--coordinates 25000000] [--workers 4] [--repeat 5]

All in memory and on one thread, the operations interleaved, so that a busy machine slows all of
them alike. Medians of the seconds of the processor and of the clock. The rings are the simulator's
own, with the messages of every worker: M workers' work done by one core. What C++ does is measured
with NumPy in its place as well, as it is without a compiler.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from undrift import keyed
from undrift.comm import bits, compiled
from undrift.comm.merges import Mean, OneBit
from undrift.comm.routes import Ring
from undrift.engine.collectives.allreduce import all_reduce
from undrift.engine.collectives.inprocess import Loopback
from undrift.engine.collectives.traffic import Traffic
from undrift.engine.world import RankBlocks


class Seconds(NamedTuple):
    """Holds the median seconds of an operation."""

    processor: float
    clock: float


def measure(operations: dict[str, Callable[[], object]], repeat: int) -> dict[str, Seconds]:
    """Return the median seconds of each operation, taken in turns after one turn to warm up."""
    taken: dict[str, list[Seconds]] = {name: [] for name in operations}
    for _ in range(repeat + 1):
        for name, operation in operations.items():
            clock, processor = time.perf_counter(), time.process_time()
            operation()
            processor, clock = time.process_time() - processor, time.perf_counter() - clock
            taken[name].append(Seconds(processor, clock))
    return {
        name: Seconds(*map(statistics.median, zip(*turns[1:], strict=True)))
        for name, turns in taken.items()
    }


def by_numpy(operation: Callable[[], object]) -> Callable[[], object]:
    """Return an operation that does without C++."""

    def run() -> None:
        short, compiled.SHORT = compiled.SHORT, sys.maxsize
        try:
            operation()
        finally:
            compiled.SHORT = short

    return run


def generator(purpose: str, *place: int) -> np.random.Generator:
    return keyed.generator(0, purpose, *place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coordinates", type=int, default=25_000_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not compiled.loader.build():
        print("No C++ compiler, so NumPy does everything.")
    size, workers = options.coordinates, options.workers
    noise = torch.Generator().manual_seed(0)
    vectors = [torch.randn(size, generator=noise) for _ in range(workers)]
    v, ready = vectors[0].numpy(), (vectors[0] >= 0).numpy()
    packed = [bits.pack_signs(vector) for vector in vectors[:2]]
    half, third = (bits.bernoulli(1, b, len(packed[0]), generator("take", b)) for b in (1, 2))
    sent = {"mean": Traffic(workers), "one bit": Traffic(workers)}

    def ring(how: Mean | OneBit, name: str) -> Callable[[], object]:
        def run() -> None:
            sent[name] = Traffic(workers)
            own = {worker: [vector] for worker, vector in enumerate(vectors)}
            all_reduce(
                Loopback(),
                own,
                how,
                Ring(),
                [generator],
                blocks=RankBlocks(workers, 1),
                traffic=sent[name],
            )

        return run

    def pack() -> object:
        return bits.pack_signs(vectors[0])

    def draw() -> object:
        return bits.bernoulli(1, 2, len(half), generator("r"))

    operations: dict[str, Callable[[], object]] = {
        "numpy.packbits of a ready bool array": lambda: np.packbits(ready),
        "numpy.packbits(v >= 0)": lambda: np.packbits(v >= 0),
        "pack_signs": pack,
        "pack_signs by NumPy": by_numpy(pack),
        "random bits, probability 1/2": lambda: bits.bernoulli(1, 1, len(half), generator("r")),
        "random bits, probability 1/3": draw,
        "random bits by NumPy, probability 1/3": by_numpy(draw),
        "choose (merge, random bits ready)": lambda: bits.choose(packed[0], packed[1], third),
        "unpack_signs to float32": lambda: bits.unpack_signs(packed[0], size, torch.float32),
        "numpy.unpackbits": lambda: np.unpackbits(packed[0].numpy(), count=size),
        f"ring of {workers}, float32": ring(Mean(), "mean"),
        f"ring of {workers}, one bit": ring(OneBit(), "one bit"),
        f"ring of {workers}, one bit by NumPy": by_numpy(ring(OneBit(), "one bit")),
    }
    found = measure(operations, options.repeat)
    machine = f"{platform.machine()}, torch {torch.__version__}, numpy {np.__version__}"
    print(f"{size:,} coordinates, one thread, medians of {options.repeat} turns ({machine})")
    print(f"{'operation':38} {'CPU ms':>9} {'ms':>9} {'M coordinates / CPU s':>22}")
    for name, (processor, clock) in found.items():
        speed = size / processor / 1e6
        print(f"{name:38} {1e3 * processor:9.2f} {1e3 * clock:9.2f} {speed:22,.0f}")
    rings = found[f"ring of {workers}, one bit"], found[f"ring of {workers}, float32"]
    ratio = rings[0].processor / rings[1].processor
    share = sent["one bit"].up / sent["mean"].up
    print(f"one-bit / float32 ring in memory: {ratio:.2f} of the time, {share:.5f} of the bytes")


if __name__ == "__main__":
    main()
