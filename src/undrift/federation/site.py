"""A site: one client's data, its durable state, and its answers to a centre's requests."""

from __future__ import annotations

import copy
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from undrift import tree
from undrift.check import require, require_positive
from undrift.core import Prelude
from undrift.data.clients import Clients
from undrift.engine import participation as laws
from undrift.engine.evaluate import ALL_AT_ONCE, Evaluator, batch_for
from undrift.engine.execution.client import ClientResult, Stage, client_exchange
from undrift.engine.execution.memory import retain_freed_memory
from undrift.engine.execution.pool import ClientSamples, Pool
from undrift.engine.execution.threads import intra_op_threads
from undrift.engine.plan import Assignment, Planner
from undrift.engine.processes.rendezvous import code_digest
from undrift.engine.settings import ExecutionOptions, ExecutionRequest
from undrift.engine.tuning.probe import inspect
from undrift.engine.tuning.select import Workload, choose_execution
from undrift.errors import UndriftError
from undrift.federation.experiment import FederatedExperiment
from undrift.federation.forms import read_request, require_form, state_form
from undrift.federation.messages import (
    NO_VERSION,
    CensusRequest,
    EvaluationReply,
    EvaluationRequest,
    ExchangeReply,
    ExchangeRequest,
    Header,
    LostState,
    SiteCensus,
    SiteMessage,
    StateName,
)
from undrift.federation.refusals import RequestError, Say, log_at_site, refusal
from undrift.federation.states import StateStore
from undrift.gradients.losses import plain_loss
from undrift.gradients.task import Task
from undrift.models.layout import Layout
from undrift.optim.schedules import resolve


class Site:
    """Answers a centre's requests with the data of one client, which never leave it.

    `data` has exactly one client; its test set, if there is one, is this site's own. `folder` keeps
    the client's states. Where the site chooses K_i itself, `steps` is that number, or `seconds` is
    the time that its local steps may take; otherwise the experiment's work decides. `say` writes to
    the site's own log what the centre must not read.
    """

    def __init__(
        self,
        experiment: FederatedExperiment,
        data: Clients,
        folder: str | Path,
        *,
        name: str,
        steps: int | None = None,
        seconds: float | None = None,
        say: Say = log_at_site,
    ) -> None:
        require_own_work(steps, seconds)
        if len(data) != 1:
            raise ValueError(
                f"A site needs the data of one client, got {len(data)}; start a site for each."
            )
        self.experiment, self.data, self.name = experiment, data, name
        self._store = StateStore(Path(folder))
        self._task, self._activations, self._separable = _prepared(experiment, data)
        self._zeros = torch.zeros(self._task.layout.size, dtype=self._task.layout.dtype)
        inputs, targets = self._task.cast(data.inputs), self._task.cast(data.targets)
        self._samples = ClientSamples(inputs, targets, [np.arange(len(targets), dtype=np.int64)])
        self._steps, self._seconds, self._say = steps, seconds, say

    def answer(self, message: SiteMessage) -> SiteMessage:
        """Return the reply to a request; what cannot be done is a refusal with its reason."""
        header = message.header
        try:
            self._require_experiment(header)
            if isinstance(header, CensusRequest):
                return SiteMessage(self.census())
            if isinstance(header, ExchangeRequest):
                return self.exchange(header, message.tensors)
            if isinstance(header, EvaluationRequest):
                return self.evaluate(header, message.tensors)
            raise RequestError(f"A site needs a request, got a message of kind {header!r:.80}.")
        except (UndriftError, ValueError) as error:
            return refusal(self.name, error, self._say)

    def census(self) -> SiteCensus:
        """Return who the site is; of its samples it tells their number and their form."""
        inputs, targets = self.data.inputs, self.data.targets
        form = (
            f"{tuple(inputs.shape[1:])} {inputs.dtype}, {tuple(targets.shape[1:])} {targets.dtype}"
        )
        return SiteCensus(
            site=self.name,
            experiment=self.experiment.digest,
            version=code_digest(),
            samples=len(targets),
            test_samples=0 if self.data.test is None else len(self.data.test[1]),
            form=form,
            steps=self._steps,
        )

    def exchange(self, header: ExchangeRequest, tensors: Any) -> SiteMessage:
        """Run this client's part of an exchange and return what it sends.

        The new state is on disk before this returns.
        """
        start = time.perf_counter()
        if not header.keep <= header.base < header.version:
            raise RequestError(
                f"Site {self.name} needs to keep the version that it starts from and to write a "
                f"later one, got keep {header.keep}, base {header.base}, version {header.version}."
            )
        algorithm = resolve(self.experiment.algorithm, header.t)
        if header.stage == "answer" and not isinstance(algorithm, Prelude):
            raise RequestError(f"{type(algorithm).__name__} has one exchange a round, got another.")
        incoming = read_request(algorithm, self._zeros, header, tensors)
        base, state = StateName(header.base, header.token), incoming.new_state
        if base.version != NO_VERSION:
            state = self._held_state(state_form(algorithm, self._zeros, base.version), base)
        if state is None:
            held = sorted({name.version for name in self._store.names()})
            lost = LostState(client=header.client, base=base.version, token=base.token, held=held)
            return SiteMessage(lost)
        if isinstance(algorithm, Prelude) and header.stage == "answer":
            stage = Stage.answers(algorithm, incoming.down, self._zeros)
        else:
            stage = Stage.uploads(algorithm, incoming.down, self._zeros)
        result = self._run(stage, state, header)
        leaves, token = tree.leaves(result.state), ""
        if leaves:
            token = self._store.put(header.version, leaves).token
            self._store.forget_before(header.keep)
        spent = time.perf_counter() - start
        if self._seconds is not None and header.stage == "upload":
            self._steps = max(1, int(self._seconds * header.steps / spent))
        reply = ExchangeReply(
            client=header.client,
            t=header.t,
            stage=header.stage,
            attempt=header.attempt,
            gradients=result.cost.gradients,
            samples=result.cost.samples,
            seconds=spent,
            token=token,
            next_steps=self._steps,
        )
        return SiteMessage(reply, tree.leaves(result.wire))

    def evaluate(self, header: EvaluationRequest, tensors: Any) -> SiteMessage:
        """Return sums of loss and hits over the test samples, or else over the training samples."""
        require_form("A request", tensors, [self._zeros])
        elements = self.data.inputs[0].numel() + self._activations
        evaluator = Evaluator(
            task=self._task,
            clients=self.data,
            population=np.ones(1),
            batch=batch_for(self._task.layout.size, elements) if self._separable else ALL_AT_ONCE,
            elements=elements,
        )
        score = evaluator.score(tensors[0])
        tested = self.data.test is not None
        count = len(self.data.test[1]) if self.data.test is not None else len(self.data.targets)
        hits = None if score.accuracy is None else score.accuracy * count
        reply = EvaluationReply(
            client=header.client,
            t=header.t,
            loss=score.loss * count,
            hits=hits,
            samples=count,
            tested=tested,
        )
        return SiteMessage(reply)

    def _run(self, stage: Stage, state: Any, header: ExchangeRequest) -> ClientResult:
        layout, experiment = self._task.layout, self.experiment
        assignment = Assignment(
            t=header.t,
            ids=np.array([header.client], dtype=np.int64),
            counts=np.array([header.steps], dtype=np.int64),
            mean_count=header.mean_count,
            seed=experiment.seed,
            batch_size=experiment.batch_size,
            width=header.width,
        )
        activations = header.width * self._activations
        shared = 0 if self._task.oracle.schedules_clients else activations + layout.size
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(intra_op_threads(shared))
            largest = max(layout.size, activations)
            stack.enter_context(retain_freed_memory(largest * layout.dtype.itemsize))
            return client_exchange(stage, state, self._task, self._samples, assignment)

    def _held_state(self, form: Any, name: StateName) -> Any | None:
        """Return the state of a name, None where it is lost; empty states are not kept."""
        expected = tree.leaves(form)
        if not expected:
            return form
        held = self._store.get(name)
        if held is None:
            return None
        require_form("A site's state", held, expected)
        return tree.with_leaves(form, held)

    def _require_experiment(self, header: Header) -> None:
        wanted = getattr(header, "experiment", None)
        if wanted != self.experiment.digest:
            raise RequestError(
                f"Site {self.name} needs requests of the experiment {self.experiment.digest}, "
                f"which its operator has accepted, got {str(wanted)[:40]}; compare the files."
            )


