"""Jobs on Python threads: torch releases the interpreter lock while it computes."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from undrift.gradients.task import Task

R = TypeVar("R")


class Stopped(BaseException):
    """Unwinds a job whose result nobody wants any more."""


class TaskCopies:
    """Makes copies of a task and keeps them for later rounds.

    A forward pass puts parameters into the model for a while, so jobs that run at the same time
    need models of their own. The tensors that a forward pass replaces are the same in all of them.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._free: list[Task] = []

    def _copy(self) -> Task:
        model = self._task.model
        shared: dict[int, Any] = {id(each): each for each in model.parameters()}
        oracle = self._task.oracle.with_threads(1)
        return replace(self._task, model=copy.deepcopy(model, shared), oracle=oracle)

    @contextmanager
    def borrow(self) -> Iterator[Task]:
        """Yield a copy that nobody else uses meanwhile."""
        try:
            task = self._free.pop()
        except IndexError:
            task = self._copy()
        try:
            yield task
        finally:
            self._free.append(task)

    def several(self, count: int) -> list[Task]:
        """Return `count` tasks with different models, the first of which is the task itself."""
        while len(self._free) < count - 1:
            self._free.append(self._copy())
        return [self._task, *self._free[: count - 1]]


def ordered_thread_map(jobs: Iterable[Callable[[threading.Event], R]], threads: int) -> Iterator[R]:
    """Yield the results in the order of the jobs, at most `threads` of which run at a time.

    A job gets an event and should raise `Stopped` when the event is set. Few results wait at any
    time, so memory does not grow with the number of jobs.
    """
    stop = threading.Event()

    def run(job: Callable[[threading.Event], R]) -> R:
        torch.set_num_threads(1)  # OpenMP keeps this number per thread, so each job sets it.
        with torch.no_grad():  # The mode of autograd is kept per thread, too.
            return job(stop)

    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="undrift") as pool:
        try:
            for job in jobs:
                waiting.append(pool.submit(run, job))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            stop.set()
            for future in waiting:
                future.cancel()


SHARED_ELEMENTS = 200_000  # activations of a step that are worth a second thread


@contextmanager
def intra_op_threads(elements: int) -> Iterator[None]:
    """Use one intra-op thread while a step works on too few elements to share them.

    Waiting for each other would cost more than the work. Results do not depend on it beyond float
    rounding; the caller's setting is restored.
    """
    if elements >= SHARED_ELEMENTS:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
