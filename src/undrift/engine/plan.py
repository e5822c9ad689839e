"""The plan of a round: who takes part, how much each runs, and which samples each step sees."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift import keyed
from undrift.core import Cohort
from undrift.data.availability import Register
from undrift.data.clients import Clients
from undrift.data.work import Work
from undrift.devices import Fleet, Trace
from undrift.engine.participation import Floats, Ids, Participation, Sample, WithReplacement
from undrift.errors import UndriftError


@dataclass(frozen=True)
class Plan:
    """One round, decided before any work."""

    t: int
    ids: Ids  # distinct clients, ascending
    weights: Floats  # in the mean of the uploads, sum one
    counts: NDArray[np.int64]  # K_i
    cohort: Cohort
    share: float = 1.0  # of the population that was registered before this round
    missed: int = 0  # clients that were chosen and failed, or had no time for a single step
    start: float = 0.0  # on the simulated clock, after waiting for somebody to be there

    @property
    def mean_count(self) -> float:
        mean = math.fsum(self.weights * self.counts)
        # Equal K_i must give exactly K: methods compare K_i with this mean.
        return float(round(mean)) if math.isclose(mean, round(mean), rel_tol=1e-12) else mean

    def groups(
        self, chunk: int, among: NDArray[np.int64] | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Positions in the cohort, all or those of `among`, `chunk` at a time."""
        order = np.arange(len(self.ids)) if among is None else among
        for start in range(0, len(order), chunk):
            yield order[start : start + chunk]

    def by_falling_work(self, among: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Single positions, the longest first: side by side all then end at about the same time."""
        return iter(among[np.argsort(-self.counts[among], kind="stable")][:, None])

    def groups_of_like_work(
        self, chunk: int, row_cost: float, among: NDArray[np.int64] | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Positions, all or those of `among`, by falling K_i, at most `chunk` at a time.

        A group runs as long as its first client, the others masked when they are done. So one that
        ends much earlier starts a new group, where the steps that adds cost less than the rows it
        saves; `row_cost` is the price of a client's row in a step, that of the step itself being 1.
        """
        given = np.arange(len(self.ids)) if among is None else among
        order = given[np.argsort(-self.counts[given], kind="stable")]
        start = 0
        for i in range(1, len(order) + 1):
            if i < len(order) and i < start + chunk:
                longest, own = self.counts[order[start]], self.counts[order[i]]
                waiting = min(start + chunk, len(order)) - i
                if own >= (longest - own) * waiting * row_cost:
                    continue
            yield order[start:i]
            start = i


class ReplacementCohort(Cohort):
    """A cohort drawn with replacement: whoever reads `mass` keeps a dual that it cannot serve."""

    def __getattribute__(self, name: str) -> Any:
        if name == "mass":
            warnings.warn(
                "A mean of duals over all clients needs cohorts without replacement to be exact; "
                "use a fixed size or Bernoulli participation.",
                stacklevel=2,
            )
        return super().__getattribute__(name)


class Eligible(NamedTuple):
    """Who can be drawn into a round."""

    present: Ids | None  # None for everybody
    registered: int  # clients that have ever been there
    population: Floats  # their weights, sum one
    share: float  # of the population that was registered before this round


@dataclass(frozen=True)
class Planner:
    clients: Clients
    population: Floats
    participation: Participation
    work: Work
    batch_size: int | None
    seed: int
    fleet: Fleet | None = None

    @property
    def width(self) -> int:
        """Samples of the largest minibatch of all."""
        most = int(self.clients.sizes.max())
        return most if self.batch_size is None else min(self.batch_size, most)

    def check(self, rounds: int) -> None:
        """Refuse a round that nobody could take part in, before the first; others cannot fail."""
        _ = self._trace  # which needs somebody with a weight
        if self.clients.availability is not None or not self.population.all():
            for t in range(rounds):
                self._draw(t, self._there(t))

    def plan(self, t: int, clock: float = 0.0) -> Plan:
        """Round t, which begins at that time of the simulated clock or when somebody is there."""
        there = self._there(t)
        if self._trace is not None:
            clock = self._trace.next_present(clock)
            if clock == math.inf:
                raise UndriftError(
                    f"A round needs clients that are there, got none for round {t + 1} as nobody "
                    "comes back; lengthen the trace, give it a period, or lower rounds."
                )
            there = there._replace(present=self._trace.present(clock, len(self.clients)))
        ids, weights = self._draw(t, there)
        counts = np.array([self._steps(int(i), t) for i in ids], dtype=np.int64)
        answers = counts > 0
        if self.fleet is not None:
            answers &= np.array([not self.fleet.drops(t, int(i)) for i in ids], dtype=np.bool_)
        if weights[answers].sum() <= 0:  # nobody, or nobody that counts
            answers[:] = False
        missed = int((~answers).sum())
        if missed:  # those who answer are weighted among themselves; maybe there are none
            ids, counts, weights = ids[answers], counts[answers], weights[answers]
            weights = weights / weights.sum() if len(ids) else weights
        kind = ReplacementCohort if isinstance(self.participation, WithReplacement) else Cohort
        cohort = kind(t, there.registered, len(ids), math.fsum(there.population[ids]))
        return Plan(t, ids, weights, counts, cohort, there.share, missed, clock)

    def _draw(self, t: int, there: Eligible) -> Sample:
        return self.participation.sample(t, there.population, self.seed, there.present)

    def _there(self, t: int) -> Eligible:
        population = self.population
        if self._register is None:
            return Eligible(None, len(population), population, 1.0)
        present = self._register.present(t)
        registered = self._register.up_to(t)
        total = math.fsum(population[registered])
        if len(present) == 0 or total <= 0:
            raise ValueError(
                f"A round needs clients with weight that are there, got none in round {t + 1}; "
                "change the availability or the weights."
            )
        share = math.fsum(population[self._register.up_to(t - 1)]) / total if t else 1.0
        known = np.where(registered, population / total, 0.0)
        return Eligible(present, int(registered.sum()), known, share)

    @cached_property
    def _trace(self) -> Trace | None:
        """When those are there who have a weight; the others are not waited for."""
        law = None if self.fleet is None else self.fleet.trace
        if law is None or self.population.all():
            return law
        spans = dict(law.spans)
        return Trace({i: spans[i] for i in spans if self.population[i] > 0}, law.period)

    @cached_property
    def _register(self) -> Register | None:
        law = self.clients.availability
        return None if law is None else Register(law, len(self.clients))

    def _steps(self, client: int, t: int) -> int:
        n = int(self.clients.sizes[client])
        epoch = 1 if self.batch_size is None else math.ceil(n / self.batch_size)
        return self.work.steps(client=client, epoch=epoch, t=t, seed=self.seed)


@dataclass(frozen=True)
class Table:
    """Minibatches of a group of clients: which samples of the pool step k of each client sees."""

    index: Tensor  # (clients, steps, width), padded with a sample of the same client
    lengths: NDArray[np.int64]  # (clients, steps) samples in front of the padding
    running: NDArray[np.bool_]  # (clients, steps) whether the client still runs at this step

    @property
    def steps(self) -> int:
        return int(self.lengths.shape[1])

    def widened(self, width: int) -> Table:
        """With more padding, so that minibatches of all clients have one shape."""
        missing = width - self.index.shape[2]
        padding = self.index[:, :, :1].expand(-1, -1, missing)
        return Table(torch.cat([self.index, padding], 2), self.lengths, self.running)

    @cached_property
    def padded(self) -> bool:
        return bool((self.lengths < self.index.shape[2]).any())

    @cached_property
    def uneven(self) -> bool:
        return not bool(self.running.all())

    @cached_property
    def costs(self) -> list[tuple[int, int, NDArray[np.int64]]]:
        """Per step: clients that run, samples they see together, and each of them."""
        clients = self.running.sum(0)
        each = np.where(self.running, self.lengths, 0).T
        return list(zip(clients.tolist(), each.sum(1).tolist(), each, strict=True))


def minibatches(
    planner: Planner, t: int, ids: Ids, counts: NDArray[np.int64], passed: int, device: torch.device
) -> Table:
    """Steps passed * K_i, ..., (passed + 1) * K_i - 1 of each client's reshuffled epochs."""
    rows = [
        _stream(planner, t, int(i), passed * int(k), int(k))
        for i, k in zip(ids, counts, strict=True)
    ]
    return _pad(rows, device)


def whole(planner: Planner, ids: Ids, device: torch.device) -> Table:
    """All samples of each client in order, in slices of the batch size."""
    rows = []
    for i in ids:
        held = planner.clients.of(int(i))
        size = planner.batch_size or len(held)
        rows.append(_slices(held, size))
    return _pad(rows, device)


_Row = tuple[NDArray[np.int64], NDArray[np.int64]]  # (steps, width) indices, (steps,) lengths


def _slices(order: NDArray[np.int64], size: int) -> _Row:
    """Consecutive slices; the last one padded with the first sample."""
    size = min(size, len(order))
    steps = math.ceil(len(order) / size)
    lengths = np.full(steps, size, dtype=np.int64)
    lengths[-1] = len(order) - (steps - 1) * size
    padding = np.full(steps * size - len(order), order[0])
    return np.concatenate([order, padding]).reshape(steps, size), lengths


def _stream(planner: Planner, t: int, client: int, start: int, count: int) -> _Row:
    held = planner.clients.of(client)
    size = planner.batch_size or len(held)
    if size >= len(held):  # the whole local data at every step: the order does not matter
        return np.broadcast_to(held, (count, len(held))), np.full(count, len(held), dtype=np.int64)
    epoch_steps = math.ceil(len(held) / size)
    first, last = start // epoch_steps, (start + count - 1) // epoch_steps
    orders = np.empty((last + 1 - first, epoch_steps * size), dtype=np.int64)
    for row, e in zip(orders, range(first, last + 1), strict=True):
        row[: len(held)] = keyed.permutation(held, planner.seed, "batches", t, client, e)
        row[len(held) :] = row[0]
    mine = slice(start - first * epoch_steps, start - first * epoch_steps + count)
    lengths = np.full((len(orders), epoch_steps), size, dtype=np.int64)
    lengths[:, -1] = len(held) - (epoch_steps - 1) * size
    return orders.reshape(-1, size)[mine], lengths.reshape(-1)[mine]


def _pad(rows: list[_Row], device: torch.device) -> Table:
    steps = max(len(lengths) for _, lengths in rows)
    width = max(index.shape[1] for index, _ in rows)
    table = np.empty((len(rows), steps, width), dtype=np.int64)
    all_lengths = np.full((len(rows), steps), width, dtype=np.int64)
    running = np.zeros((len(rows), steps), dtype=np.bool_)
    for i, (index, lengths) in enumerate(rows):
        table[i] = index[0, 0]
        table[i, : len(index), : index.shape[1]] = index
        all_lengths[i, : len(lengths)] = lengths
        running[i, : len(lengths)] = True
    return Table(torch.from_numpy(table).to(device), all_lengths, running)
