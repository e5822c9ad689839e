"""Hashes of the models that many small runs end with, to show that a change keeps every bit.

    python -m benchmarks.hashes record hashes.json    # before the change
    python -m benchmarks.hashes compare hashes.json   # after it, on the same machine

Mode, kernels, threads and the layout of images are pinned, so a difference is one of arithmetic.
Hashes of float sums depend on the machine and the version of torch; compare like with like.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import undrift as ud
from undrift.testing import small_clients, small_net

PINNED = {"kernels": False, "execution": ud.ExecutionOptions(threads=1, channels_last=False)}
INNERMOST = ud.ExecutionOptions(threads=1, channels_last=True)
ROUNDS = 3
WORK = ud.Steps([3, 5, 2, 6])


def simulate(algorithm: Any, **options: Any) -> ud.Run:
    """Return a run of the small net with dropout, ragged minibatches and unequal work."""
    if isinstance(algorithm, ud.Peer):
        options.setdefault("work", ud.Steps(3))
        if isinstance(algorithm, ud.Gossip):
            options.setdefault("topology", ud.topology.ring(4))
    return ud.simulate(
        algorithm,
        options.pop("model", None) or small_net(),
        options.pop("clients", None) or small_clients(),
        loss=nn.functional.cross_entropy,
        rounds=options.pop("rounds", ROUNDS),
        **{"work": WORK, "batch_size": 4, **PINNED, **options},
    )


def digest(algorithm: Any, **options: Any) -> str:
    """Return the hash of the model that a run ends with."""
    with simulate(algorithm, **options) as run:
        for _ in run:
            pass
        return run.model_sha256


def resumed(algorithm: Any, **options: Any) -> str:
    """Return the hash of a run that was saved after two rounds and resumed."""
    with tempfile.TemporaryDirectory() as folder:
        digest(algorithm, rounds=2, checkpoint=folder, **options)
        return digest(algorithm, rounds=ROUNDS, checkpoint=folder, resume=folder, **options)


def small_cnn() -> nn.Module:
    """Return a convolutional net whose gradients a kernel can compute."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


def images() -> ud.Clients:
    """Return four clients with random 8x8 images of three classes."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 1, 8, 8, generator=generator)
    targets = torch.randint(0, 3, (40,), generator=generator)
    return ud.Clients([(inputs[i::4], targets[i::4]) for i in range(4)])


def cases() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name of each run and a function that returns its hash."""

    def case(name: str, algorithm: Any, make: Any = digest, **options: Any) -> Any:
        return name, lambda: make(algorithm, **options)

    for cls in ud.ALGORITHMS:
        for mode in ("loop", "stacked", "threads"):
            yield case(f"{cls.__name__} {mode}", cls(lr=0.05), mode=mode)
        yield case(f"{cls.__name__} resumed", cls(lr=0.05), resumed, mode="loop")
    for cls in (ud.FedAvg, ud.Scaffold, ud.FedSpeed, ud.FedLin, ud.NetFleet, ud.PSGD, ud.Marsit):
        yield case(f"{cls.__name__} processes", cls(lr=0.05), mode="loop", processes=2)
    for route in ("segmented-ring", "torus:2x2", "tree", "server"):
        for cls in (ud.Marsit, ud.SSDM, ud.SignSGD, ud.CascadingSSDM):
            yield case(f"{cls.__name__} {route}", cls(lr=0.05), mode="stacked", allreduce=route)
        yield case(
            f"Marsit {route} processes",
            ud.Marsit(lr=0.05),
            mode="loop",
            allreduce=route,
            processes=2,
        )
    half = {"mode": "loop", "participation": 0.5}
    coded = ud.Compressed(ud.Scaffold(lr=0.05), ud.ScaledSign(), error_feedback=True)
    yield case("Compressed", coded, **half)
    yield case("Compressed processes", coded, **half, processes=2)
    yield case("QSGD", ud.Compressed(ud.FedACG(lr=0.05), ud.QSGD(bits=4)), **half)
    yield case("TopK", ud.Compressed(ud.FedAvg(lr=0.05), ud.TopK(k=5)), **half)
    yield case("Accelerated", ud.Accelerated(ud.FedDyn(lr=0.05)), **half)
    yield case("schedule", ud.FedSpeed(lr=ud.exponential(0.05, 0.9)), **half)
    yield case("momentum", ud.FedAvg(lr=0.05, rule=ud.Momentum(0.9)), **half)
    yield case("adam", ud.FedProx(lr=0.01, rule=ud.Adam()), **half)
    yield case("bernoulli", ud.Scaffold(lr=0.05), mode="loop", participation=ud.Bernoulli(0.6))
    yield case("replacement", ud.FedAvg(lr=0.05), mode="loop", participation=ud.WithReplacement(3))
    yield case("decay and clip", ud.FedACG(lr=0.05), **half, weight_decay=1e-2, clip=1.0)
    yield case("epochs", ud.FedaGrac(lr=0.05), **half, work=ud.Epochs(2))
    yield case("gaussian", ud.FedaGrac(lr=0.05), **half, work=ud.GaussianSteps(4, 2))
    yield case("phones", ud.FedAvg(lr=0.05), **half, fleet="phone")
    yield case("whole data", ud.FedSpeed(lr=0.05), **half, batch_size=None)
    for cls in (ud.FedAvg, ud.FedSpeed, ud.Scaffold):
        net = {"model": small_cnn(), "clients": images()}
        for mode in ("loop", "stacked"):
            yield case(
                f"{cls.__name__} kernel {mode}", cls(lr=0.05), mode=mode, kernels="require", **net
            )
        yield case(
            f"{cls.__name__} cnn innermost", cls(lr=0.05), mode="loop", execution=INNERMOST, **net
        )


def main() -> None:
    """Record the hashes in a file, or exit with 1 if one differs from the file's."""
    what, path = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    found = {name: run() for name, run in cases()}
    if what == "record":
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} hashes recorded in {path}.")
        return
    before = json.loads(path.read_text())
    changed = [name for name in {**before, **found} if before.get(name) != found.get(name)]
    print(f"{len(found) - len(changed)} of {len(before)} hashes are the same.", *changed, sep="\n")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
