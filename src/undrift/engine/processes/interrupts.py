"""Signals that stop a run: Ctrl-C (SIGINT) and SIGTERM mean the same.

The first raises `StopSignal`, so that what was done is saved; a second ends the process at once. A
run of several processes must stop everywhere after the same round, so there the first is only
noted, and the processes agree at the end of a round.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal(KeyboardInterrupt):
    """Says that a signal asks this process to stop."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number


@dataclass
class _Handling:
    """Holds what this process does with signals now; there is one, `_NOW`."""

    active: bool = False
    deferred: bool = False  # whether a signal is noted and nothing is raised
    number: int = 0  # the signal that has come, 0 for none


_NOW = _Handling()


def requested() -> int:
    """Return the signal that asks this process to stop, 0 for none."""
    return _NOW.number


def signal_of(error: KeyboardInterrupt) -> int:
    """Return the signal that an interrupt stands for; Python's own is that of Ctrl-C."""
    return error.number if isinstance(error, StopSignal) else int(signal.SIGINT)


@contextmanager
def handled(signals: Sequence[int] = SIGNALS, *, insist: bool = True) -> Iterator[None]:
    """Let the signals stop what runs in the block, and have their earlier handlers back after it.

    A second signal ends the process at once; without `insist` it is ignored, because the process
    that started this one decides. Only the main thread may set handlers, and a handler that the
    user has set stays.
    """
    own = [each for each in signals if signal.getsignal(each) in _REPLACED]
    if _NOW.active or not own or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        if _NOW.number and insist:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not _NOW.number:
            _NOW.number = number
            if not _NOW.deferred:
                raise StopSignal(number)

    before = {each: signal.signal(each, stop) for each in own}
    _NOW.active = True
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _NOW.active, _NOW.number = False, 0


_REPLACED = (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def deferred(wanted: bool) -> Iterator[None]:
    """Keep signals of the block for `requested`; one that is still there is raised after it."""
    if not wanted:
        yield
        return
    _NOW.deferred = True
    try:
        yield
    finally:
        _NOW.deferred = False
    if _NOW.number:
        raise StopSignal(_NOW.number)


def end_with_starter() -> None:
    """End this process as soon as the one that started it by `multiprocessing` has gone."""
    starter = multiprocessing.parent_process()

    def watch() -> None:
        if starter is not None:
            starter.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
