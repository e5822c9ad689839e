"""Loss and top-1 accuracy of model vectors, in batches and without dropout.

A kernel's forward half scores them where the model has one, and otherwise torch, on several threads
if a batch is small. The sum is over all batches in order, whoever had which.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core import Vector
from undrift.data.clients import Clients, Pair
from undrift.engine.execution.memory import retain_freed_memory
from undrift.engine.execution.threads import TaskCopies, intra_op_threads, ordered_thread_map
from undrift.engine.participation import Floats
from undrift.engine.parts import (
    WeightedPart,
    client_parts,
    held_out_parts,
    in_batches,
    shares,
    training_parts,
)
from undrift.engine.world import Placement, World
from undrift.gradients.kernels import ForwardKernel
from undrift.gradients.task import Task, per_sample
from undrift.models.layout import eval_mode
from undrift.tasks import MetricSet
from undrift.tasks.measures import rmse

ALL_AT_ONCE = 2**62  # the size of batches for a loss that is not a mean over samples
CACHED_ELEMENTS = 2**22  # inputs and activations of a batch that stay in the processor's cache
SMALLEST_BATCH, LARGEST_BATCH = 50, 1000  # deep nets are slow on fewer, others no faster on more
THREADED_ELEMENTS = 5_000_000  # of a batch up to which several fit side by side


class Score(NamedTuple):
    """Holds what an evaluation found."""

    loss: float
    accuracy: float | None  # None when the targets are not class labels


class ClientValues(NamedTuple):
    """Holds what a test has found at each client that has samples, in the order of the clients.

    A metric that is not defined for a client's samples is NaN.
    """

    which: str  # of the clients' samples: "test", "validation" or "training"
    clients: tuple[int, ...]
    samples: NDArray[np.int64]
    values: dict[str, Floats]  # by metric


class _PartScore(NamedTuple):
    """Holds the weighted sums of a part."""

    loss: float = 0.0
    accuracy: float = 0.0
    unlabelled: float = 0.0  # 1 if its targets are no labels
    pair: Pair | None = None  # outputs and targets, where metrics need them


def batch_for(parameters: int, elements: int) -> int:
    """Return the samples of a forward pass whose activations fit the cache.

    `elements` are the numbers of one sample. A model whose parameters do not fit is read anew for
    each batch, which should then be as much work as reading it.
    """
    fitting = max(CACHED_ELEMENTS, 2 * parameters) // max(1, elements)
    return max(SMALLEST_BATCH, min(LARGEST_BATCH, fitting))


@dataclass(frozen=True)
class Evaluator:
    """Evaluates vectors of parameters on the data of a run, in batches; processes share them."""

    task: Task
    clients: Clients
    population: Floats
    batch: int
    elements: int  # numbers of one sample: inputs and activations
    kernel: ForwardKernel | None = None  # what scores models; None for torch
    metrics: MetricSet = MetricSet()
    threads: int = 1
    world: World = World()

    def score(
        self,
        x: Vector,
        *,
        on_training_data: bool = False,
        held_out: str = "test",
        most: int | None = None,
    ) -> Score:
        """Return loss and accuracy on the test set, or the validation set.

        Without a test set, or `on_training_data`, they are those of the training data as the
        objective weighs it. At most `most` samples are taken, evenly spread over all.
        """
        parts, world = self._parts(on_training_data, held_out, most), self.world
        if self._apart:
            return _total(world.rows(_sums(self._scores([(x, part) for part in parts]))))
        own = [part for i, part in enumerate(parts) if i % world.size == world.rank]
        scores = [_PartScore()] * len(parts)
        scores[world.rank :: world.size] = self._scores([(x, part) for part in own])
        return _total(world.sum(_sums(scores)))

    @property
    def _apart(self) -> bool:
        """Return whether every rank evaluates its own samples, because no other rank has them."""
        return self.clients.rank_census is not None

    def measure(
        self, x: Vector, *, held_out: str = "test", most: int | None = None
    ) -> tuple[Score, dict[str, float]]:
        """Return the score of `score`, and the metrics of all its outputs together.

        Metrics are no sums over batches, so each process computes all outputs where there are some.
        Ranks with data of their own have the mean of their metrics, weighted by their samples.
        """
        if self.metrics.of_loss(self.task.loss):
            score = self.score(x, held_out=held_out, most=most)
            return score, self.metrics.from_loss(score.loss)
        parts = self._parts(False, held_out, most)
        scores = self._scores([(x, part) for part in parts], keep=True)
        pairs = [each.pair for each in scores if each.pair is not None]
        found, count = dict[str, float](), 0
        if pairs:
            outputs, targets = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
            found, count = self.metrics(outputs, targets), len(targets)
        if not self._apart:
            return _total(_sums(scores)), found
        rows = [count, *(found.get(name, math.nan) for name in self.metrics.names)]
        table = self.world.rows(torch.tensor([rows], dtype=torch.float64))
        return _total(self.world.rows(_sums(scores))), _means(self.metrics, table)

    def by_client(self, x: Vector) -> ClientValues:
        """Return by metric a value for each client that has samples."""
        which, found = self._by_own_client(x)
        if self._apart:
            texts = self.world.texts(json.dumps(found))
            found = {int(i): own for text in texts for i, own in json.loads(text).items()}
        clients = sorted(found)
        columns = (
            {name: np.array([found[i][name] for i in clients]) for name in found[clients[0]]}
            if clients
            else {}
        )
        samples = columns.pop("samples", np.array([])).astype(np.int64)
        return ClientValues(which, tuple(clients), samples, columns)

    def _by_own_client(self, x: Vector) -> tuple[str, dict[int, dict[str, float]]]:
        """Return the metrics of every client that has samples in this process."""
        which, pool, owners = self.clients.samples_of_clients()
        order = np.argsort(owners, kind="stable")
        rows = torch.from_numpy(order)
        jobs = [(x, part) for part in in_batches(pool, rows, self.batch)]
        pairs = [each.pair for each in self._scores(jobs, keep=True) if each.pair is not None]
        if not pairs:
            return which, {}
        outputs, targets = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
        sizes = np.bincount(owners[owners >= 0], minlength=len(self.clients))
        strangers = int((owners < 0).sum())  # samples that no client owns come first
        sections = sizes.tolist()
        own = zip(
            torch.split(outputs[strangers:], sections),
            torch.split(targets[strangers:], sections),
            strict=True,
        )
        return which, {
            i: {"samples": len(each[1]), **self._values(*each)}
            for i, each in enumerate(own)
            if len(each[1])
        }

    def _values(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return loss, accuracy where there are classes, and metrics of some samples."""
        values = {"loss": float(self.task.loss(outputs, targets))}
        if not targets.is_floating_point() and outputs.ndim == targets.ndim + 1:
            values["accuracy"] = float((outputs.argmax(1) == targets).double().mean())
        return values | self.metrics(outputs, targets)

    def _parts(self, on_training_data: bool, held_out: str, most: int | None) -> list[WeightedPart]:
        """Return the batches of a test."""
        clients = self.clients
        if getattr(clients, held_out) is not None and not on_training_data:
            return held_out_parts(clients, held_out, most, self.batch)
        if self.batch == ALL_AT_ONCE:
            return client_parts(clients, self.population)
        return training_parts(clients, self.population, most, self.batch)

    def accuracies(self, models: Tensor, ids: Sequence[int], samples: int | None) -> list[float]:
        """Return the accuracy of each row of `models`, which are those of these nodes.

        Each node has so many samples of the test set, or of the training data, or all of them. The
        nodes' samples interleave: if they are few, no two nodes have the same. Where every rank has
        data of its own, they are of those, and a rank without any has no accuracies.
        """
        clients = self.clients
        if self._apart:
            ids = range(len(ids))
        pool = clients.test or (clients.inputs, clients.targets)
        index = np.arange(len(pool[1])) if clients.test is not None else clients.index
        held, nodes = torch.from_numpy(index), len(ids) if self._apart else len(clients)
        total = len(held)
        if not total:
            return []
        count = total if samples is None else min(samples, total)
        # Node i of m has its samples at i / m of each step through all of them.
        places = (torch.arange(count) * nodes + torch.tensor(ids)[:, None]) * total
        rows = held[places // (count * nodes)]
        with intra_op_threads(0):
            found = self._accuracies_by_kernel(models, pool, rows)
        if found is not None:
            return found
        jobs = [
            (x, part)
            for x, own in zip(models, rows, strict=True)
            for part in in_batches(pool, own, self.batch)
        ]
        scores = self._scores(jobs)
        each = len(scores) // len(models)
        return [sum(s.accuracy for s in scores[i : i + each]) for i in range(0, len(scores), each)]

    def _accuracies_by_kernel(self, models: Tensor, pool: Pair, rows: Tensor) -> list[float] | None:
        """Return the accuracies of all models in one call for some samples of each, or None."""
        if self.kernel is None:
            return None
        hits = torch.zeros(len(models), dtype=torch.float64)
        some = max(1, self.batch // len(models))  # samples of each model
        for start in range(0, rows.shape[1], some):
            own = rows[:, start : start + some]
            index, place = torch.unique(
                own, return_inverse=True
            )  # Samples are prepared once for all.
            inputs, targets = self.task.prepared(pool[0][index]), self.task.cast(pool[1][index])
            found = self.kernel(models, inputs, targets, place, self.threads)
            if found is None or found.hits is None:
                return None
            hits += found.hits.sum(1)
        return (hits / rows.shape[1]).tolist()

    def _scores(
        self, jobs: Sequence[tuple[Vector, WeightedPart]], *, keep: bool = False
    ) -> list[_PartScore]:
        """Return the scores of models on parts, with the outputs if they are to be kept."""
        largest = min(self.batch, max((len(part.pool[1]) for _, part in jobs), default=0))
        elements = self.elements * largest
        at_once = min(self.threads, len(jobs))
        kernel = None if keep else self.kernel  # A kernel gives no outputs.
        if at_once > 1 and elements <= THREADED_ELEMENTS and kernel is None:
            copies = TaskCopies(self.task)
            waiting = [_job(copies, x, part, keep) for x, part in jobs]
            with retain_freed_memory(elements * 4):
                return list(ordered_thread_map(waiting, at_once))
        with ExitStack() as stack:
            # Torch's threads go on waiting for work and would keep a kernel's from the cores.
            stack.enter_context(intra_op_threads(elements if kernel is None else 0))
            stack.enter_context(retain_freed_memory(elements * 4))
            stack.enter_context(eval_mode(self.task.model))
            stack.enter_context(torch.no_grad())
            return [_score(self.task, x, part, kernel, self.threads, keep) for x, part in jobs]

    def gradient(self, x: Vector) -> Vector:
        """Return the gradient at x of sum_i w_i F_i over all training data, without dropout."""
        task, total = self.task, torch.zeros_like(x)
        with eval_mode(task.model), torch.enable_grad():
            for i in Placement.of(self.clients, self.world).nodes(len(self.clients)):
                for share, inputs, targets in shares(self.clients[i], self.batch):
                    leaf = x.detach().requires_grad_()
                    outputs = task.forward(leaf, task.prepared(inputs))
                    loss = task.loss(outputs, task.cast(targets))
                    gradient = torch.autograd.grad(loss, leaf)[0]
                    total = total + self.population[i] * share * gradient
        return self.world.sum(total) + task.weight_decay * x

    def training_batches(self, batch: int) -> Iterator[tuple[float, Tensor, Tensor]]:
        """Yield all training data in batches, each behind its weight in the objective."""
        for i in np.flatnonzero(self.population > 0):
            for share, inputs, targets in shares(self.clients[int(i)], batch):
                yield float(self.population[i]) * share, inputs, targets


def _job(
    copies: TaskCopies, x: Vector, part: WeightedPart, keep: bool
) -> Callable[[Event], _PartScore]:
    """Return a job that scores a part with a copy of the model."""

    def run(stop: Event) -> _PartScore:
        with copies.borrow() as task, eval_mode(task.model):
            return _score(task, x, part, None, 1, keep)

    return run


def _sums(scores: Sequence[_PartScore]) -> Tensor:
    """Return (parts, 3) the sums of each part."""
    return torch.tensor([each[:3] for each in scores], dtype=torch.float64).reshape(-1, 3)


def _total(sums: Tensor) -> Score:
    losses, accuracies, unlabelled = sums.T.tolist()
    return Score(sum(losses), None if any(unlabelled) else sum(accuracies))


def _means(metrics: MetricSet, table: Tensor) -> dict[str, float]:
    """Return the weighted mean of each metric over the ranks that have one.

    A row of the table is a rank's weight and its metrics. Of roots of means it is that of squares.
    """
    means = {}
    for i, metric in enumerate(metrics.metrics, 1):
        some = table[~table[:, i].isnan() & (table[:, 0] > 0)]
        power = 2 if metric.function is rmse else 1
        total = (
            float(some[:, 0] @ some[:, i] ** power / some[:, 0].sum()) if len(some) else math.nan
        )
        means[metric.name] = total ** (1 / power)
    return means


def _score(
    task: Task,
    x: Vector,
    part: WeightedPart,
    kernel: ForwardKernel | None,
    threads: int,
    keep: bool,
) -> _PartScore:
    """Return the weighted loss and accuracy of a part, and whether its targets are no labels."""
    stored, targets = part.samples
    inputs, targets = task.prepared(stored), task.cast(targets)
    found = None if kernel is None else kernel(x[None], inputs, targets, None, threads)
    if found is not None:
        loss = _weighted(found.losses[0], part.weights)
        if found.hits is None:
            return _PartScore(loss, unlabelled=1.0)
        return _PartScore(loss, _weighted(found.hits[0], part.weights))
    outputs = task.forward(x, inputs)
    if isinstance(part.weights, float):
        loss = part.weights * float(task.loss(outputs, targets))
    else:
        loss = _weighted(per_sample(task.loss, outputs, targets), part.weights)
    pair = (outputs.cpu(), targets.cpu()) if keep else None
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1:
        return _PartScore(loss, unlabelled=1.0, pair=pair)
    hits = outputs.argmax(1) == targets
    return _PartScore(loss, _weighted(hits, part.weights), pair=pair)


def _weighted(values: Tensor, weights: Tensor | float) -> float:
    """Return the weighted sum of values of samples; a sample may have several, say one a letter."""
    if isinstance(weights, float):
        return weights * float(values.double().mean())
    own = values.double().cpu()
    return float((weights * (own.flatten(1).mean(1) if own.ndim > 1 else own)).sum())
