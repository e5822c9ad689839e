"""Why an ascent step of fixed length can keep a net at its start: figures of docs/perturbation.md.

    python -m benchmarks.perturbation start    # norms and angles at the first weights
    python -m benchmarks.perturbation path     # the penalised loss along steps without ascent
    python -m benchmarks.perturbation train    # steps with ascent, by its length
    python -m benchmarks.perturbation train --nets cnn2 --scale 2 --ascents rho:0.1
    python -m benchmarks.perturbation methods  # the four methods with clients, 40 rounds

Minibatches have 20 samples of CIFAR-10 (the first 5,000), steps are those of SGD with lr 0.1 on one
node, without weight decay and clipping. A line is printed as soon as it is known. The first weights
are torch's, times `--scale`. With clients: 10 of 500 in a round, Dirichlet(0.6), 2 epochs of batch
20, lr 0.1, weight decay 0.001, clip 10, 2,000 test samples.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import undrift as ud
from undrift.gradients.kernels import UnsupportedError, build, read
from undrift.gradients.task import Batch, Task
from undrift.models.layout import Layout
from undrift.models.resnet import ResNet18
from undrift.models.small import cnn2, netfleet_cnn

SHAPE, CLASSES, LR, SAMPLES = (3, 32, 32), 10, 0.1, 5000
NETS: dict[str, Callable[[], nn.Module]] = {
    "cnn2": partial(cnn2, SHAPE, CLASSES),
    "cnn2 without dropout": partial(cnn2, SHAPE, CLASSES, dropout=0.0),
    "netfleet-cnn": partial(netfleet_cnn, SHAPE, CLASSES, padding=1),
    "resnet18-gn": partial(ResNet18, stem=7),
}
RHOS = 0.003, 0.01, 0.03, 0.1, 0.3
CLIENTS = 500
METHODS = ud.FedSpeed, ud.FedSAM, ud.MoFedSAM, ud.FedGamma
LENGTHS: dict[str, dict[str, Any]] = {
    "rho 0.1": {"rho": 0.1},
    "rho 0.01": {"rho": 0.01},
    "rho 0.01, from round 20 on 0.1": {"rho": ud.piecewise(0.01, {20: 0.1})},
    "relative, rho 0.003": {"rho": 0.003, "relative": True},
    "undivided, rho 0.1": {"rho": 0.1, "normalise": False},
}
# A step's ascent is rho g / ||g||, rho ||x|| g / ||g|| (relative) or rho g (undivided); of two
# values of rho each holds for half of the steps.
ASCENTS = ["rho:0", "rho:0.01", "rho:0.03", "rho:0.1", "relative:0.003", "undivided:0.1"]


class Net:
    """Holds a net's task, its first weights and the samples."""

    def __init__(self, name: str, batch: int, scale: float) -> None:
        torch.manual_seed(0)
        model = NETS[name]()
        layout = Layout.of(model)
        random = "dropout" if name == "cnn2" else "none"
        task = Task(model, layout, F.cross_entropy, randomness=random)
        try:
            chain = read(task, SHAPE, ())
            task = Task(
                model, layout, F.cross_entropy, randomness=random, oracle=build(task, chain, 1)
            )
        except UnsupportedError:
            pass  # Torch makes the gradients of nets that have no kernel.
        self.name, self.task, self._batch = name, task, batch
        self.x = scale * layout.gather(model)
        dataset = ud.data.load("cifar10")
        stored, targets = dataset.stored_train
        self._inputs = dataset.prepare.plain()(stored[:SAMPLES], torch.float32)
        self._targets = targets[:SAMPLES].long()

    def batches(self, seed: int, number: int) -> Iterator[Batch]:
        """Yield minibatches that depend on the seed alone."""
        noise = torch.Generator().manual_seed(seed)
        for _ in range(number):
            index = torch.randint(SAMPLES, (self._batch,), generator=noise)
            key = torch.randint(2**40, (), generator=noise)
            yield Batch(self._inputs[index], self._targets[index], keys=key)

    def gradients(self, x: Tensor, rho: float, number: int) -> Tensor:
        """Return (number, D) the gradients of minibatches after the ascent of length rho."""
        rows = []
        for batch in self.batches(1, number):
            g = self.task.gradient(x, batch)
            rows.append(self.task.gradient(x + rho * g / g.norm(), batch) if rho else g)
        return torch.stack(rows)

    def norm(self, x: Tensor, number: int) -> float:
        """Return the mean norm of a minibatch's gradient."""
        return float(self.gradients(x, 0, number).norm(dim=1).mean())

    @torch.no_grad()
    def scores(self, x: Tensor) -> tuple[float, float]:
        """Return the loss on 1,000 samples without dropout, and how much a logit differs."""
        self.task.model.eval()
        logits = self.task.forward(x, self._inputs[:1000])
        self.task.model.train()
        return float(F.cross_entropy(logits, self._targets[:1000])), float(logits.std(0).mean())


