"""The simulator: a run is an iterator of records."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from undrift import participation as laws
from undrift.check import is_whole, require, require_choice, require_nonnegative, require_positive
from undrift.core import Federated, Peer, Vector
from undrift.data.clients import Clients
from undrift.data.work import Work
from undrift.engine import checkpoint as disk
from undrift.engine.choose import choose, chunk_for, fitting_threads
from undrift.engine.evaluate import evaluate
from undrift.engine.execute import Executor, Mode, Tap
from undrift.engine.local import Meter
from undrift.engine.plan import Planner
from undrift.engine.probe import Facts, inspect
from undrift.engine.round import play
from undrift.errors import DivergenceError, UndriftError
from undrift.objective import Loss, Task
from undrift.record import Record, Totals
from undrift.schedule import resolve, scheduled
from undrift.vector import Layout, sha256


def simulate(
    algorithm: Federated[Any, Any, Any, Any],
    model: nn.Module,
    clients: Clients,
    *,
    loss: Loss,
    work: Work,
    rounds: int,
    batch_size: int | None = None,
    participation: laws.AnyParticipation = 1.0,
    weighting: laws.Weighting = "size",
    seed: int = 0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    evaluate_every: int = 1,
    evaluation_batch: int = 1000,
    mode: Literal["auto", "loop", "stacked"] = "auto",
    chunk_size: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1,
    resume: str | Path | None = None,
    tap: Tap | None = None,
) -> Run:
    """Train `model` on `clients` with `algorithm`; iterate over the result for its records.

    Everything is checked here, before the first round.

    work: local steps of each client, e.g. `Epochs(5)`, `Steps(10)`, `GaussianSteps(500, 100)`.
    batch_size: samples per step; None takes the whole local data, deterministically.
    participation: a fraction (float), a count (int), `Bernoulli(p)`, `WithReplacement(n)`, or
        explicit cohorts per round. 1.0 is everybody, 1 is one client.
    weighting: "size" (w_i = n_i / n), "uniform", or one weight per client.
    weight_decay, clip: on the data gradient, the clip (global L2 norm) first.
    evaluate_every: rounds between evaluations on the test set (the last is always evaluated);
        without a test set the training objective is reported.
    mode: "loop" runs one client at a time, "stacked" `chunk_size` of them under vmap; "auto"
        stacks small models. The results agree up to float rounding.
    checkpoint, checkpoint_every, resume: a folder to save to, how often, and one to go on from.
    tap: called with every client's upload, for diagnostics, in the order in which clients run.
    """
    if isinstance(algorithm, Peer):
        raise UndriftError(
            f"simulate() runs methods with a server, got the peer method "
            f"{type(algorithm).__name__}; this engine has no links between peers."
        )
    if not isinstance(algorithm, Federated):
        raise ValueError(
            f"simulate needs an algorithm object such as FedAvg(lr=0.1), got {algorithm!r}."
        )
    require(isinstance(clients, Clients), "simulate", "undrift.Clients", type(clients).__name__)
    require(isinstance(model, nn.Module), "simulate", "an nn.Module as model", model)
    require(callable(loss), "simulate", "a function of outputs and targets as loss", loss)
    require(isinstance(work, Work), "simulate", "work such as Steps(10) or Epochs(5)", work)
    require(is_whole(seed), "simulate", "a whole number as seed", seed)
    require(is_whole(rounds) and rounds >= 0, "simulate", "rounds >= 0, a whole number", rounds)
    batches = batch_size is None or (is_whole(batch_size) and batch_size >= 1)
    require(batches, "simulate", "batch_size >= 1, a whole number or None", batch_size)
    require(evaluate_every >= 1, "simulate", "evaluate_every >= 1", evaluate_every)
    require(evaluation_batch >= 1, "simulate", "evaluation_batch >= 1", evaluation_batch)
    require(checkpoint_every >= 1, "simulate", "checkpoint_every >= 1", checkpoint_every)
    require(chunk_size is None or chunk_size >= 1, "simulate", "chunk_size >= 1", chunk_size)
    require_nonnegative("simulate", weight_decay=weight_decay)
    if clip is not None:
        require_positive("simulate", clip=clip)
    require_choice("simulate", "mode", mode, ("auto", "loop", "stacked"))
    work.check(len(clients))
    law = laws.parse(participation)
    law.check(len(clients), rounds)
    population = laws.population_weights(weighting, clients.sizes)
    if scheduled(algorithm):
        for t in range(rounds):
            resolve(algorithm, t)

    trained = copy.deepcopy(model)
    if not model.training:  # as loaded; a part put into eval mode on purpose stays so
        trained.train()
    layout = Layout.of(trained)
    algorithm.check(trained)
    resolve(algorithm, 0).init(layout.gather(trained))  # refuses what does not fit the model's size
    facts = inspect(trained, loss, clients)
    task = Task(trained, layout, loss, weight_decay, clip, facts.randomness)
    planner = Planner(clients, population, law, work, batch_size, seed)
    planner.check(rounds)
    pool = (task.cast(clients.inputs), task.cast(clients.targets))
    chosen, why = choose(mode, algorithm, facts, task, planner, pool)
    chunk = chunk_size or chunk_for(facts, task, planner)
    executor = Executor(task, planner, pool, chosen, chunk)
    run = Run(algorithm, model, executor, facts, rounds, evaluate_every, evaluation_batch, tap, why)
    run._keep_checkpoints(checkpoint, checkpoint_every, resume)
    return run


class Run(Iterator[Record]):
    """A run in progress: iterate for records; `state`, `model`, `totals` are always current."""

    def __init__(
        self,
        algorithm: Federated[Any, Any, Any, Any],
        model: nn.Module,
        executor: Executor,
        facts: Facts,
        rounds: int,
        evaluate_every: int,
        evaluation_batch: int,
        tap: Tap | None,
        why: str,
    ) -> None:
        self.algorithm = algorithm
        self.rounds = rounds
        self.round = 0  # rounds completed
        self.totals = Totals()
        self.record: Record | None = None  # of the last round completed
        self.client_states: dict[int, Any] = {}  # only of clients that have taken part
        self.mode: Mode = executor.mode
        self.why = why  # this mode
        self._model, self._executor, self._facts, self._tap = model, executor, facts, tap
        self._evaluate_every, self._evaluation_batch = evaluate_every, evaluation_batch
        self._x0 = executor.task.layout.gather(executor.task.model)
        self.state: Any = resolve(algorithm, 0).init(self._x0.clone())
        self._checkpoint: Path | None = None

    @property
    def x(self) -> Vector:
        return self.state.x  # type: ignore[no-any-return]

    @property
    def model(self) -> nn.Module:
        """A copy of the model given, with the current parameters."""
        return self._executor.task.layout.bind(self._model, self.state.x.clone())

    @property
    def model_sha256(self) -> str:
        return sha256(self.state.x)

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Record:
        if self.round >= self.rounds:
            raise StopIteration
        if self.round == 0 and self._checkpoint is not None:
            self._save()
        start = time.perf_counter()
        meter = Meter()
        plan = self._executor.planner.plan(self.round)
        samples = self._executor.samples(len(plan.ids))
        with torch.no_grad(), fitting_threads(samples * self._facts.activations):
            state, client_states = play(
                resolve(self.algorithm, self.round),
                self._executor,
                plan,
                self.state,
                self.client_states,
                self._x0,
                meter,
                self._tap,
            )
        self._refuse_bad_model(state.x, self.round)
        self.state = state
        self.client_states.update(client_states)
        self.round += 1
        seconds = time.perf_counter() - start
        record = self._record(meter, len(plan.ids), seconds)
        self.totals.add(record)
        self.record = record
        due = self.round % self._checkpoint_every == 0 or self.round == self.rounds
        if self._checkpoint is not None and due:
            self._save()
        return record

    def _refuse_bad_model(self, x: Vector, t: int) -> None:
        if x.shape != self._x0.shape or x.dtype != self._x0.dtype:
            raise UndriftError(
                f"{type(self.algorithm).__name__}.update needs to return x as "
                f"{tuple(self._x0.shape)} {self._x0.dtype}, got {tuple(x.shape)} {x.dtype}."
            )
        if not x.isfinite().all():
            raise DivergenceError(
                f"Training needs a finite model, got NaN or Inf from the server update of round "
                f"{t + 1}; lower lr or server_lr. The last good state is kept.",
                round=t + 1,
                clients=[],
            )

    def _record(self, meter: Meter, size: int, seconds: float) -> Record:
        loss = accuracy = None
        if self.round % self._evaluate_every == 0 or self.round == self.rounds:
            loss, accuracy = self.evaluate()
        return Record(
            self.round,
            size,
            loss,
            accuracy,
            meter.bytes_up,
            meter.bytes_down,
            meter.gradients,
            meter.samples,
            seconds,
        )

    def evaluate(self) -> tuple[float, float | None]:
        """Loss and accuracy of the current model."""
        task, planner = self._executor.task, self._executor.planner
        # A loss that is not a mean over samples must see all of them at once.
        batch = self._evaluation_batch if self._facts.separable else 2**62
        with fitting_threads(self._evaluation_batch * self._facts.activations):
            return evaluate(task, self.state.x, planner.clients, planner.population, batch)

    def _keep_checkpoints(
        self,
        checkpoint: str | Path | None,
        every: int,
        resume: str | Path | None,
    ) -> None:
        self._checkpoint_every = every
        if checkpoint is None and resume is None:
            return
        planner = self._executor.planner
        self._experiment = disk.experiment(self.algorithm, self._executor.task, planner)
        if resume is not None:
            self._load(Path(resume))
        if checkpoint is not None:
            self._checkpoint = Path(checkpoint)
            going_on = resume is not None and Path(resume).resolve() == self._checkpoint.resolve()
            if not going_on and disk.holds_checkpoints(self._checkpoint):
                raise ValueError(
                    f"checkpoint needs an empty folder, got {str(checkpoint)!r} with checkpoints "
                    "of an earlier run; pass it as resume too, or choose another."
                )

    def _save(self) -> None:
        if self._checkpoint is not None:
            snapshot = disk.Snapshot(
                self.round,
                self._x0,
                self.state,
                self.client_states,
                self.totals,
                self.record,
                self._experiment,
            )
            disk.write(self._checkpoint, snapshot)

    def _load(self, folder: Path) -> None:
        algorithm = resolve(self.algorithm, 0)

        def templates(x0: Vector) -> tuple[Any, Any]:
            server = algorithm.init(x0)
            return server, algorithm.init_client(x0, algorithm.broadcast(server))

        saved = disk.read(folder, self._experiment, templates, self._x0.device)
        require(
            saved.round <= self.rounds,
            "resume",
            f"rounds >= {saved.round}, those already done",
            self.rounds,
        )
        self.round, self._x0, self.totals = saved.round, saved.x0, saved.totals
        self.state, self.client_states, self.record = saved.server, saved.clients, saved.record
