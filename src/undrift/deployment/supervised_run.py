"""`undrift federation run` as a process that is started again where it was killed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from undrift.deployment.supervise import SupervisedProgram, Supervisor
from undrift.engine.processes.interrupts import handled, signal_of
from undrift.errors import UndriftError
from undrift.results.filenames import EXPERIMENT

NAME = "run"
RESTARTS = 10  # kills after which an operator must look


def supervise_run(
    command: Sequence[str], first: Sequence[str], out: Path, logs: Path, say: Callable[[str], None]
) -> int:
    """Run a command to its end and return its code, in a shell's way where a signal has ended it.

    `first` are the options of its first start. Once it has begun to write into `out`, a start after
    a kill goes on there. An end with an error is left to the operator.
    """
    before, kills = _stamp(out), 0

    def again() -> list[str]:
        nonlocal kills
        kills += 1
        begun = _stamp(out) != before or "--resume" in first
        options = ["--resume", str(out)] if begun else first
        if kills > RESTARTS:
            raise UndriftError(
                f"A run needs to come to its end, got killed {kills} times; see whether the memory "
                f"suffices, and go on with `{shlex.join(options)}`."
            )
        return [*command, *options]

    run = SupervisedProgram(NAME, [*command, *first], foreground=True, again=again)
    with handled(), Supervisor(logs, say) as supervisor:
        try:
            supervisor.start(run)
            supervisor.watch(lambda: NAME in supervisor.ended)
            code = supervisor.ended[NAME]
        except KeyboardInterrupt as interrupt:
            code = supervisor.hand_on(NAME, signal_of(interrupt))
    return code if code >= 0 else 128 - code


def _stamp(out: Path) -> int | None:
    """Return when an experiment was written into the folder, None if it has none."""
    try:
        return (out / EXPERIMENT).stat().st_mtime_ns
    except OSError:
        return None
