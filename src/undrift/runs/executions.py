"""The execution of an experiment's jobs is chosen once for all jobs of a kind."""

from __future__ import annotations

from collections.abc import Iterable

from undrift.engine.settings import ExecutionRecord
from undrift.runs.jobs import Job, kind_of
from undrift.runs.run_job import Recorder, recorded_execution


class Executions:
    """Remembers for each kind of job how its first one is executed.

    Otherwise each job would measure for itself, and those of one method might end up in different
    modes, whose results differ by float rounding.
    """

    def __init__(self, begun: Iterable[Job], recorder: Recorder) -> None:
        """Take over how jobs were executed before, in the order of the jobs."""
        self._recorder = recorder
        self._chosen: dict[str, ExecutionRecord] = {}
        for job in begun:
            self.of(job)

    def of(self, job: Job) -> ExecutionRecord | None:
        """Return how this job was executed before, or else the first of its kind, if either was."""
        earlier = recorded_execution(job, self._recorder)
        self.note(job, earlier)
        return self._chosen.get(kind_of(job)) if earlier is None else earlier

    def note(self, job: Job, record: ExecutionRecord | None) -> None:
        """Take over how a job is executed, unless one of its kind was before it."""
        if record is not None and job.experiment.engine.processes == 1:
            self._chosen.setdefault(kind_of(job), record)
