"""Functions that take turns and meet: how peers run one at a time and still talk.

A node's round is plain code that calls `comm.mix` in its middle. To run the nodes one after the
other, each has a thread; one runs at a time, or a few of them on a core each, until it asks for a
collective or ends. When all have asked, the collective is carried out and their turns begin again.
So memory holds the activations of few nodes, and what they do is always the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from undrift.engine.execution.memory import trim_memory
from undrift.errors import UndriftError

A = TypeVar("A")  # what is asked
R = TypeVar("R")  # what a function returns


class _Stop(BaseException):
    """Unwinds a thread whose result nobody wants any more."""


class _Turn(threading.Thread, Generic[A, R]):
    """One function, run piece by piece on a thread of its own."""

    def __init__(self, function: Callable[[Callable[[A], Any]], R], alone: bool) -> None:
        super().__init__(daemon=True)
        self._function, self._alone = function, alone
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._answer: Any = None
        self._stopping = False
        self.asked: list[A] = []  # one thing while it waits for the answer, else nothing
        self.error: BaseException | None = None
        self.result: R
        self.done = False

    def resume(self, answer: Any = None) -> None:
        """Let it run on."""
        self._answer = answer
        if self.ident is None:
            self.start()
        self._go.release()

    def wait(self) -> None:
        """Until it asks again or ends."""
        self._back.acquire()

    def stop(self) -> None:
        if self.ident is None:
            return
        if not self.done:
            self._stopping = True
            self._go.release()
        self.join()

    def _ask(self, what: A) -> Any:
        self.asked = [what]
        self._back.release()
        self._go.acquire()
        if self._stopping:
            raise _Stop
        self.asked = []
        answer, self._answer = self._answer, None
        return answer

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._alone:
                torch.set_num_threads(1)  # which OpenMP keeps per thread
            with torch.no_grad():  # likewise
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
    """Run all functions, each given `ask`; `meet` answers them when all have asked.

    `finished(i, result)` is called as soon as function i ends. The first error ends all. Function i
    begins when i - `at_once` is done or has asked, so these two never run at the same time.
    """
    turns = [_Turn(function, at_once == 1) for function in functions]
    answers: list[Any] = [None] * len(turns)

    def settle(i: int) -> None:
        turn = turns[i]
        turn.wait()
        if trim:
            # glibc keeps a heap for each thread, so what one node's activations have freed would
            # not serve the next node's, and memory would grow with the number of threads.
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
                answer, answers[i] = answers[i], None  # big ones are freed as they are used up
                turn.resume(answer)
                running.append(i)
                del answer
            for i in running:
                settle(i)
            asked = [turn.asked[0] for turn in turns if not turn.done]
            if not asked:
                return
            if len(asked) < len(turns):
                raise UndriftError(
                    "Peers need to communicate equally often in a round, got some that ended "
                    "while others still ask; give every client the same number of steps."
                )
            answers = list(meet(asked))
    finally:
        for turn in turns:
            turn.stop()
