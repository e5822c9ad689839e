"""The plan of a round: its cohort, drawn by a law of participation, and each client's steps.

A plan needs the sizes and the availability of the clients, which are a `Census`, and none of their
samples. Which samples a step sees is decided in `execution/tables.py`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from undrift.core import Cohort
from undrift.data.availability import Availability, Register
from undrift.data.work import Work
from undrift.engine.participation import Floats, Ids, Participation, Sample, WithReplacement
from undrift.errors import UndriftError
from undrift.fleet import Fleet, Trace

Counts = NDArray[np.int64]


class Census(Protocol):
    """Says what a server may know of its clients: how many there are, their sizes, their presence.

    `Clients` is a census. A server whose clients keep their samples plans with one that holds no
    data.
    """

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the number of samples of every client."""
        ...

    @property
    def availability(self) -> Availability | None:
        """Return the law of who is present in which round, None where everybody always is."""
        ...

    def __len__(self) -> int:
        """Return the number of clients."""
        ...


def mean_steps(weights: Floats, counts: Counts) -> float:
    """Return sum_i w_i K_i, which is exactly K where every K_i is K."""
    mean = math.fsum(weights * counts)
    # Methods compare K_i with the mean, so equal K_i must not differ from it by a rounding error.
    return float(round(mean)) if math.isclose(mean, round(mean), rel_tol=1e-12) else mean


