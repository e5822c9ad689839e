"""A run in progress: an iterator of records whose state is always current."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from undrift.check import require
from undrift.core import Vector
from undrift.engine.checkpoint import shards, store
from undrift.engine.clock import Clock, Lap
from undrift.engine.evaluate import Score, evaluate
from undrift.engine.execution.cohort import Executor
from undrift.engine.execution.executor import Mode
from undrift.engine.execution.local import Meter
from undrift.engine.execution.memory import retain_freed_memory
from undrift.engine.execution.nodes import PeerExecutor
from undrift.engine.plan import Plan
from undrift.engine.processes.rendezvous import code_digest, restarted
from undrift.engine.tuning.probe import Facts
from undrift.engine.tuning.rules import intra_op_threads
from undrift.engine.world import World
from undrift.errors import UndriftError
from undrift.gradients.kernels import Kernels
from undrift.models.layout import sha256
from undrift.results.record import Record, Totals


@dataclass(frozen=True)
class RunSettings:
    """How a run goes, whatever its method."""

    training: tuple[bool, ...]  # of each part of the model, as given by the user
    x0: Vector
    facts: Facts
    rounds: int
    evaluate_every: int
    evaluation_batch: int
    why: str  # this execution mode
    gradients: str  # who makes them
    checkpoint_every: int = 1
    clock: Clock | None = None
    train_loss: bool = False  # whether to evaluate on the training data, too


class Run(Iterator[Record]):
    """Iterate for records; `state`, `model`, `totals` are always current."""

    record_type: ClassVar[type[Record]] = Record

    def __init__(
        self, algorithm: Any, executor: Executor | PeerExecutor, course: RunSettings
    ) -> None:
        self.algorithm = algorithm
        self.rounds = course.rounds
        self.round = 0  # rounds completed
        self.totals = Totals()
        self.record: Record | None = None  # of the last round completed
        self.records: list[Record] = []  # of the rounds that this object has played
        self.client_states: dict[int, Any] = {}  # with a server: of clients that have taken part
        self.mode: Mode = executor.mode
        self.why = course.why  # this mode
        self.gradients = course.gradients  # who makes them: torch, or a compiled kernel
        self.channels_last = executor.task.channels_last  # the layout of images in the model
        self.world = executor.world  # the processes that share the work
        self._lead: Callable[[str], None] = lambda what: None  # to those that do as this one does
        self._end: Callable[[], None] = lambda: None
        self._parting = False  # whether the processes part when the last round is done
        self._course, self._task, self._planner = course, executor.task, executor.planner
        self._clients = executor.pool.clients
        self._elements_per_step = executor.elements_per_step
        self._x0 = course.x0
        self._checkpoint: Path | None = None

    @property
    def kernels(self) -> bool:
        """Whether gradients are made by a kernel that was compiled for the model."""
        return isinstance(self._task.oracle, Kernels)

    @property
    def manner(self) -> dict[str, Any]:
        """How it is executed, as far as the bits of its results go."""
        return {
            "mode": self.mode,
            "channels_last": self.channels_last,
            "kernels": self.kernels,
        }

    state: Any  # its field x is the model, or for peers (m, D) one in each row

    @abstractmethod
    def _advance(self, plan: Plan, meter: Meter) -> None:
        """Play a round from the state; a round that fails leaves it as it was."""

    @abstractmethod
    def _record(self, plan: Plan, meter: Meter, seconds: float) -> Record: ...

    @abstractmethod
    def _templates(self, x0: Vector) -> tuple[Any, Any]:
        """States of the right structure for a checkpoint to fill."""

    @property
    def _held(self) -> Any:
        """What of the state this process saves."""
        return self.state

    @property
    def x(self) -> Vector:
        return self.state.x  # type: ignore[no-any-return]

    @property
    def whole(self) -> bool:
        """Whether all of the state can be seen from here."""
        return True

    @property
    def mean(self) -> Vector:
        """The one model that stands for the run: the server's, or the mean of the peers'."""
        return self._mean()

    def _mean(self) -> Vector:
        return self.x

    @property
    def model(self) -> nn.Module:
        """A copy of the model given, with the current parameters."""
        bound = self._task.layout.bind(self._task.model, self.mean.clone())
        for part, training in zip(bound.modules(), self._course.training, strict=True):
            part.training = training
        return bound

    @property
    def model_sha256(self) -> str:
        return sha256(self.x)

    def lead(self, tell: Callable[[str], None], end: Callable[[], None]) -> None:
        """Tell processes that wait for it what to do together, and let them go after the end."""
        self._lead, self._end, self._parting = tell, end, True

    def close(self) -> None:
        """Let other processes of the run go; what this one holds stays."""
        self._end()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def frame(self) -> Any:
        """The records as a pandas frame."""
        from undrift.report import notebook

        return notebook.frame(self)

    def plot(self, metric: str = "accuracy", against: str = "round", **options: Any) -> Any:
        """A curve of the records, as matplotlib's Axes."""
        from undrift.report import notebook

        return notebook.plot(self, metric, against, **options)

    def __rich__(self) -> Any:
        from undrift.report import notebook

        return notebook.rich_table(self)

    def _repr_html_(self) -> str:
        from undrift.report import notebook

        return notebook.html_table(self)

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Record:
        if self.round >= self.rounds:
            raise StopIteration
        if not self.world.open:
            raise UndriftError(
                "A run needs its other processes to go on, got one that has let them go (it was "
                "closed, failed, or another began); start it again, with resume if it was saved."
            )
        try:
            self._lead("next")
            with self.world.failure_scope():
                record = self._play()
                if self._parting and self.round == self.rounds:
                    self._part()
        except BaseException as error:
            if self._parting and getattr(error, "everywhere", False):
                with self.world.failure_scope():
                    self._part()  # the last good state is kept, all of it
            self._end()
            raise
        if self.round == self.rounds:
            self._end()
        return record

    def _part(self) -> None:
        """Take along what the others hold and this one will be asked for."""

    def _play(self) -> Record:
        """One round, with what goes before and after it."""
        if self.round == 0 and self._checkpoint is not None:
            self._save()
        start = time.perf_counter()
        plan = self._planner.plan(self.round, self.totals.simulated_seconds)
        meter = Meter(len(plan.ids))
        with self._computing(len(plan.ids)):
            self._advance(plan, meter)
        meter.add_up(self.world)
        self.round += 1
        record = self._record(plan, meter, time.perf_counter() - start)
        self.totals.add(record)
        self.record = record
        self.records.append(record)
        due = self.round % self._course.checkpoint_every == 0 or self.round == self.rounds
        if self._checkpoint is not None and due:
            self._save()
        return record

    @property
    def _reused(self) -> int:
        """Bytes that a step makes and frees, vectors or activations, whichever are more; 0 where
        memory should not be kept."""
        activations = self._planner.width * self._course.facts.activations
        return max(self._x0.nbytes, activations * self._x0.itemsize)

    @contextmanager
    def _computing(self, clients: int) -> Iterator[None]:
        """As many intra-op threads as a step is worth; one if clients are on threads themselves."""
        threads = intra_op_threads(self._elements_per_step(clients, self._course.facts.activations))
        with torch.no_grad(), threads, retain_freed_memory(self._reused):
            yield

    def _lap(self, plan: Plan, time: Callable[[Clock], Lap]) -> dict[str, Any]:
        """The record's fields of the simulated clock, where there is one."""
        if self._course.clock is None:
            return {}
        lap = time(self._course.clock)
        # With the time in which the server waited for somebody to be there.
        seconds = plan.start - self.totals.simulated_seconds + lap.seconds
        used = lap.utilisation * lap.seconds / seconds if seconds > 0 else 0.0
        return {"simulated_seconds": seconds, "utilisation": used, "missed": plan.missed}

    @property
    def _evaluating(self) -> bool:
        return self.round % self._course.evaluate_every == 0 or self.round == self.rounds

    def evaluate(self) -> Score:
        """Loss and accuracy of the current model, for peers of their mean."""
        if self.world.open:
            self._lead("evaluate")
        with self.world.failure_scope():
            return self._evaluate(self._mean())

    def _train_loss(self, x: Vector) -> dict[str, Any]:
        """The record's field of the training objective, where it is asked for."""
        if not self._course.train_loss or not self._evaluating:
            return {}
        return {"train_loss": self._evaluate(x, trained=True).loss}

    def _evaluate(self, x: Vector, *, alone: bool = False, trained: bool = False) -> Score:
        """By all processes together, or `alone` by this one; on the data it was `trained` on."""
        facts, batch = self._course.facts, self._course.evaluation_batch
        with intra_op_threads(batch * facts.activations):
            # A loss that is not a mean over samples must see all of them at once.
            sliced = batch if facts.separable else 2**62
            planner = self._planner
            world = World() if alone or not self.world.open else self.world
            where = self._clients, planner.population
            return evaluate(self._task, x, *where, sliced, world, trained=trained)

    def keep_checkpoints(
        self, checkpoint: str | Path | None, resume: str | Path | None, **settings: str
    ) -> None:
        """Save to and go on from folders; `settings` must be the same when it goes on."""
        if checkpoint is None and resume is None and self.world.size == 1:
            return
        experiment = store.experiment(self.algorithm, self._task, self._planner, self._clients)
        self._experiment = experiment | store.without_addresses(settings)
        self.world.require_same(self._experiment | self._manner())
        goal = None if checkpoint is None else Path(checkpoint)
        # Processes that torchrun has started again go on from what they themselves have saved.
        again = goal is not None and restarted() and shards.claimed(goal, self.world)
        if goal is not None and again and shards.find(goal, self.world):
            resume = goal
        elif goal is not None and again and not shards.only_begun(goal, self.world):
            resume = goal  # which refuses it, with the reason
        if resume is not None:
            self._load(Path(resume))
        if goal is None:
            return
        going_on = again or (resume is not None and Path(resume).resolve() == goal.resolve())
        if not going_on and shards.hold_checkpoints(goal, self.world):
            raise ValueError(
                f"checkpoint needs an empty folder, got {str(checkpoint)!r} with checkpoints of an "
                "earlier run; pass it as resume too, or choose another."
            )
        shards.claim(goal, self.world)
        self._checkpoint = goal

    def _manner(self) -> dict[str, str]:
        """What processes must do alike besides the experiment itself."""
        course = self._course
        return {
            "rounds": repr(self.rounds),
            "evaluate_every": repr(course.evaluate_every),
            "evaluation_batch": repr(course.evaluation_batch),
            "checkpoint_every": repr(course.checkpoint_every),
            "mode": self.mode,
            "kernels": repr(self.kernels),
            "the code of undrift": code_digest(),
            "torch": torch.__version__,
        }

    def _save(self) -> None:
        if self._checkpoint is not None:
            snapshot = store.Snapshot(
                self.round,
                self._x0,
                self._held,
                self.client_states,
                self.totals,
                self.record,
                self._experiment,
                self.manner,
            )
            store.write(shards.own_folder(self._checkpoint, self.world), snapshot)

    def _load(self, folder: Path) -> None:
        how = self._experiment, self._templates, self.record_type, self._x0.device
        parts, whole = shards.read(folder, self.world, lambda path, t: store.read(path, t, *how))
        saved = self._joined(parts) if whole else parts[0]
        require(
            saved.round <= self.rounds,
            "resume",
            f"rounds >= {saved.round}, those already done",
            self.rounds,
        )
        self.round, self._x0, self.totals = saved.round, saved.x0, saved.totals
        self.state, self.client_states, self.record = saved.server, saved.clients, saved.record

    @abstractmethod
    def _joined(self, parts: list[store.Snapshot]) -> store.Snapshot:
        """What this process holds of a checkpoint whose parts are all given."""
