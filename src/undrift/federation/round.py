"""One round of a federation as a function of what was before it; nothing is changed in place.

Replies are validated one by one, and a client that is left out makes the round the one without it.
A prelude's answers are in the broadcast that follows them, so a round in which somebody is left out
after the first exchange is asked for again, of the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from undrift import tree
from undrift.aggregation.uploads import CohortUploads
from undrift.aggregation.validation import Fault, UsualSizes
from undrift.core import Cohort, Federated, Prelude, Vector
from undrift.engine.execution.aggregate import norm_of
from undrift.engine.participation import Floats, Ids
from undrift.engine.plan import Plan
from undrift.federation.forms import pack_request, reply_form
from undrift.federation.members import Ledger
from undrift.federation.messages import (
    NO_VERSION,
    ExchangeRequest,
    SiteMessage,
    Stage,
    StateName,
    encode,
)
from undrift.federation.replies import Replies
from undrift.federation.transport import SiteTransport


@dataclass
class RoundCost:
    """Counts what a round costs, attempts that had to be repeated included."""

    gradients: int = 0
    samples: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True, kw_only=True)
class RoundSetting:
    """Holds what all attempts at a round have in common."""

    algorithm: Federated[Any, Any, Any, Any]
    experiment: str  # its digest
    transport: SiteTransport
    ledger: Ledger
    keep: Mapping[int, StateName]  # the oldest state of each client that may still be asked for
    population: Floats
    x0: Vector
    sizes: tuple[int, ...]  # coordinates of each of the model's tensors
    width: int  # samples of the largest minibatch of all clients
    needed: int  # clients that must be counted, or the round is void
    usual_sizes: UsualSizes  # of uploads; it learns


@dataclass(frozen=True)
class Outcome:
    """Holds what a round changes."""

    server: Any
    ledger: Ledger
    counted: int  # clients whose uploads are in the model, 0 in a void round
    left_out: Mapping[str, str] = field(default_factory=dict)  # site and reason


def run_round(setting: RoundSetting, server: Any, plan: Plan, cost: RoundCost) -> Outcome:
    """Return the outcome of a round; `cost` changes, and what is usual."""
    left_out: dict[str, str] = {}
    attempt = 0
    while len(plan.ids) >= setting.needed:
        tried = _Attempt(setting, server, plan, attempt, cost)
        outcome = tried.run()
        left_out |= tried.left_out
        if outcome is not None:
            return replace(outcome, left_out=left_out)
        plan = _among(plan, tried.sound, setting.population)
        attempt += 1
    return Outcome(server, setting.ledger, 0, left_out)


class _Attempt:
    """Runs a round once, with its one or two exchanges."""

    def __init__(
        self, setting: RoundSetting, server: Any, plan: Plan, attempt: int, cost: RoundCost
    ) -> None:
        self._setting, self._algorithm, self._server = setting, setting.algorithm, server
        self._plan, self._attempt, self._cost = plan, attempt, cost
        self._counted = dict(setting.ledger.counted)
        self._steps = dict(setting.ledger.steps)
        self._first_down = setting.algorithm.broadcast(server)
        self.left_out: dict[str, str] = {}
        self.sound = [int(i) for i in plan.ids]  # clients that have not been left out

    def run(self) -> Outcome | None:
        """Return the outcome, or None if the round must be asked for again of those `sound`."""
        algorithm, server, plan = self._algorithm, self._server, self._plan
        asked = self._asked()
        if isinstance(algorithm, Prelude) and len(asked):
            part = plan.part(asked)
            answers = self._exchange("answer", algorithm.ask(server), part)
            if len(answers) < len(part.ids):
                return None
            server = algorithm.hear(server, self._mean(part, answers), part.cohort)
        uploads = self._exchange("upload", algorithm.broadcast(server), plan)
        if len(uploads) < len(plan.ids):
            if len(asked):
                return None
            plan = _among(plan, self.sound, self._setting.population)
        if len(plan.ids) < self._setting.needed:
            return Outcome(self._server, self._setting.ledger, 0)
        state = algorithm.update(server, self._mean(plan, uploads), plan.cohort)
        ledger = replace(self._setting.ledger, counted=self._counted, steps=self._steps)
        return Outcome(state, ledger, len(plan.ids))

    def _asked(self) -> Ids:
        """Return the positions of those whom the server asks before its broadcast."""
        everybody = np.arange(len(self._plan.ids))
        algorithm = self._algorithm
        if not isinstance(algorithm, Prelude) or algorithm.asks == "nobody":
            return everybody[:0]
        if algorithm.asks == "all":
            return everybody
        return np.flatnonzero([int(i) not in self._counted for i in self._plan.ids])

    def _exchange(self, stage: Stage, down: Any, plan: Plan) -> dict[int, Any]:
        """Return what the clients of a plan send, as trees; those left out are not in it."""
        setting = self._setting
        names = {setting.ledger.members[int(i)].name: int(i) for i in plan.ids}
        requests = {}
        for name, steps in zip(names, plan.counts.tolist(), strict=True):
            message = self._request(stage, down, plan, names[name], steps)
            self._cost.bytes_down += message.nbytes
            requests[name] = encode(message)
        form = reply_form(self._algorithm, setting.x0, stage, setting.sizes)
        bases = {name: self._base(client) for name, client in names.items()}
        replies = Replies(setting.transport.ask(requests), names, bases)
        uploads, states = {}, {}
        for name, header, tensors in replies.exchanges(plan.t, stage, self._attempt, form):
            self._cost.gradients += header.gradients
            self._cost.samples += header.samples
            self._cost.bytes_up += SiteMessage(header, tensors).nbytes
            if header.next_steps is not None and stage == "upload":
                self._steps[names[name]] = header.next_steps
            states[names[name]] = StateName(2 * plan.t + (stage == "upload"), header.token)
            wire = tree.with_leaves(form, tensors)
            uploads[names[name]] = wire if stage == "answer" else self._algorithm.unpack(wire)
        for i, reason in self._bad(stage, plan, uploads).items():
            replies.left_out[setting.ledger.members[i].name] = reason
            del uploads[i]
        self.left_out |= replies.repeated | replies.left_out
        bad = {names[name] for name in replies.left_out}
        self.sound = [i for i in self.sound if i not in bad]
        self._counted |= {i: states[i] for i in uploads}
        return uploads

    def _base(self, client: int) -> StateName:
        """Return the name of the state from which a client starts."""
        return self._counted.get(client, StateName())

    def _request(self, stage: Stage, down: Any, plan: Plan, client: int, steps: int) -> SiteMessage:
        setting = self._setting
        base = self._base(client)
        header = ExchangeRequest(
            experiment=setting.experiment,
            client=client,
            t=plan.t,
            stage=stage,
            attempt=self._attempt,
            base=base.version,
            token=base.token,
            keep=setting.keep.get(client, StateName()).version,
            steps=steps,
            mean_count=plan.mean_count,
            width=setting.width,
        )
        new = base.version == NO_VERSION
        return SiteMessage(header, pack_request(down, self._first_down, setting.x0, stage, new=new))

    def _mean(self, plan: Plan, uploads: Mapping[int, Any]) -> Any:
        """Return the weighted mean of what clients sent, added in the simulator's order."""
        total = CohortUploads(plan.ids, plan.weights, hold=False)
        for position in plan.by_falling_work(np.arange(len(plan.ids))):
            i = int(plan.ids[position[0]])
            total.add([i], tree.map(lambda leaf: leaf[None], uploads[i]))
        return total.total

    def _bad(self, stage: Stage, plan: Plan, uploads: Mapping[int, Any]) -> dict[int, str]:
        """Return the clients whose uploads must not count, with the reason."""
        checked = CohortUploads(plan.ids, plan.weights, hold=True)
        for i, upload in uploads.items():
            checked.add([i], tree.map(lambda leaf: leaf[None], upload))
        faults, norms = checked.findings()
        scale = norm_of(self._server.x)
        large = self._setting.usual_sizes.oversized(stage, norms, plan.counts, scale)
        faults[large] = Fault.NORM
        bad = [p for p in np.flatnonzero(faults) if faults[p] != Fault.MISSING]
        return {int(plan.ids[p]): Fault(faults[p]).reason for p in bad}


def _among(plan: Plan, ids: list[int], population: Floats) -> Plan:
    """Return the round of these clients alone; K_i and their mean stay as announced."""
    kept = np.isin(plan.ids, ids)
    weights = plan.weights[kept]
    weights = weights / weights.sum() if len(weights) else weights
    mass = math.fsum(population[plan.ids[kept]])
    cohort = Cohort(plan.t, plan.cohort.population, int(kept.sum()), mass)
    return replace(
        plan, ids=plan.ids[kept], weights=weights, counts=plan.counts[kept], cohort=cohort
    )
