"""Ctrl-C and SIGTERM: the first is raised or noted, a second ends the process at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from undrift.engine.processes.interrupts import StopSignal, deferred, handled, requested, signal_of

TWICE = """
import os, signal, time
from undrift.engine.processes.interrupts import StopSignal, handled
with handled():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except StopSignal:
        print("saving", flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        print("never", flush=True)
"""


@pytest.fixture(autouse=True)
def heard_interrupts() -> Iterator[None]:
    """Let this process hear Ctrl-C, which a suite started in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_raised_and_the_handlers_come_back(number: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(StopSignal) as stopped, handled():
        os.kill(os.getpid(), number)
    assert signal_of(stopped.value) == number
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert requested() == 0
    assert signal_of(KeyboardInterrupt()) == signal.SIGINT


def test_a_deferred_signal_waits() -> None:
    reached = []

    def wait() -> None:
        with handled(), deferred(True):
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append(requested())

    with pytest.raises(StopSignal) as stopped:
        wait()
    assert reached == [signal.SIGTERM]
    assert signal_of(stopped.value) == signal.SIGTERM


def test_a_second_signal_is_ignored_where_another_process_decides() -> None:
    def stop_twice() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StopSignal), handled(insist=False):
        stop_twice()


def test_a_second_signal_ends_at_once() -> None:
    command = [sys.executable, "-c", TWICE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "saving\n", "")


def test_the_handler_of_a_user_stays() -> None:
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with handled():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_other_threads_leave_the_handlers_alone() -> None:
    found = []

    def look() -> None:
        with handled():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
