"""Jobs side by side on Python threads: torch lets the interpreter go while it computes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

R = TypeVar("R")


class Stopped(BaseException):
    """Unwinds a job whose result nobody wants any more."""


def ordered_thread_map(jobs: Iterable[Callable[[threading.Event], R]], threads: int) -> Iterator[R]:
    """The results in the order of the jobs, at most `threads` of which run at a time.

    A job is given an event; when it is set, it should raise `Stopped`. Few results are waiting at
    any time, so that memory does not grow with the number of jobs.
    """
    stop = threading.Event()

    def run(job: Callable[[threading.Event], R]) -> R:
        torch.set_num_threads(1)  # which OpenMP keeps per thread
        with torch.no_grad():  # likewise
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