def start(net: Net, number: int) -> None:
    """Print norms at the first weights, and the cosine of a gradient and that above it."""
    g = net.gradients(net.x, 0, number)
    mean, norm = g.mean(0), float(g.norm(dim=1).mean())
    cells = [
        net.name,
        f"{len(net.x):,}",
        f"{net.x.norm():.1f}",
        f"{norm:.2f}",
        f"{mean.norm():.3f}",
    ]
    for rho in RHOS:
        above = net.gradients(net.x, rho, number)
        cells.append(f"{F.cosine_similarity(g, above).mean():.2f}")
    print("| " + " | ".join(cells) + " |", flush=True)


def path(net: Net, number: int, until: int) -> None:
    """Print the loss and the mean norm of a minibatch's gradient along steps without ascent."""
    x = net.x
    for k, batch in enumerate(net.batches(2, until + 1)):
        if k in (0, 25) or (k and k % 100 == 0):
            norm = net.norm(x, number)
            loss, spread = net.scores(x)
            cells = [net.name, str(k), f"{loss:.4f}", f"{spread:.3f}", f"{norm:.2f}"]
            cells += [f"{loss + rho * norm:.3f}" for rho in (0.01, 0.03, 0.1)]
            print("| " + " | ".join(cells) + " |", flush=True)
        x = x - LR * net.task.gradient(x, batch)


def train(net: Net, ascent: str, number: int, until: int) -> None:
    """Print losses, spreads of a logit and mean norms of gradients along steps with ascent."""
    x = net.x
    length, _, text = ascent.partition(":")
    rhos = [float(rho) for rho in text.split(",")]
    cells = [net.name, length, text]
    for k, batch in enumerate(net.batches(2, until + 1)):
        if k in (10, 100) or (k and k % 300 == 0):
            loss, spread = net.scores(x)
            cells.append(f"{loss:.4f}, {spread:.4f}, {net.norm(x, number):.2f}")
        g = net.task.gradient(x, batch)
        if rho := rhos[k * len(rhos) // (until + 1)]:
            size = {"rho": g.norm(), "relative": g.norm() / x.norm(), "undivided": 1.0}[length]
            g = net.task.gradient(x + rho * g / size, batch)
        x = x - LR * g
    print("| " + " | ".join(cells) + " |", flush=True)


def with_clients(method: Any, ascent: str, rounds: int) -> None:
    """Print loss and accuracy of cnn2 after some rounds, and whether the run says it stays."""
    dataset = ud.data.load("cifar10")
    parts = ud.data.dirichlet(dataset.stored_train[1], CLIENTS, alpha=0.6, seed=0)
    inputs, targets = dataset.stored_test
    plain = dataset.prepare.plain()
    split = ud.Clients.split(
        *dataset.stored_train, parts, test=(inputs[:2000], targets[:2000]), prepare=plain
    )
    torch.manual_seed(0)
    run = ud.simulate(
        method(lr=0.1, **LENGTHS[ascent]),
        NETS["cnn2"](),
        split,
        loss=F.cross_entropy,
        work=ud.Epochs(2),
        batch_size=20,
        participation=10 / CLIENTS,
        weight_decay=1e-3,
        clip=10.0,
        rounds=rounds,
        kernels="always",
        evaluation=ud.EvaluationOptions(every=5),
    )
    with warnings.catch_warnings(record=True):
        (*_, last) = run
    said = "says so" if run.stalled else ""
    cells = [method.__name__, ascent, f"{last.loss:.4f}", f"{100 * last.accuracy:.1f}", said]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print the rows of one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=("start", "path", "train", "methods"))
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS)[:3])
    parser.add_argument("--ascents", nargs="+", default=ASCENTS)
    parser.add_argument("--batches", type=int, default=100, help="of a mean")
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0, help="of the first weights")
    parser.add_argument("--steps", type=int, default=600)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.table == "methods":
        for method, ascent in product(METHODS, LENGTHS):
            with_clients(method, ascent, 40)
        return
    for name in chosen.nets:
        net = Net(name, chosen.batch_size, chosen.scale)
        if chosen.table == "start":
            start(net, chosen.batches)
        elif chosen.table == "path":
            path(net, chosen.batches, chosen.steps)
        else:
            for ascent in chosen.ascents:
                train(net, ascent, chosen.batches, chosen.steps)


if __name__ == "__main__":
    main()
