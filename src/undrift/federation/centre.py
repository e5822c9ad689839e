"""The centre of a federation: the server's half of every method, without any data.

A round asks the cohort's sites, validates each reply before it is summed, and commits at its end. A
site that does not answer, or whose reply is bad, is left out with its reason, and the round is the
one without it. Below the quorum the round is void and the model stays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from undrift import tree
from undrift.aggregation.policy import UploadPolicy
from undrift.aggregation.validation import UsualSizes
from undrift.core import Vector
from undrift.engine import participation as laws
from undrift.engine.participation import Floats
from undrift.engine.plan import Plan, Planner, mean_steps
from undrift.errors import DivergenceError, UndriftError
from undrift.federation.checkpoints import CentreCheckpoints, CentreState
from undrift.federation.evaluation import SiteEvaluation, SiteScore, evaluate
from undrift.federation.experiment import FederatedExperiment
from undrift.federation.members import Ledger
from undrift.federation.messages import StateName
from undrift.federation.replies import census_of
from undrift.federation.round import Outcome, RoundCost, RoundSetting, run_round
from undrift.federation.transport import SiteTransport
from undrift.models.layout import Layout, sha256
from undrift.optim.schedules import resolve
from undrift.results.record import Record, Totals


class Centre(Iterator[Record]):
    """Runs the server's half of an experiment and yields a record after each round.

    `quorum` is the share (float) or the number (int) of a cohort's sites that must be counted for a
    round to change the model, half of them by default.
    `checkpoint` is the folder from which `resume=True` goes on.
    """

    def __init__(
        self,
        experiment: FederatedExperiment,
        transport: SiteTransport,
        *,
        quorum: float | int | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
    ) -> None:
        self.experiment, self._transport = experiment, transport
        self._policy = UploadPolicy("drop", quorum)
        self._policy.check("A federation")
        self._layout = Layout.of(experiment.model)
        self.x0 = self._layout.gather(experiment.model)
        self.state: Any = resolve(experiment.algorithm, 0).init(self.x0.clone())
        self.round = 0
        self.rounds = experiment.rounds
        self.ledger = Ledger()
        self.totals = Totals()
        self._usual_sizes = UsualSizes()
        self.record: Record | None = None
        self.left_out: dict[str, str] = {}  # of the last round: site and reason
        self.site_scores: dict[str, SiteScore] = {}  # of the last evaluation
        self.untested: dict[str, str] = {}  # of the last round's evaluation: site and reason
        self._checkpoints = None if checkpoint is None else CentreCheckpoints(Path(checkpoint))
        if resume:
            self._resume()
        elif self._checkpoints is not None:
            self._checkpoints.require_empty()
        self.enrol()

    @property
    def x(self) -> Vector:
        """Return the model as a vector."""
        return self.state.x  # type: ignore[no-any-return]

    @property
    def model(self) -> nn.Module:
        """Return a copy of the experiment's model with the current parameters."""
        return self._layout.bind(self.experiment.model, self.x.clone())

    @property
    def model_sha256(self) -> str:
        """Return the hash of the model's parameters."""
        return sha256(self.x)

    def newcomers(self) -> list[str]:
        """Return the names of connected sites that take no part yet."""
        connected = self._transport.sites()
        return [name for name in connected if self.ledger.number(name, self.round) is None]

    def enrol(self, names: Sequence[str] | None = None, *, seconds: float = math.inf) -> list[str]:
        """Return the names of sites that have newly connected, after asking for their census.

        They take part from the next round on. With a method that keeps a mean of duals over all
        clients a newcomer starts with a zero dual. `names` are the newcomers that are asked, all by
        default, and `seconds` how long they may take, if not as long as the transport lets them.
        """
        names = self.newcomers() if names is None else names
        if not names:
            return []
        censuses = census_of(self._transport, names, self.experiment.digest, seconds)
        self.ledger = self.ledger.joined(censuses, self.round)
        laws.parse(self.experiment.participation).check(len(self.ledger), self.rounds)
        return [census.site for census in censuses]

    def leave(self, name: str) -> None:
        """Let a site take part no longer, from the next round on."""
        self.ledger = self.ledger.without(name, self.round)

    def leave_but(self, names: Collection[str]) -> list[str]:
        """Let all sites leave but those named and those that have just joined; return who left."""
        members = [self.ledger.members[i] for i in self.ledger.present(self.round)]
        gone = [m.name for m in members if m.name not in names and m.joined < self.round]
        for name in gone:
            self.leave(name)
        return gone

    def renew(self, name: str) -> None:
        """Let a site whose state is lost go on as a newcomer."""
        self.leave(name)
        self.enrol()

    def __next__(self) -> Record:
        if self.round >= self.rounds:
            raise StopIteration
        if len(self.ledger.present(self.round)) == 0:
            raise UndriftError(
                f"A round needs sites, got none in round {self.round + 1}; start them."
            )
        start = time.perf_counter()
        (plan, width), cost = self._plan(), RoundCost()
        with torch.no_grad():
            outcome = self._run_round(plan, width, cost)
        if not outcome.server.x.isfinite().all():
            raise DivergenceError(
                f"Training needs a finite model, got NaN or Inf from the server update of round "
                f"{self.round + 1}; lower lr or server_lr. The last good state is kept.",
                round=self.round + 1,
                clients=[],
            )
        self.state, self.ledger = outcome.server, outcome.ledger
        self.round += 1
        trained = time.perf_counter()
        self.untested = {}
        tested = self.evaluate().fields() if self._evaluation_due else {}
        record = Record(
            round=self.round,
            clients=outcome.counted,
            bytes_up=cost.bytes_up,
            bytes_down=cost.bytes_down,
            gradients=cost.gradients,
            samples=cost.samples,
            seconds=trained - start,
            evaluation_seconds=time.perf_counter() - trained,
            missed=len(plan.ids) - outcome.counted,
            dropped=self.left_out or None,
            **{"loss": None, "accuracy": None, **tested},
        )
        self.totals.add(record)
        self.record = record
        self.save()
        return record

    def save(self) -> None:
        """Save the last whole round, where there is a folder for it."""
        if self._checkpoints is not None:
            self._checkpoints.write(
                CentreState(
                    experiment=self.experiment.digest,
                    round=self.round,
                    ledger=self.ledger,
                    totals=self.totals,
                    record=self.record,
                    sizes=self._usual_sizes.largest,
                    tensors=[self.x0, *tree.leaves(self.state)],
                )
            )

    @property
    def _evaluation_due(self) -> bool:
        every = self.experiment.evaluate_every
        return self.round % every == 0 or self.round == self.rounds

    def _plan(self) -> tuple[Plan, int]:
        """Return the round, with the steps that sites choose themselves, and its largest batch."""
        experiment = self.experiment
        planner = Planner(
            census=self.ledger,
            population=laws.population_weights(experiment.weighting, self.ledger.sizes),
            participation=laws.parse(experiment.participation),
            work=experiment.work,
            batch_size=experiment.batch_size,
            seed=experiment.seed,
        )
        plan = planner.plan(self.round)
        own = self.ledger.steps
        counts = np.array(
            [own.get(int(i), int(k)) for i, k in zip(plan.ids, plan.counts, strict=True)],
            dtype=np.int64,
        )
        plan = replace(plan, counts=counts, mean_count=mean_steps(plan.weights, counts))
        return plan, planner.width

    def _run_round(self, plan: Plan, width: int, cost: RoundCost) -> Outcome:
        """Run a round and return what it changes; who is left out is noted."""
        algorithm = resolve(self.experiment.algorithm, self.round)
        server = self.state if plan.share == 1 else algorithm.enrol(self.state, plan.share)
        setting = RoundSetting(
            algorithm=algorithm,
            experiment=self.experiment.digest,
            transport=self._transport,
            ledger=self.ledger,
            keep=self._keep(),
            population=self._population(),
            x0=self.x0,
            sizes=tuple(math.prod(shape) for shape in self._layout.shapes),
            width=width,
            needed=self._policy.needed(len(plan.ids)),
            usual_sizes=self._usual_sizes,
        )
        outcome = run_round(setting, server, plan, cost)
        self.left_out = dict(outcome.left_out)
        return outcome

    def _keep(self) -> Mapping[int, StateName]:
        """Return the oldest state of each client that may still be asked for."""
        if self._checkpoints is None:
            return self.ledger.counted
        return self._checkpoints.oldest

    def _population(self) -> Floats:
        """Return the weight of every client among those that have ever been present."""
        weights = laws.population_weights(self.experiment.weighting, self.ledger.sizes)
        known = np.array([member.joined <= self.round for member in self.ledger.members])
        known_weights: Floats = np.where(known, weights, 0) / math.fsum(weights[known])
        return known_weights

    def evaluate(self) -> SiteEvaluation:
        """Return what the sites find about the model, each on its own samples."""
        t = max(0, self.round - 1)
        found = evaluate(self._transport, self.experiment.digest, self.ledger, t, self.x)
        self.site_scores, self.untested = found.scores, dict(found.left_out)
        return found

    def _resume(self) -> None:
        if self._checkpoints is None:
            raise ValueError(
                "resume needs the folder of the checkpoints, got none; pass checkpoint."
            )
        saved = self._checkpoints.latest(self.experiment.digest)
        self.x0, leaves = saved.tensors[0], saved.tensors[1:]
        self.state = tree.with_leaves(self.state, leaves)
        self.round, self.ledger, self.totals = saved.round, saved.ledger, saved.totals
        self.record, self._usual_sizes.largest = saved.record, saved.sizes
