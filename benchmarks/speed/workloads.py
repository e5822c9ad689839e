"""The work that is compared, and the split that every contestant is given.

Importable with the standard library and NumPy alone, as the peers' environments have no undrift;
only `write` needs it.

A file of data holds `inputs` (clients, samples, *shape) float32, ready to use, and `targets`
(clients, samples); `test_inputs` and `test_targets` where accuracy means something.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Net = Literal["cnn2", "logistic", "resnet18-gn", "netfleet-cnn", "vector"]


@dataclass(frozen=True)
class Workload:
    title: str
    net: Net
    data: str  # a published data set, or "random"
    shape: tuple[int, ...]
    clients: int
    samples: int  # of each client
    cohort: int  # clients in a round
    batch: int
    steps: int  # local steps of a client in a round
    lr: float
    turn: int = 1  # rounds in a row; more where they are too short for the clock
    starting: int = 0  # steps that each client takes once more before the first round
    rounds: int = 1  # of what a turn plays; more are a whole run, from its start to its end
    stem: int = 3  # of a ResNet: 3x3, or 7x7 with stride 2 and max-pooling

    @property
    def epochs(self) -> int | None:
        """Return the passes over the local data, if the steps are a multiple of them."""
        passes, rest = divmod(self.steps * self.batch, self.samples)
        return passes if rest == 0 and self.samples % self.batch == 0 else None

    def amount(self, *, first: bool = False) -> Amount:
        """Return the amount of the first or of a later round."""
        steps = self.cohort * (self.steps * self.rounds + (self.starting if first else 0))
        return Amount(steps, steps * self.batch)


class Amount(NamedTuple):
    """Holds what one round has to do, over all of its clients."""

    steps: int
    samples: int


FASHION = ("fashion-mnist", (1, 28, 28), 100, 600)
CIFAR_LIKE = ("random", (3, 32, 32), 100, 100)
WORKLOADS: dict[str, Workload] = {
    "W1": Workload("small CNN", "cnn2", *FASHION, 10, 50, 60, 0.05),
    "W1b10": Workload("logistic, 10 clients", "logistic", *FASHION, 10, 20, 100, 0.01, turn=5),
    "W1b100": Workload("logistic, 100 clients", "logistic", *FASHION, 100, 20, 100, 0.01),
    # What a user waits for: a short run with nothing compiled or remembered, and no test set.
    "W1run": Workload(
        *("logistic, a whole run of 8 rounds", "logistic", *FASHION, 100, 20, 20, 0.01), rounds=8
    ),
    "W2": Workload("ResNet-18-GN", "resnet18-gn", *CIFAR_LIKE, 10, 50, 2, 0.01),
    "W3": Workload("ResNet-18-GN, 7x7 stem", "resnet18-gn", *CIFAR_LIKE, 10, 50, 2, 0.01, stem=7),
    "G1": Workload(
        *("gossip, NET-FLEET", "netfleet-cnn", "mnist", (1, 28, 28), 50, 1200, 50, 32, 10, 0.01),
        starting=1,
    ),
    # One synchronisation of AlexNet's size; there is no data and no gradient.
    "A1": Workload("one-bit ring", "vector", "random", (7_212_874,), 8, 1, 8, 1, 1, 1.0, turn=3),
}
WORK = Path(__file__).resolve().parent / ".work"  # where files of data and logs go
DIRICHLET = 0.3
CLASSES = 10


class Data(NamedTuple):
    inputs: NDArray[np.float32]
    targets: NDArray[np.int64]
    test_inputs: NDArray[np.float32]  # empty where accuracy means nothing
    test_targets: NDArray[np.int64]


def read(path: str | Path) -> Data:
    with np.load(path) as stored:
        return Data(*(stored[name] for name in Data._fields))


def write(name: str, folder: Path) -> tuple[Path, str]:
    """Write the data of a workload once; return the file and a sentence that describes it."""
    workload = WORKLOADS[name]
    train, test, prepare = _published(workload)
    origin = workload.data if prepare else "random"
    shape = "x".join(map(str, workload.shape))
    place = folder / f"{origin}-{shape}-{workload.clients}x{workload.samples}.npz"
    note = place.with_suffix(".json")
    if not (place.exists() and note.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        data = _random(workload) if prepare is None else _split(workload, train, test, prepare)
        from undrift.files import atomic_file

        with atomic_file(place) as part, part.open("wb") as file:
            np.savez(file, **data._asdict())
        note.write_text(json.dumps(_sentence(workload, origin)))
    return place, json.loads(note.read_text())


def _sentence(workload: Workload, origin: str) -> str:
    if workload.net == "vector":
        return "random vectors"
    if origin == "random":
        missing = f" as {workload.data} is not here" if workload.data != "random" else ""
        return f"random samples of shape {workload.shape}{missing}"
    law = "iid" if workload.net == "netfleet-cnn" else f"Dirichlet {DIRICHLET}, equal sizes"
    return f"{origin}, {workload.clients} x {workload.samples} samples, {law}"


def _published(workload: Workload) -> tuple[Any, Any, Any]:
    """Return stored training and test pairs and their preparation, or None three times."""
    if workload.data == "random":
        return None, None, None
    import undrift as ud
    from undrift.data.datasets import find

    if find(workload.data) is None:
        return None, None, None
    dataset = ud.data.load(workload.data)
    return dataset.stored_train, dataset.stored_test, dataset.prepare


def _split(workload: Workload, train: Any, test: Any, prepare: Any) -> Data:
    import torch

    from undrift.data import partition

    inputs, targets = train
    if workload.net == "netfleet-cnn":
        parts = partition.iid(targets, workload.clients)
    else:
        parts = partition.dirichlet(targets, workload.clients, DIRICHLET)
    index = np.stack([part[: workload.samples] for part in parts])
    ready = prepare.plain() if hasattr(prepare, "plain") else prepare

    def prepared(images: Any) -> NDArray[np.float32]:
        return np.asarray(ready(images, torch.float32).numpy(), dtype=np.float32)

    dealt = prepared(inputs)[index]
    test_inputs, test_targets = test
    return Data(dealt, targets.numpy()[index], prepared(test_inputs), test_targets.numpy())


def _random(workload: Workload) -> Data:
    rng = np.random.default_rng(0)
    if workload.net == "vector":  # made by the contestant: it is no data set
        return Data(*(np.zeros(0, dtype) for dtype in (np.float32, np.int64) * 2))
    dealt = workload.clients, workload.samples
    inputs = rng.standard_normal((*dealt, *workload.shape), dtype=np.float32)
    targets = rng.integers(CLASSES, size=dealt)
    return Data(inputs, targets, inputs[:0, 0], targets[:0, 0])
