"""Functions that take turns and wait for each other: peers run one at a time and still exchange.

A node's round is plain code that calls `comm.mix` in its middle. To run the nodes one after the
other, each has a thread. One thread runs at a time, or a few of them on a core each, until it asks
for a collective or ends. When all have asked, the collective is carried out and their turns begin
again. So memory holds the activations of few nodes, and the order of the work is always the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from undrift.engine.execution.memory import trim_memory
from undrift.engine.execution.threads import Stopped
from undrift.errors import UndriftError

A = TypeVar("A")  # what a function asks for
R = TypeVar("R")  # what a function returns


class _Turn(threading.Thread, Generic[A, R]):
    """Runs one function piece by piece on a thread of its own."""

    def __init__(self, function: Callable[[Callable[[A], Any]], R], one_core: bool) -> None:
        super().__init__(daemon=True)
        self._function, self._one_core = function, one_core
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._answer: Any = None
        self._stopping = False
        self.requests: list[A] = []  # one request while the thread waits, else none
        self.error: BaseException | None = None
        self.result: R
        self.done = False

    def resume(self, answer: Any = None) -> None:
        """Let the function run on with this answer."""
        self._answer = answer
        if self.ident is None:
            self.start()
        self._go.release()

    def wait(self) -> None:
        """Return when the function asks again or ends."""
        self._back.acquire()

    def stop(self) -> None:
        """End the thread, whatever the function is doing."""
        if self.ident is None:
            return
        if not self.done:
            self._stopping = True
            self._go.release()
        self.join()

    def _ask(self, request: A) -> Any:
        self.requests = [request]
        self._back.release()
        self._go.acquire()
        if self._stopping:
            raise Stopped
        self.requests = []
        answer, self._answer = self._answer, None
        return answer

    def run(self) -> None:
        """Run the function when the first turn comes."""
        self._go.acquire()
        try:
            if self._one_core:
                torch.set_num_threads(1)  # OpenMP keeps this number per thread.
            with torch.no_grad():  # The mode of autograd is kept per thread, too.
                self.result = self._function(self._ask)
        except BaseException as error:
            self.error = error
        self.done = True
        self._back.release()


def run_lockstep(
    functions: Sequence[Callable[[Callable[[A], Any]], R]],
    meet: Callable[[list[A]], Sequence[Any]],
    finished: Callable[[int, R], None],
    *,
    at_once: int = 1,
    trim: bool = True,
) -> None:
    """Run all functions, each of which gets `ask`; `meet` answers them when all have asked.

    `finished(i, result)` is called as soon as function i ends. The first error ends all. Function i
    begins when i - `at_once` is done or has asked, so these two never run at the same time.
    """
    turns = [_Turn(function, one_core=at_once > 1) for function in functions]
    answers: list[Any] = [None] * len(turns)

    def settle(i: int) -> None:
        turn = turns[i]
        turn.wait()
        if trim:
            # glibc keeps a heap for each thread, so memory that one node has freed would not serve
            # the next node, and memory would grow with the number of threads.
            trim_memory()
        if turn.error is not None:
            raise turn.error
        if turn.done:
            finished(i, turn.result)
            del turn.result

    try:
        while True:
            running: deque[int] = deque()
            for i, turn in enumerate(turns):
                if len(running) == at_once:
                    settle(running.popleft())
                answer, answers[i] = answers[i], None  # A big answer is freed when it is used.
                turn.resume(answer)
                running.append(i)
                del answer
            for i in running:
                settle(i)
            requests = [turn.requests[0] for turn in turns if not turn.done]
            if not requests:
                return
            if len(requests) < len(turns):
                raise UndriftError(
                    "Peers need to communicate equally often in a round, got some that ended "
                    "while others still ask; give every client the same number of steps."
                )
            answers = list(meet(requests))
    finally:
        for turn in turns:
            turn.stop()
