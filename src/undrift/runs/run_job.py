"""Running one job of an experiment into the experiment's folder."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undrift.config.hyperparameters import hyper_parameters
from undrift.core import Federated
from undrift.engine.checkpoint.shards import saved
from undrift.engine.processes.interrupts import deferred
from undrift.engine.run import Run
from undrift.engine.settings import ExecutionRecord
from undrift.errors import DivergenceError, StallWarning
from undrift.results.export import save_safetensors
from undrift.results.filenames import CHECKPOINTS, CLIENT_METRICS, MODEL, TRACKED
from undrift.results.record import Record
from undrift.results.tracking import CSV, Tracker, Trackers
from undrift.results.tracking import parse as parse_tracker
from undrift.results.trial import Journal, Status, Trial, read_trial, write_result
from undrift.runs.build import build_run, data_counts
from undrift.runs.jobs import ONLY_JOB, Job
from undrift.runs.local_models import LocalModels, drift_log, local_models
from undrift.runs.saved_model import model_metadata


@dataclass(frozen=True)
class Begun:
    """Says how a run that begins is executed."""

    algorithm: str
    execution: ExecutionRecord
    processes: int
    tests: str  # how often and on how many samples models are tested
    round: int  # not 0 if the run goes on from a checkpoint
    moved: str | None = None  # the file with the records of an earlier start without a checkpoint

    @classmethod
    def of(cls, run: Run, moved: str | None = None) -> Begun:
        """Return what there is to say of a run before its first round."""
        return cls(repr(run.algorithm), run.execution, run.world.size, run.tests, run.round, moved)


def moved_aside(job: Job, name: str) -> str:
    """Return the sentence on a job that starts anew although it has records."""
    return (
        f"{job.label}, seed {job.seed}, starts again, since it left no checkpoint; its earlier "
        f"records are in {name}."
    )


class Observer:
    """Hears of every job of an experiment while it runs; a subclass overrides what it needs.

    `plan` comes first, then `begin`, `add` after every round, at most one `stall`, and `end` for
    each job. In a search a job that an earlier start has finished has an `end` alone; elsewhere it
    is not announced.
    Jobs that run side by side are heard of in turns.
    """

    def plan(self, planned: Sequence[Job], rounds: int) -> None:
        """Hear of the jobs, or the first ones of a search, and of the rounds of all of them."""

    def begin(self, job: Job, begun: Begun) -> None:
        """Hear that a job begins, and how it is executed."""

    def add(self, job: Job, record: Record) -> None:
        """Hear of a round that is done and written."""

    def stall(self, job: Job, text: str) -> None:
        """Hear that the loss of a job has not moved from its start, and why that may be."""
        warnings.warn(f"{job.label}, seed {job.seed}: {text}", StallWarning, stacklevel=2)

    def note(self, job: Job, text: str) -> None:
        """Hear what happened in a round, such as that a site was left out."""

    def end(self, job: Job, trial: Trial) -> None:
        """Hear of a job that has come to an end."""

    def interrupt(self, job: Job, trial: Trial | None, command: str) -> None:
        """Hear that the user has stopped a job; `command` goes on with the experiment."""


@dataclass(frozen=True)
class Recorder:
    """Says where the trials of an experiment are written, and what else is kept of them."""

    folder: Path
    writes: bool = True  # whether this process is the one that writes
    hash_always: bool = False  # whether models are hashed even if processes must send them for it
    track: Sequence[str] = ()  # trackers by name or module:Class
    repeats: Path | None = None  # the folder whose experiment is run anew

    def earlier(self, job: Job) -> Trial | None:
        """Return the trial as an earlier start has left it in the folder."""
        return read_trial(self.folder, job.name)

    def trackers(self, job: Job) -> list[Tracker]:
        """Return the trackers of a job: its CSV file, and those that the user named."""
        named = [parse_tracker(text, self.folder / TRACKED) for text in self.track]
        return [CSV(self.folder / f"{job.name}.csv"), *named]


def recorded_execution(job: Job, recorder: Recorder) -> ExecutionRecord | None:
    """Return how the job was executed before, so that it gives the same bits again.

    A record in the folder decides, or else one in the folder whose experiment is run anew.
    """
    if job.experiment.engine.processes > 1:
        return None  # Several processes choose by rules that do not depend on the machine.
    for folder in (recorder.folder, recorder.repeats):
        earlier = None if folder is None else read_trial(folder, job.name)
        record = None if earlier is None else ExecutionRecord.from_dict(earlier.facts)
        if record is not None:
            return record
    return None


def new_trial(job: Job) -> Trial:
    """Return the trial of a job before its first round."""
    inner: Any = job.method.build()
    while hasattr(inner, "inner"):
        inner = inner.inner
    wrappers = {
        name: value
        for name in ("accelerate", "codec", "error_feedback")
        if (value := getattr(job.method, name))
    }
    return Trial(
        label=job.label,
        method=type(inner).__name__,
        settings={**hyper_parameters(inner), **wrappers},
        seed=job.seed,
        rounds=job.experiment.training.rounds,
        facts={"title": job.method.title, "cell": dict(job.cell)},
        name=job.name,
    )


def has_data_of(trial: Trial, job: Job) -> bool:
    """Return whether this machine has as much of the data as the trial was made with.

    A trial that was written without such counts is taken to have had the same.
    """
    return trial.facts.get("data") in (None, data_counts(job.experiment.data))


def run_job(
    job: Job,
    recorder: Recorder,
    observer: Observer,
    *,
    resume: bool = False,
    on_built: Callable[[], None] = lambda: None,
    options: Mapping[str, Any] | None = None,
) -> Trial:
    """Run one job to its end and return its trial.

    A divergence is a result. An interrupt saves the run, ends the trial as stopped and is raised;
    several processes stop together at the end of a round. With `resume` the job goes on from its
    checkpoints in the folder. `on_built` is called when the run is built and no result is written
    yet. `options` are keywords of `simulate` that overrule all others.
    """
    keywords = {**_checkpoints(job, recorder.folder, resume=resume), **(options or {})}
    local = local_models(job)
    if local is not None:
        keywords["tap"] = local.tap
    with closing(build_run(job.experiment, job.method, job.seed, **keywords)) as run:
        on_built()
        with deferred(run.world.size > 1):
            return _JobInProgress(job, run, recorder, observer, local).finish()


def _checkpoints(job: Job, folder: Path, *, resume: bool) -> Mapping[str, Any]:
    """Return the keywords of `simulate` for checkpoints in the experiment's folder."""
    every = job.experiment.engine.checkpoint_every
    if every == 0:
        return {}
    place = folder / CHECKPOINTS / job.name
    return {
        "checkpoint": place,
        "checkpoint_every": every,
        "resume": place if resume and saved(place) else None,
    }


