"""Jobs of an experiment side by side, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

import torch

from undrift.engine.processes.interrupts import end_with_starter, handled
from undrift.engine.settings import ExecutionRecord
from undrift.errors import UndriftError
from undrift.results.record import Record
from undrift.results.trial import Trial
from undrift.runs.build import build_run
from undrift.runs.executions import Executions
from undrift.runs.jobs import Job
from undrift.runs.run_job import Begun, Observer, Recorder, run_job

_SECONDS = 30.0  # in which a process that is asked to stop writes what it has


@dataclass(frozen=True)
class _Order:
    """Says what a process is to run."""

    job: Job
    recorder: Recorder
    resume: bool
    options: Mapping[str, Any]  # keywords of `simulate`


def threads_each(jobs: int) -> int:
    """Return how many threads each of several jobs may use."""
    return max(1, torch.get_num_threads() // jobs)


def run_side_by_side(
    planned: Sequence[Job],
    count: int,
    recorder: Recorder,
    observer: Observer,
    *,
    executions: Executions,
    resume: bool,
    options: Mapping[str, Any],
) -> Generator[Trial]:
    """Run `count` jobs at a time and yield their trials as they end.

    How each job is executed is chosen here, one after the other, before any of them runs, so that
    jobs that compete for the cores cannot disturb the choice.
    """
    threads = threads_each(count)
    # The processes import what they need while the executions are chosen.
    with closing(_Pool(min(count, len(planned)), threads)) as pool:
        orders = [
            _Order(job, recorder, resume, {**options, "like": like})
            for job, like in _executions(planned, executions, threads, options)
        ]
        yield from pool.run(orders, observer)


def _executions(
    planned: Sequence[Job], executions: Executions, threads: int, options: Mapping[str, Any]
) -> Iterator[tuple[Job, ExecutionRecord]]:
    """Yield each job with how it is executed, which is the same for all jobs of a kind."""
    with _torch_threads(threads):
        for job in planned:
            like = executions.of(job)
            if like is None:
                with closing(build_run(job.experiment, job.method, job.seed, **options)) as run:
                    like = run.execution
                executions.note(job, like)
            yield job, like


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Silence Ctrl-C for a moment; a process that is started meanwhile ignores it from its start.

    Ctrl-C reaches every process of a terminal, and the first process decides what it means.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Keep processes that are started meanwhile from importing the user's script.

    A script without `if __name__ == "__main__":` would start the experiment in each of them.
    Jobs hold nothing that is defined there.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


class _Pool:
    """Holds processes that take one job after the other."""

    def __init__(self, count: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # A fork would copy torch's locked threads.
        self._processes: dict[Connection, Any] = {}
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, threads), daemon=True)
            with _interrupts_ignored(), _script_hidden():
                process.start()
            theirs.close()
            self._processes[ours] = process

    def run(self, orders: Sequence[_Order], observer: Observer) -> Iterator[Trial]:
        """Give every process one order after the other and yield the trials that come back."""
        waiting = list(reversed(orders))
        jobs: dict[Connection, Job] = {}
        for connection in self._processes:
            self._next(connection, waiting, jobs)
        while jobs:
            ready = set(wait(list(jobs)))
            for connection, job in [pair for pair in jobs.items() if pair[0] in ready]:
                what, value = self._receive(connection, job)
                if what == "begin":
                    observer.begin(job, value)
                elif what == "add":
                    observer.add(job, value)
                elif what == "stall":
                    observer.stall(job, value)
                elif what == "error":
                    raise value
                else:
                    del jobs[connection]
                    self._next(connection, waiting, jobs)
                    observer.end(job, value)
                    yield value

    def _next(
        self, connection: Connection, waiting: list[_Order], jobs: dict[Connection, Job]
    ) -> None:
        if waiting:
            order = waiting.pop()
            jobs[connection] = order.job
            with suppress(OSError):  # A process that has ended is found when it is heard.
                connection.send(order)

    def _receive(self, connection: Connection, job: Job) -> tuple[str, Any]:
        try:
            message: tuple[str, Any] = connection.recv()
        except (EOFError, OSError):
            self._processes[connection].join(_SECONDS)
            code = self._processes[connection].exitcode
            raise UndriftError(
                f"The process of {job.label}, seed {job.seed}, ended with code {code}; it may have "
                "run out of memory, run fewer jobs at a time and resume."
            ) from None
        return message

    def close(self) -> None:
        """End the processes; those that still run write what they have first."""
        for process in self._processes.values():
            if process.is_alive():
                process.terminate()
        for process in self._processes.values():
            process.join(_SECONDS)
            if process.is_alive():
                process.kill()
        for connection in self._processes:
            connection.close()


class _Sender(Observer):
    """An observer that tells the process that has started this one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, job: Job, begun: Begun) -> None:
        self._connection.send(("begin", begun))

    def add(self, job: Job, record: Record) -> None:
        self._connection.send(("add", record))

    def stall(self, job: Job, text: str) -> None:
        self._connection.send(("stall", text))


def _work(connection: Connection, threads: int) -> None:
    """Run the jobs that come until the connection is closed, or the process is asked to stop."""
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_starter()
    # A second request would disturb the writing, so it is ignored.
    stops = handled([signal.SIGTERM], insist=False)
    with suppress(EOFError, OSError, KeyboardInterrupt), stops:
        while True:
            order: _Order = connection.recv()
            connection.send(_outcome(order, connection))


def _outcome(order: _Order, connection: Connection) -> tuple[str, Any]:
    try:
        trial = run_job(
            order.job,
            order.recorder,
            _Sender(connection),
            resume=order.resume,
            options=order.options,
        )
    except Exception as error:  # It is raised where the jobs were started.
        return "error", _sendable(error)
    return "end", trial


def _sendable(error: Exception) -> Exception:
    """Return an error of a plain kind, because others may not be read in another process.

    An error that is nobody's sentence keeps its traceback, which would be lost on the way.
    """
    if isinstance(error, ValueError):
        return ValueError(str(error))
    if isinstance(error, UndriftError | OSError | ImportError):
        return UndriftError(str(error))
    return RuntimeError("A job failed:\n" + "".join(traceback.format_exception(error)))
