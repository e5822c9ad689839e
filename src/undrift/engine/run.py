"""A run in progress: an iterator of records whose state is always current."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from undrift.check import require
from undrift.core import Vector
from undrift.data.sources.fields import FieldModel
from undrift.data.sources.inputs import inputs_of
from undrift.data.sources.lazy import LazySamples
from undrift.data.tables.files import is_frame
from undrift.data.tables.score import score
from undrift.engine.checkpoint.due import SaveTimes
from undrift.engine.clock import Clock, Lap
from undrift.engine.display import RecordDisplay
from undrift.engine.early_stopping import BestWatch, EarlyStopping
from undrift.engine.execution.cohort import FederatedExecutor
from undrift.engine.execution.effort import Effort
from undrift.engine.execution.executor import Mode
from undrift.engine.execution.memory import retain_freed_memory
from undrift.engine.execution.meter import Meter
from undrift.engine.execution.nodes import PeerExecutor
from undrift.engine.execution.threads import intra_op_threads
from undrift.engine.export import export
from undrift.engine.plan import Plan
from undrift.engine.processes.interrupts import StopSignal, requested
from undrift.engine.resume import Resumable
from undrift.engine.scores import Scored
from undrift.engine.settings import BestModel, RunSettings
from undrift.engine.stall import StallWatch
from undrift.errors import UndriftError, first_line
from undrift.models.layout import eval_mode, sha256
from undrift.results.record import Record, Totals
from undrift.results.record_log import RecordLog

_LOG = logging.getLogger("undrift")


class Run(Resumable, Scored, StallWatch, RecordDisplay, Iterator[Record]):
    """Yields a record after each round; `state`, `model` and `totals` are always current."""

    record_type: ClassVar[type[Record]] = Record

    def __init__(
        self, algorithm: Any, executor: FederatedExecutor | PeerExecutor, settings: RunSettings
    ) -> None:
        self.algorithm = algorithm
        self.rounds = settings.rounds
        self.round = 0  # rounds completed
        self.totals = Totals()
        self.record: Record | None = None  # of the last round completed
        self.records = RecordLog()  # of the rounds that this object has run
        # With a server: of clients that have taken part, those that were saved on disk.
        self.client_states: MutableMapping[int, Any] = {}
        self.execution = settings.execution
        self.world = executor.world  # the processes that share the work
        self._tell_workers: Callable[[str], None] = lambda command: None
        self._stop_workers: Callable[[], None] = lambda: None
        self._leads_workers = False
        self._settings, self._task, self._planner = settings, executor.task, executor.planner
        self._clients = executor.pool.clients
        self._elements_per_step, self._threads = executor.elements_per_step, executor.threads
        self._threads_at_once = executor.threads_at_once
        self._x0 = settings.x0
        self._save_times = SaveTimes(settings.checkpoint_every)
        self._new_states: dict[int, Any] = {}  # of clients, after the round that is being run
        self._torn = False
        self._stop = 0  # the signal that all processes have agreed to stop for
        self.stopped_early = ""  # why the run ended before its last round
        self._best: BestWatch | None = None
        self._progress: Callable[[Record], None] = lambda record: None

    @property
    def mode(self) -> Mode:
        """Return how clients run: "loop", "threads" or "stacked"."""
        return self.execution.mode

    @property
    def why(self) -> str:
        """Return the reason for the mode."""
        return self.execution.why

    @property
    def planned_rounds(self) -> int:
        """Return the rounds that were asked for; `rounds` are fewer after early stopping."""
        return self._settings.rounds

    @property
    def tests(self) -> str:
        """Return how often and on how many samples models are evaluated, and why."""
        return self._settings.tests

    @property
    def gradients(self) -> str:
        """Return what computes gradients, torch or a compiled kernel, and what runs local steps."""
        return self.execution.gradients

    state: Any  # its field x is the model, or for peers (m, D) one in each row

    @abstractmethod
    def _advance(self, plan: Plan, meter: Meter) -> None:
        """Run a round from the state; a round that fails leaves the state as it was."""

    @abstractmethod
    def _make_record(self, plan: Plan, meter: Meter, seconds: float) -> Record:
        """Return the record of the round that was just run, with its evaluations."""

    @property
    def x(self) -> Vector:
        """Return the model as a vector, or for peers (m, D) one in each row."""
        return self.state.x  # type: ignore[no-any-return]

    @property
    def whole(self) -> bool:
        """Return whether all of the state can be read in this process."""
        return True

    @property
    def mean(self) -> Vector:
        """Return the one model that stands for the run: the server's, or the mean of the peers'."""
        return self._mean()

    def _mean(self) -> Vector:
        return self.x

    @property
    def model(self) -> nn.Module:
        """Return a copy of the user's model with the current parameters."""
        return self._bound(self.mean)

    def _bound(self, x: Vector) -> nn.Module:
        bound = self._task.layout.bind(self._task.model, x.clone())
        if isinstance(bound, FieldModel):
            bound = bound.model
        for part, training in zip(bound.modules(), self._settings.training, strict=True):
            part.training = training
        return bound

    def predict(self, rows: Any) -> Any:
        """Return predictions: a frame for a pandas frame or CSV file, else the model's outputs.

        A frame is for clients from a table, whose preprocessing it goes through. Other rows are
        samples as `Clients` takes them, with or without targets: an array or a tensor of inputs, a
        `Dataset`, a `DataLoader`, or a dictionary of inputs.
        """
        model, clients = self.model, self._clients
        if clients.preprocessing is not None and not isinstance(rows, torch.Tensor):
            return score(model, clients.preprocessing, rows)
        table = is_frame(rows) or isinstance(rows, str | Path)
        remedy = "a frame needs clients that were made from a table"
        require(not table, "predict", "an array of samples", type(rows).__name__, remedy)
        inputs, task = inputs_of(rows, clients.fields), self._task
        read = isinstance(clients.prepare, LazySamples)  # which takes numbers of its own samples
        inputs = task.cast(inputs) if read else task.prepared(inputs)
        net = FieldModel(model, clients.fields) if clients.fields else model
        try:
            with eval_mode(net), torch.no_grad():
                return net(inputs)
        except (RuntimeError, IndexError, ValueError) as error:
            prepare, known = clients.prepare, tuple(clients.inputs.shape[1:])
            form = prepare.form if isinstance(prepare, LazySamples) else known
            raise ValueError(
                f"predict needs samples as the clients', of shape {form}, got shape "
                f"{tuple(inputs.shape[1:])} of {inputs.dtype}: {first_line(error)}."
            ) from error

    def export(self, path: str | Path) -> str:
        """Write the best model, or else the current one; return what the file's inputs are.

        `model.safetensors` has the preprocessing of a table beside the weights, for `SavedModel`
        and `undrift predict`; `model.onnx` has it around the net.
        """
        return export(self.best_model, self._clients, path)

    @property
    def best(self) -> BestModel | None:
        """Return the best model with its round and value; None without early stopping."""
        return None if self._best is None else self._best.best

    @property
    def best_model(self) -> nn.Module:
        """Return a copy of the user's model with the best parameters, or else the current ones."""
        return self._bound(self.mean if self.best is None else self.best.x)

    def stop_early(self, rule: EarlyStopping) -> None:
        """Stop after so many tests without a better one, and keep the best model.

        A run that goes on counts the tests before its checkpoint, too.
        """
        self._best = BestWatch(rule, self._saved_best)
        self._end_if_over()

    def _compare_test(self) -> None:
        """Compare the last test with the best, and end the run if that was long ago."""
        if self._best is not None and self.records[-1].loss is not None:
            self._best.add(self.records, self._mean)
            self._end_if_over()

    def _end_if_over(self) -> None:
        best = self.best
        if self._best is None or best is None or not self._best.over or self.round == self.rounds:
            return
        self.rounds = self.round
        self.stopped_early = (
            f"stopped after round {self.round}: {best.stale} tests without a better "
            f"{best.metric} than {best.value:.4g} of round {best.round}"
        )
        _LOG.info("%s", self.stopped_early)

    @property
    def model_sha256(self) -> str:
        """Return the hash of the model's parameters."""
        return sha256(self.x)

    def lead(self, tell: Callable[[str], None], stop: Callable[[], None]) -> None:
        """Tell worker processes what to do together with this one, and stop them at the end."""
        self._tell_workers, self._stop_workers, self._leads_workers = tell, stop, True

    def close(self) -> None:
        """Stop the worker processes of the run; what this process holds stays."""
        self._stop_workers()
        self.release_folder()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Record:
        if self.round >= self.rounds:
            raise StopIteration
        if not self.world.open:
            raise UndriftError(
                "A run needs its other processes to go on, but they have ended (it was closed, it "
                "failed, or another run began); start it again, with resume if it was saved."
            )
        if self._stop:
            self._stop_workers()
            raise StopSignal(self._stop)
        try:
            self._tell_workers("next")
            with self.world.failure_scope():
                record = self._run_round()
                if self._leads_workers and self.round == self.rounds:
                    self._collect()
        except BaseException as error:
            if self._leads_workers and getattr(error, "everywhere", False):
                with self.world.failure_scope():
                    self._collect()  # the last good state is kept, all of it
            self._stop_workers()
            raise
        if self.round == self.rounds:
            self.close()
        return record

    def _collect(self) -> None:
        """Take over what the other processes hold and this one will be asked for."""

    def _run_round(self) -> Record:
        """Plan a round, run it, record it, and save it where that is due."""
        if self.round == 0 and self._checkpoint is not None and not self._save_times.by_time:
            self._write(self._checkpoint)
        start = time.perf_counter()
        before = self._replaced() | {"_torn": False}
        self._torn = True  # A signal may come between any two of these lines.
        try:
            record, due = self._compute_round(start)
        except BaseException:
            self.__dict__.update(before)  # A round is whole or was not run.
            raise
        self.client_states.update(self._new_states)
        self.totals.add(record)
        self.record = record
        self.records.append(record)
        self._torn = False
        self._watch_for_stall()
        self._compare_test()
        _LOG.info("%s", record)
        self._progress(record)
        if self._checkpoint is not None and due:
            self._write(self._checkpoint)
        return record

    def _replaced(self) -> dict[str, Any]:
        """Return by name the attributes that a round replaces, as they are before it."""
        return {"state": self.state, "round": self.round}

    def _compute_round(self, start: float) -> tuple[Record, bool]:
        """Run a round that began at `start`; return its record, and whether it is to be saved."""
        plan = self._planner.plan(self.round, self.totals.simulated_seconds)
        meter = Meter(len(plan.ids))
        clocks = Effort.now()
        with self._computing(len(plan.ids)):
            self._advance(plan, meter)
        self._compare_cost(clocks.spent(), meter)
        self.round += 1
        due, self._stop = meter.add_up(self.world, self._save_is_due(), requested())
        trained = time.perf_counter()
        record = self._make_record(plan, meter, trained - start)
        record = replace(record, evaluation_seconds=time.perf_counter() - trained)
        # Several processes that stop do so after this round, and save it together.
        return record, bool(due or (self._stop and self.world.size > 1))

    def _compare_cost(self, spent: Effort, meter: Meter) -> None:
        """Compare what the round's gradients have cost with what a calibration found."""
        if self._settings.watch is not None:
            threads = self._threads_at_once(meter.clients, self._settings.facts.activations)
            self._settings.watch.add(spent.path(threads), meter.gradients)

    @property
    def _reused_bytes(self) -> int:
        """Return the bytes that a step allocates and frees; 0 where freed memory is not kept.

        They are those of vectors or of activations, whichever are more.
        """
        activations = self._planner.width * self._settings.facts.activations
        return max(self._x0.nbytes, activations * self._x0.itemsize)

    @contextmanager
    def _computing(self, clients: int) -> Iterator[None]:
        """Give torch the intra-op threads that a step can use; one if clients are on threads."""
        elements = self._elements_per_step(clients, self._settings.facts.activations)
        with torch.no_grad(), intra_op_threads(elements), retain_freed_memory(self._reused_bytes):
            yield

    def _clock_fields(self, plan: Plan, lap_of: Callable[[Clock], Lap]) -> dict[str, Any]:
        """Return the record's fields of the simulated clock, where there is one."""
        if self._settings.clock is None:
            return {}
        lap = lap_of(self._settings.clock)
        # The server may have waited for a client to be there before the round began.
        seconds = plan.start - self.totals.simulated_seconds + lap.seconds
        used = lap.utilisation * lap.seconds / seconds if seconds > 0 else 0.0
        return {"simulated_seconds": seconds, "utilisation": used, "missed": plan.missed}