@dataclass(frozen=True)
class Plan:
    """Holds the decisions of one round, which are made before any work."""

    t: int
    ids: Ids  # distinct clients, ascending
    weights: Floats  # in the mean of the uploads, sum one
    counts: Counts  # K_i
    mean_count: float  # sum_i w_i K_i
    cohort: Cohort
    share: float = 1.0  # of the population that was registered before this round
    missed: int = 0  # clients that were chosen and failed, or had no time for a single step
    start: float = 0.0  # on the simulated clock, after waiting until somebody is present

    @classmethod
    def equal(cls, ids: Ids, steps: int | Sequence[int], population: int, t: int = 0) -> Plan:
        """Return a round of these clients with equal weights, which nothing has drawn.

        `steps` is K_i, one number for all clients or one for each.
        """
        size = len(ids)
        weights = np.full(size, 1 / size)
        counts = np.broadcast_to(np.asarray(steps, dtype=np.int64), size).copy()
        cohort = Cohort(t, population, size, size / population)
        return cls(t, ids, weights, counts, mean_steps(weights, counts), cohort)

    def part(self, positions: NDArray[np.int64]) -> Plan:
        """Return the same round for the clients at these positions alone."""
        if len(positions) == len(self.ids):
            return self
        weights = self.weights[positions]
        share = math.fsum(weights)
        cohort = replace(self.cohort, size=len(positions), mass=self.cohort.mass * share)
        return replace(
            self,
            ids=self.ids[positions],
            weights=weights / share if share > 0 else weights,
            counts=self.counts[positions],
            cohort=cohort,
        )

    def groups(
        self, chunk: int, among: NDArray[np.int64] | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield positions in the cohort, all or those of `among`, `chunk` at a time."""
        order = np.arange(len(self.ids)) if among is None else among
        for start in range(0, len(order), chunk):
            yield order[start : start + chunk]

    def by_falling_work(self, among: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield single positions, the longest first, so that threads end at about the same time."""
        return iter(among[np.argsort(-self.counts[among], kind="stable")][:, None])

    def groups_of_like_work(
        self, chunk: int, row_cost: float, among: NDArray[np.int64] | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield positions, all or those of `among`, by falling K_i, at most `chunk` at a time.

        A group runs as long as its first client, and clients that are done are masked. A client
        that ends much earlier starts a new group if the additional steps cost less than the rows
        that are saved; `row_cost` is the price of a client's row in a step, in units of the step.
        """
        positions = np.arange(len(self.ids)) if among is None else among
        order = positions[np.argsort(-self.counts[positions], kind="stable")]
        start = 0
        for i in range(1, len(order) + 1):
            if i < len(order) and i < start + chunk:
                longest, own = self.counts[order[start]], self.counts[order[i]]
                waiting = min(start + chunk, len(order)) - i
                if own >= (longest - own) * waiting * row_cost:
                    continue
            yield order[start:i]
            start = i


@dataclass(frozen=True)
class Assignment:
    """Says what some clients of a round do together; it is all that they are told but the message.

    A client that runs elsewhere gets an assignment of itself alone.
    """

    t: int
    ids: Ids
    counts: Counts  # K_i of each
    mean_count: float  # sum_i w_i K_i over the whole cohort
    seed: int
    batch_size: int | None
    width: int  # samples of the largest minibatch of any client, for oracles that pad minibatches


class ReplacementCohort(Cohort):
    """Is a cohort drawn with replacement, which warns methods that read its `mass`."""

    def __getattribute__(self, name: str) -> Any:
        if name == "mass":
            warnings.warn(
                "A mean of duals over all clients needs cohorts without replacement to be exact; "
                "use a fixed size or Bernoulli participation.",
                stacklevel=2,
            )
        return super().__getattribute__(name)


class Eligible(NamedTuple):
    """Says who can be drawn into a round."""

    present: Ids | None  # None for everybody
    registered: int  # clients that have ever been present
    population: Floats  # their weights, sum one
    share: float  # of the population that was registered before this round


@dataclass(frozen=True)
class Planner:
    """Decides who takes part in each round and how much each client does."""

    census: Census
    population: Floats
    participation: Participation
    work: Work
    batch_size: int | None
    seed: int
    fleet: Fleet | None = None

    @cached_property
    def width(self) -> int:
        """Return the number of samples of the largest minibatch of all clients."""
        most = int(self.census.sizes.max())
        return most if self.batch_size is None else min(self.batch_size, most)

    def check(self, rounds: int) -> None:
        """Raise before the first round if nobody could take part in one of them."""
        _ = self._trace  # A trace needs somebody with a weight, or making it raises.
        if self.census.availability is not None or not self.population.all():
            for t in range(rounds):
                self._draw(t, self._eligible(t))

    def plan(self, t: int, clock: float = 0.0) -> Plan:
        """Return round t, which begins at time `clock` or when the first client is present."""
        eligible = self._eligible(t)
        if self._trace is not None:
            clock = self._trace.next_present(clock)
            if clock == math.inf:
                raise UndriftError(
                    f"A round needs clients that are there, got none for round {t + 1} as nobody "
                    "comes back; lengthen the trace, give it a period, or lower rounds."
                )
            eligible = eligible._replace(present=self._trace.present(clock, len(self.census)))
        ids, weights = self._draw(t, eligible)
        counts = np.array([self._steps(int(i), t) for i in ids], dtype=np.int64)
        answers = counts > 0
        if self.fleet is not None:
            answers &= np.array([not self.fleet.drops(t, int(i)) for i in ids], dtype=np.bool_)
        if weights[answers].sum() <= 0:  # A round without weight is a round without clients.
            answers[:] = False
        missed = int((~answers).sum())
        if missed:  # The clients that answer, if any do, are weighted among themselves.
            ids, counts, weights = ids[answers], counts[answers], weights[answers]
            weights = weights / weights.sum() if len(ids) else weights
        kind = ReplacementCohort if isinstance(self.participation, WithReplacement) else Cohort
        return Plan(
            t=t,
            ids=ids,
            weights=weights,
            counts=counts,
            mean_count=mean_steps(weights, counts),
            cohort=kind(t, eligible.registered, len(ids), math.fsum(eligible.population[ids])),
            share=eligible.share,
            missed=missed,
            start=clock,
        )

    def assign(self, plan: Plan, positions: NDArray[np.int64]) -> Assignment:
        """Return what the clients at these positions of a plan do together."""
        return Assignment(
            t=plan.t,
            ids=plan.ids[positions],
            counts=plan.counts[positions],
            mean_count=plan.mean_count,
            seed=self.seed,
            batch_size=self.batch_size,
            width=self.width,
        )

    def _draw(self, t: int, eligible: Eligible) -> Sample:
        return self.participation.sample(t, eligible.population, self.seed, eligible.present)

    def _eligible(self, t: int) -> Eligible:
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
        """Return when the clients with a weight are present; nobody waits for the others."""
        law = None if self.fleet is None else self.fleet.trace
        if law is None or self.population.all():
            return law
        spans = dict(law.spans)
        return Trace({i: spans[i] for i in spans if self.population[i] > 0}, law.period)

    @cached_property
    def _register(self) -> Register | None:
        law = self.census.availability
        return None if law is None else Register(law, len(self.census))

    def _steps(self, client: int, t: int) -> int:
        n = int(self.census.sizes[client])
        epoch = 1 if self.batch_size is None else math.ceil(n / self.batch_size)
        return self.work.steps(client=client, epoch=epoch, t=t, seed=self.seed)
