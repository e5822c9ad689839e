"""Throughput of the one-bit operations, beside NumPy's packbits and a full-precision ring.

    python benchmarks/onebit.py [--coordinates 25000000] [--workers 4] [--repeat 5]

All in memory and on one thread, the operations interleaved, so that a busy machine slows all of
them alike; each figure is the best of the repetitions. The rings are the simulator's own, with the
messages of every worker: M workers' work done by one core.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable

import numpy as np
import torch

from undrift import keyed
from undrift.comm import bits
from undrift.comm.merges import Mean, OneBit
from undrift.comm.routes import Ring
from undrift.engine.collectives.allreduce import all_reduce
from undrift.engine.collectives.inprocess import Loopback
from undrift.engine.collectives.traffic import Traffic


def measure(operations: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the best seconds of each operation, taken in turns."""
    best = dict.fromkeys(operations, float("inf"))
    for _ in range(repeat):
        for name, operation in operations.items():
            start = time.perf_counter()
            operation()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def generator(purpose: str, *place: int) -> np.random.Generator:
    return keyed.generator(0, purpose, *place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coordinates", type=int, default=25_000_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
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
                Loopback(), own, how, Ring(), [generator], workers=workers, traffic=sent[name]
            )

        return run

    operations: dict[str, Callable[[], object]] = {
        "numpy.packbits of a ready bool array": lambda: np.packbits(ready),
        "numpy.packbits(v >= 0)": lambda: np.packbits(v >= 0),
        "pack_signs": lambda: bits.pack_signs(vectors[0]),
        "random bits, probability 1/2": lambda: bits.bernoulli(1, 1, len(half), generator("r")),
        "random bits, probability 1/3": lambda: bits.bernoulli(1, 2, len(half), generator("r")),
        "choose (merge, random bits ready)": lambda: bits.choose(packed[0], packed[1], third),
        "unpack_signs to float32": lambda: bits.unpack_signs(packed[0], size, torch.float32),
        "numpy.unpackbits": lambda: np.unpackbits(packed[0].numpy(), count=size),
        f"ring of {workers}, float32": ring(Mean(), "mean"),
        f"ring of {workers}, one bit": ring(OneBit(), "one bit"),
    }
    best = measure(operations, options.repeat)
    machine = f"{platform.machine()}, torch {torch.__version__}, numpy {np.__version__}"
    print(f"{size:,} coordinates, one thread, best of {options.repeat} ({machine})")
    print(f"{'operation':38} {'ms':>9} {'M coordinates / s':>18}")
    for name, seconds in best.items():
        print(f"{name:38} {1e3 * seconds:9.2f} {size / seconds / 1e6:18,.0f}")
    ratio = best[f"ring of {workers}, one bit"] / best[f"ring of {workers}, float32"]
    share = sent["one bit"].up / sent["mean"].up
    print(
        f"one-bit ring / float32 ring in memory: {ratio:.2f} of the time, {share:.5f} of the bytes"
    )


if __name__ == "__main__":
    main()