def require_own_work(steps: int | None, seconds: float | None) -> None:
    """Raise unless a site may choose its steps so."""
    remedy = "leave it out to do the work of the experiment"
    require(steps is None or steps >= 1, "A site", "steps >= 1", steps, remedy)
    if seconds is not None:
        require_positive("A site", seconds=seconds)
    once = steps is None or seconds is None
    require(once, "A site", "steps or seconds", "both", "leave one of them out")


def _prepared(experiment: FederatedExperiment, data: Clients) -> tuple[Task, int, bool]:
    """Return the task, the activations of a sample, and whether the loss is a mean of samples."""
    model = copy.deepcopy(experiment.model)
    if not experiment.model.training:
        model.train()
    layout = Layout.of(model)
    loss = plain_loss(experiment.loss)
    with intra_op_threads(0):
        facts, _ = inspect(model, loss, data)
    task = Task(
        model=model,
        layout=layout,
        loss=loss,
        weight_decay=experiment.weight_decay,
        clip=experiment.clip,
        randomness=facts.randomness,
        prepare=data.prepare,
    )
    planner = Planner(
        census=data,
        population=np.ones(1),
        participation=laws.parse(1.0),
        work=experiment.work,
        batch_size=experiment.batch_size,
        seed=experiment.seed,
    )
    workload = Workload(
        algorithm=experiment.algorithm,
        planner=planner,
        pool=Pool.of(data, task),
        facts=facts,
        rounds=experiment.rounds,
        single_process=False,
    )
    request = ExecutionRequest(mode="loop", kernels=False, options=ExecutionOptions())
    chosen = choose_execution(workload, task, request, None).task
    layout.unite(chosen.model)
    return replace(chosen, oracle=chosen.oracle.with_threads(1)), facts.activations, facts.separable