class _JobInProgress:
    """Runs a job round by round and tells everyone who follows it."""

    def __init__(
        self,
        job: Job,
        run: Run,
        recorder: Recorder,
        observer: Observer,
        local: LocalModels | None,
    ) -> None:
        self._job, self._run, self._recorder, self._observer = job, run, recorder, observer
        self._writes = recorder.writes and run.world.head
        trial = new_trial(job)
        # The facts are written at the start, so that a run that is killed goes on alike.
        self._facts = {
            **trial.facts,
            **run.execution.to_dict(),
            "tests": run.tests,
            "processes": run.world.size,
            "data": data_counts(job.experiment.data),
        }
        self._trial = replace(trial, facts=self._facts)
        folder = recorder.folder if self._writes else None
        self._journal = Journal(folder, job.name, self._trial, after=run.record)
        self._trackers = Trackers(recorder.trackers(job) if self._writes else [])
        self._local = local
        self._drift_log = drift_log(local, recorder.folder / job.name if self._writes else None)

    def finish(self) -> Trial:
        """Run the rounds that are left and return the trial."""
        self._begin()
        self._run.tell_stall(lambda text: self._observer.stall(self._job, text))
        try:
            for record in self._run:
                self._add(record)
            return self._end("finished")
        except DivergenceError as error:
            return self._end("diverged", str(error))
        except KeyboardInterrupt:
            self._stop()
            raise

    def _stop(self) -> None:
        """Save the run and end its trial; several processes have saved when they agreed to stop."""
        try:
            if self._run.world.size == 1:
                self._run.save()
        finally:
            self._end("stopped")

    def _begin(self) -> None:
        journal = self._journal
        records = journal.records
        last = self._run.record and (records or [self._run.record])[-1]
        before = replace(journal.trial, records=records[:-1])
        if self._drift_log is not None:
            self._drift_log.begin(replace(journal.trial, records=records))
        self._trackers.begin(before)
        if last is not None:
            self._trackers.add(last)
        self._observer.begin(self._job, Begun.of(self._run, journal.moved))

    def _add(self, record: Record) -> None:
        if record.round > self._journal.round:  # A round that was recorded before a kill stays.
            # The drift comes first, because a checkpoint brings back a record but not its drift.
            if self._drift_log is not None:
                self._drift_log.add()
            self._journal.add(record)
            self._trackers.add(record)
        self._observer.add(self._job, record)

    def _end(self, status: Status, reason: str = "") -> Trial:
        run, facts = self._run, dict(self._facts)
        if run.stopped_early:
            facts["stopped_early"] = run.stopped_early
        if run.stalled:
            facts["stalled"] = run.stalled
        if self._drift_log is not None:
            facts["drift"] = self._drift_log.recent()
        sha256 = self._model_sha256() if status == "finished" else None
        if status == "finished" and self._job.experiment.engine.save_models:
            self._save_model(sha256)
        if status == "finished" and self._local is not None and self._writes:
            prefix = self._recorder.folder / self._job.name
            self._local.write_surface(run, prefix, f"{self._trial.label}, round {run.round}")
        if run.client_values and self._writes:
            self._write_client_metrics()
        rounds = run.rounds  # fewer than were planned if the run stopped early
        trial = self._journal.end(
            status, reason, rounds=rounds, totals=run.totals, model_sha256=sha256, facts=facts
        )
        self._trackers.end(trial)
        if trial.ended:
            run.discard_checkpoints()
        return trial

    def _write_client_metrics(self) -> None:
        """Write the last test of each client as CSV; a run without a new one keeps its file."""
        prefix = "" if self._job.name == ONLY_JOB else f"{self._job.name}-"
        found = self._run.client_values
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["client", "name", *list(next(iter(found.values())))[1:]])
        for name, each in found.items():
            number, *figures = each.values()
            writer.writerow([number, name, *figures])
        write_result(self._recorder.folder / f"{prefix}{CLIENT_METRICS}", text.getvalue())

    def _model_sha256(self) -> str | None:
        run = self._run
        # Peers in several processes must send all that they hold to have it hashed.
        cheap = run.world.size == 1 or isinstance(run.algorithm, Federated)
        hashed = run.whole and (cheap or self._recorder.hash_always)
        return run.model_sha256 if hashed else None

    def _save_model(self, sha256: str | None) -> None:
        # Peers in several processes need each other for the model, so all of them ask for it.
        model = self._run.best_model  # the current one without early stopping
        if not self._writes:
            return
        prefix = "" if self._job.name == ONLY_JOB else f"{self._job.name}-"
        best = self._run.best
        metadata = {
            "round": str(best.round if best is not None else self._run.round),
            "label": self._trial.label,
            "seed": str(self._trial.seed),
        }
        if sha256 and best is None:
            metadata["sha256"] = sha256
        metadata |= model_metadata(self._job.experiment)
        save_safetensors(model, self._recorder.folder / f"{prefix}{MODEL}", metadata)
