"""The log of a run: a line for each thing that happens, beside the logs of what serves it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from undrift.deployment.lines import RUN_LOG, LogLines
from undrift.errors import first_line
from undrift.results.record import Record
from undrift.results.trial import Trial
from undrift.runs.jobs import Job
from undrift.runs.run_job import Begun, Observer


class RunLog(Observer):
    """Writes what an observer hears into a file as well, and how a run ends."""

    def __init__(self, folder: Path, shown: Observer, *, quiet: bool = False) -> None:
        self._lines, self._shown = LogLines(folder / RUN_LOG, quiet=quiet), shown
        self.say, self._write = self._lines.say, self._lines.write

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self._write(f"error: {first_line(error)}.")
        self._lines.close()

    def plan(self, planned: Sequence[Job], rounds: int) -> None:
        self._write(f"{len(planned)} trials, {rounds} rounds")
        self._shown.plan(planned, rounds)

    def begin(self, job: Job, begun: Begun) -> None:
        self._write(f"{_label(job)}: {begun.algorithm} begins after round {begun.round}")
        self._shown.begin(job, begun)

    def add(self, job: Job, record: Record) -> None:
        self._write(f"{_label(job)}: {record}")
        self._shown.add(job, record)

    def stall(self, job: Job, text: str) -> None:
        self._write(f"{_label(job)}: {text}")
        self._shown.stall(job, text)

    def note(self, job: Job, text: str) -> None:
        self._write(f"{_label(job)}: {text}")
        self._shown.note(job, text)

    def end(self, job: Job, trial: Trial) -> None:
        reason = f": {trial.reason}" if trial.reason else ""
        self._write(f"{_label(job)}: {trial.status} after round {len(trial.records)}{reason}")
        self._shown.end(job, trial)

    def interrupt(self, job: Job, trial: Trial | None, command: str) -> None:
        self._write(f"{_label(job)}: stopped; go on with {command}")
        self._shown.interrupt(job, trial, command)


def _label(job: Job) -> str:
    return f"{job.label}, seed {job.seed}"
