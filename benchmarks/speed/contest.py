"""A contestant seen from the runner: a process that plays a round when it is told to."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.speed import usage
from benchmarks.speed.protocol import Options
from benchmarks.speed.roster import ROOT, Contestant

PATIENCE = 1800.0  # seconds without an answer after which a contestant counts as hung
# Each contestant's set-up says how many threads it gets, not the shell it is started from.
UNSET = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHOME")


class Failed(Exception):
    """Says why a contestant cannot continue."""


class Refused(Failed):
    """Says why a contestant does not take part."""


class Player:
    """Runs a contestant; the time to the first round counts from its start."""

    def __init__(
        self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log, self._rest = log, b""
        self.started = time.perf_counter()
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=env,
                start_new_session=True,  # so that all of its processes can be found, and ended
            )
        self.pid = self.process.pid

    @classmethod
    def start(cls, who: Contestant, options: Options, log: Path) -> Player:
        env = {name: value for name, value in os.environ.items() if name not in UNSET}
        paths = [str(ROOT / "src"), str(ROOT)] if who.peer is None else [str(ROOT)]
        env["PYTHONPATH"] = os.pathsep.join(paths)
        if who.threads is not None:
            env["OMP_NUM_THREADS"] = str(who.threads)
        module = f"benchmarks.speed.contestants.{who.module}"
        return cls([who.python, "-m", module, *options.arguments()], log, env)

    def ready(self) -> dict[str, Any]:
        """Return what the contestant prints when it is ready to play."""
        return self._answer("ready")

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{command}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Failed(self._ended()) from error
        return self._answer({"round": "seconds"}.get(command, command))

    def stop(self) -> None:
        """Wait until the contestant ends by itself, then end what is left of it."""
        found = usage.processes() or {}
        mine = usage.tree(found, self.pid)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(b"stop\n")
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _end(found, mine - {self.pid})
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _answer(self, expected: str) -> dict[str, Any]:
        said = json.loads(self._line())
        if "refused" in said:
            raise Refused(said["refused"])
        if expected not in said:
            raise Failed(f"it needs to say {expected!r}, got {said}.")
        return dict(said)

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        deadline = time.perf_counter() + PATIENCE
        while b"\n" not in self._rest:
            left = deadline - time.perf_counter()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failed(f"it did not answer within {PATIENCE:.0f} s; see {self.log}")
            came = os.read(self.process.stdout.fileno(), 1 << 16)
            if not came:
                raise Failed(self._ended())
            self._rest += came
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _ended(self) -> str:
        words = self.log.read_text(errors="replace").strip().splitlines()
        return f"it ended: {words[-1] if words else 'no word'} (see {self.log})"


def _end(before: dict[int, usage.Process], pids: set[int]) -> None:
    """End those of a contestant's processes that outlived it; a reused number is another's."""
    now = usage.processes() or {}
    for pid in pids & now.keys():
        # Who is left behind gets a new parent but keeps its session.
        if now[pid].session == before[pid].session:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
