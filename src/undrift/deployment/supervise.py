"""Supervision of the programs of a federation: started, logged, started again, ended together."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

from undrift.deployment.accounts import Account
from undrift.errors import UndriftError

PAUSE, LONGEST_PAUSE = 3.0, 15.0  # seconds until a program that has ended is started again
TAIL = 2**14  # bytes of a log in which marks are looked for
HEALTHY = 30.0  # seconds after which a program counts as well
GRACE = 10.0  # seconds until a program that was asked to end is killed
_PDEATHSIG = 1  # of Linux's prctl


class Hopeless(NamedTuple):
    """Says that starting a program again is of no use after so many seconds of trying.

    Without a sentence it is what follows the text in the log.
    """

    sentence: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class SupervisedProgram:
    """Describes a program that is to run all the time."""

    name: str
    command: Sequence[str]
    variables: Mapping[str, str] | None = None  # None: those of this process
    account: Account | None = None  # None: the user of this process
    hopeless: Mapping[str, Hopeless] = field(default_factory=dict)  # by texts of its log
    stuck: Sequence[str] = ()  # texts of its log after which it does nothing, though it runs
    # It writes where this process does, in its folder, and is over unless a signal has ended it.
    foreground: bool = False
    again: Callable[[], Sequence[str]] | None = None  # the command of later starts, if it differs


@dataclass
class _Running:
    """Holds a program that was started."""

    program: SupervisedProgram
    process: subprocess.Popen[bytes]
    log_begin: int  # where the log of this start begins
    started: float
    failing: float  # since when it has not been well
    pause: float  # before the next start
    told: bool = False  # whether was said why it ends


def printed(command: Sequence[str], variables: Mapping[str, str] | None) -> str:
    """Return a command as a shell takes it, with the variables that differ from those here."""
    path = os.environ.get("PATH", os.defpath)
    words = []
    for name, value in (variables or {}).items():
        if name == "PATH" and value.endswith(f"{os.pathsep}{path}"):
            words.append(f'PATH={shlex.quote(value.removesuffix(path))}"$PATH"')
        elif os.environ.get(name) != value:
            words.append(f"{name}={shlex.quote(value)}")
    return " ".join([*words, shlex.join(command)])


def unstartable(program: str, error: OSError) -> UndriftError:
    """Return the error for a program that is not there, or whose environment was moved."""
    return UndriftError(
        f"A federation needs programs that can be started, got {error.strerror} for {program!r}; "
        "make their environment anew where it is, since it cannot be moved."
    )


class Supervisor:
    """Runs programs; each has a log `NAME.log` in one folder."""

    def __init__(self, logs: Path, say: Callable[[str], None]) -> None:
        self._logs, self._say = logs, say
        self._running: dict[str, _Running] = {}
        self._due: dict[str, tuple[float, _Running]] = {}  # when a program is started again
        self.ended: dict[str, int] = {}  # codes of programs of the foreground that are over
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, program: SupervisedProgram) -> None:
        """Start a program and say how."""
        as_user = "" if program.account is None else f" (as {program.account.name})"
        self._say(f"{program.name}{as_user}: {printed(program.command, program.variables)}")
        self._launch(program)

    def check(self) -> None:
        """Start again what has ended; raise if that would be of no use."""
        now = time.monotonic()
        for name, each in list(self._running.items()):
            if each.process.poll() is None:
                if any(mark in self._text(each) for mark in each.program.stuck):
                    self._say(f"{name} has given up; it is ended.")
                    _signal(each.process, signal.SIGKILL)
                continue
            del self._running[name]
            if each.program.foreground and each.process.returncode >= 0:
                self.ended[name] = each.process.returncode
                continue
            if now - each.started > HEALTHY:
                each.failing, each.pause, each.told = now, PAUSE, False
            self._raise_if_hopeless(each, now)
            self._say(f"{name} ended with {each.process.returncode}; it is started again.")
            self._due[name] = (now + each.pause, each)
        for name, (when, each) in list(self._due.items()):
            if now >= when:
                del self._due[name]
                again = each.program.again
                program = each.program if again is None else replace(each.program, command=again())
                self._launch(program, each)

    def _raise_if_hopeless(self, each: _Running, now: float) -> None:
        text = self._text(each) if each.program.hopeless else ""
        for mark, hopeless in each.program.hopeless.items():
            if mark not in text:
                continue
            sentence = hopeless.sentence or text.partition(mark)[2].splitlines()[0].strip()
            if now - each.failing >= hopeless.seconds:
                raise UndriftError(f"{sentence} The log is {self._log(each.program.name)}.")
            if not each.told:
                self._say(f"{sentence} It is tried for {hopeless.seconds:g} s.")
                each.told = True

    def _text(self, each: _Running) -> str:
        """Return the end of what a program has logged since it was started."""
        with self._log(each.program.name).open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(each.log_begin, size - TAIL))
            return log.read().decode(errors="replace")

    def watch(self, until: Callable[[], bool] = lambda: False) -> None:
        """Supervise until `until` returns True."""
        while not until():
            self.check()
            time.sleep(0.3)

    def hand_on(self, name: str, number: int) -> int:
        """Send a signal to a program alone, wait until it has ended, and return its code."""
        each = self._running.get(name)
        if each is None:  # It is to be started again, which is no longer wanted.
            return -number
        with suppress(OSError):
            each.process.send_signal(number)
        return each.process.wait()

    def stop(self) -> None:
        """End all programs, and what they have started."""
        processes = [each.process for each in self._running.values()]
        for process in processes:
            _signal(process, signal.SIGTERM)
        end = time.monotonic() + GRACE
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            _signal(process, signal.SIGKILL)
            process.wait()
        self._running.clear()

    def _launch(self, program: SupervisedProgram, before: _Running | None = None) -> None:
        with self._output(program) as output:
            begin = 0 if output is None else output.tell()
            try:
                process = subprocess.Popen(
                    list(program.command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=None if output is None else subprocess.STDOUT,
                    env=None if program.variables is None else dict(program.variables),
                    cwd=None if program.foreground else "/",
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                    **({} if program.account is None else program.account.popen),
                )
            except OSError as error:
                raise unstartable(program.command[0], error) from error
        started = _Running(program, process, begin, now := time.monotonic(), now, PAUSE)
        if before is not None:
            started.failing, started.told = before.failing, before.told
            started.pause = min(LONGEST_PAUSE, 2 * before.pause)
        self._running[program.name] = started

    @contextmanager
    def _output(self, program: SupervisedProgram) -> Iterator[IO[bytes] | None]:
        """Open the log of a program; one of the foreground has none."""
        if program.foreground:
            yield None
            return
        path = self._log(program.name)
        path.touch(mode=0o600)
        # A site's log may quote a cell of its table, and what Flower runs is another user.
        path.chmod(0o600)
        with path.open("ab") as log:
            yield log

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a program and all that it has started."""
    with suppress(OSError):
        os.killpg(process.pid, number)


def _end_with_parent() -> None:
    """Let this new process be killed when the supervisor has gone, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
