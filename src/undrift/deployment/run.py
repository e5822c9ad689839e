"""Running the trials of a federation into a folder, with records as any experiment has them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from undrift.config.experiment import Experiment
from undrift.deployment.agreement import RunColumns
from undrift.deployment.plan import (
    FederatedJob,
    federated_jobs,
    resolved,
    sample_form,
)
from undrift.engine.processes.interrupts import handled, signal_of
from undrift.engine.settings import ExecutionRecord
from undrift.errors import DivergenceError, UndriftError
from undrift.federation import Centre, SiteTransport
from undrift.results.environment import environment
from undrift.results.export import save_safetensors
from undrift.results.filenames import CHECKPOINTS, MODEL
from undrift.results.record import Record
from undrift.results.tracking import Trackers
from undrift.results.tracking import parse as parse_tracker
from undrift.results.trial import Journal, Status, Trial
from undrift.runs.folder import (
    choose_folder,
    claim,
    describe,
    experiment_text,
    lock,
    read_environment,
    repeat_command,
)
from undrift.runs.jobs import ONLY_JOB
from undrift.runs.options import RunOptions
from undrift.runs.result import ExperimentResult
from undrift.runs.run_job import Begun, Recorder, new_trial
from undrift.runs.saved_model import saved_metadata
from undrift.usercode.names import digests as code_digests

CENSUS, AGAIN = 60.0, 600.0  # seconds that a newcomer may take, and until it is asked again
EXECUTION = ExecutionRecord(
    mode="loop", channels_last=False, kernels=False, why="each site computes with its own data"
)


def run_federation(
    experiment: Experiment,
    name: str,
    transport: SiteTransport,
    options: RunOptions,
    *,
    newcomers: Sequence[str] = (),
    admitted: Callable[[], Collection[str]] | None = None,
) -> ExperimentResult:
    """Run all trials of an experiment whose data are behind a transport.

    `newcomers` are sites that go on as new ones because their state is lost. `admitted` returns the
    sites that may take part; a site that is no longer among them leaves before the next round.
    """
    for text in options.track:
        parse_tracker(text, Path())
    experiment = resolved(experiment)
    agree = experiment.federation.agree
    planned = [] if agree else federated_jobs(experiment)
    folder = options.resume or choose_folder(options.out, name)
    recorder = Recorder(folder, track=options.track)
    with handled(), closing(lock(folder, options.spelling)):
        if options.resume is None:
            claim(folder, force=options.force, reads=options.reads, spelling=options.spelling)
            facts = {**environment(options.arguments), "code": code_digests(experiment.code)}
            describe(folder, experiment, facts)
        agreed, said = None, list[str]()
        if agree:
            agreed = RunColumns.of(experiment, folder, transport, said.append)
            planned = federated_jobs(experiment, agreed.columns)
        for text in said:
            options.observer.note(planned[0].job, text)
        changes = _SiteChanges(newcomers, admitted, agreed)
        trials, stopped = _run_all(planned, transport, recorder, options, changes)
        return ExperimentResult(
            folder,
            experiment,
            trials,
            environment=read_environment(folder),
            command=repeat_command(folder, federated=True),
            text=experiment_text(folder, experiment),
            stopped=stopped,
        )


class _SiteChanges(NamedTuple):
    """Says which sites come and go during a run."""

    newcomers: Sequence[str]  # at a resume
    admitted: Callable[[], Collection[str]] | None  # at any time, None for everybody
    agreed: RunColumns | None  # of which newcomers must be told


def _run_all(
    planned: Sequence[FederatedJob],
    transport: SiteTransport,
    recorder: Recorder,
    options: RunOptions,
    changes: _SiteChanges,
) -> tuple[list[Trial], int]:
    observer, done = options.observer, []
    earlier = {each.job.name: recorder.earlier(each.job) for each in planned}
    ended = {name: trial for name, trial in earlier.items() if trial is not None and trial.ended}
    left = [each for each in planned if each.job.name not in ended]
    observer.plan([each.job for each in left], sum(each.experiment.rounds for each in left))
    for each in planned:
        if each.job.name in ended:
            done.append(ended[each.job.name])
            continue
        try:
            trial = _FederatedTrial(each, transport, recorder, options, changes).finish()
        except KeyboardInterrupt as interrupt:
            unfinished = recorder.earlier(each.job)
            command = options.spelling.resume(recorder.folder, search=False)
            observer.interrupt(each.job, unfinished, command)
            done += [] if unfinished is None else [unfinished]
            return done, signal_of(interrupt)
        observer.end(each.job, trial)
        done.append(trial)
    return done, 0


class _FederatedTrial:
    """Runs one trial round by round and tells everyone who follows it."""

    def __init__(
        self,
        planned: FederatedJob,
        transport: SiteTransport,
        recorder: Recorder,
        options: RunOptions,
        changes: _SiteChanges,
    ) -> None:
        self._job, self._recorder, self._observer = planned.job, recorder, options.observer
        folder = recorder.folder / CHECKPOINTS / planned.job.name
        resume = options.resume is not None and any(folder.glob("centre-*"))
        self._centre = Centre(
            planned.experiment,
            transport,
            quorum=planned.job.experiment.training.quorum,
            checkpoint=folder,
            resume=resume,
        )
        self._admitted, self._agreed = changes.admitted, changes.agreed
        self._transport = transport
        self._asked_again: dict[str, float] = {}  # when a newcomer that has failed is asked again
        for name in changes.newcomers if resume else ():
            self._centre.renew(name)
            self._centre.save()  # A start after a kill must not renew it again.
        trial = new_trial(planned.job)
        members = self._centre.ledger.members
        self._facts: dict[str, Any] = {
            **trial.facts,
            **EXECUTION.to_dict(),
            "tests": "by each site on its own samples",
            "processes": 1,
            "digest": planned.experiment.digest,
            "sites": {each.name: {"samples": each.samples} for each in members},
            **({} if self._agreed is None else {"agreement": self._agreed.cost}),
        }
        self._journal = Journal(recorder.folder, planned.job.name, trial, after=self._centre.record)
        self._trackers = Trackers(recorder.trackers(planned.job))

    def finish(self) -> Trial:
        """Run the rounds that are left and return the trial."""
        centre, journal = self._centre, self._journal
        self._trackers.begin(journal.trial)
        for record in journal.records:
            self._trackers.add(record)
        algorithm = repr(centre.experiment.algorithm)
        tests = str(self._facts["tests"])
        begun = Begun(algorithm, EXECUTION, 1, tests, centre.round, journal.moved)
        self._observer.begin(self._job, begun)
        try:
            self._dismiss()
            for record in centre:
                self._add(record)
                self._dismiss()
                self._admit()
            return self._end("finished")
        except DivergenceError as error:
            return self._end("diverged", str(error))
        except KeyboardInterrupt:
            self._end("stopped")
            raise

    def _add(self, record: Record) -> None:
        if record.round > self._journal.round:
            self._journal.add(record)
            self._trackers.add(record)
        self._observer.add(self._job, record)
        for site, reason in self._centre.left_out.items():
            self._observer.note(self._job, f"round {record.round} without {site}: {reason}")
        for site, reason in self._centre.untested.items():
            self._observer.note(self._job, f"round {record.round} tested without {site}: {reason}")

    def _dismiss(self) -> None:
        """Let sites leave that may no longer take part."""
        if self._admitted is not None and self._centre.round < self._centre.rounds:
            for name in self._centre.leave_but(self._admitted()):
                self._observer.note(self._job, f"{name} leaves, since its key is gone.")

    def _admit(self) -> None:
        """Let sites that have connected since take part from the next round on."""
        if self._centre.round < self._centre.rounds:
            for name in self._centre.newcomers():
                if time.monotonic() >= self._asked_again.get(name, 0.0):
                    self._admit_one(name)

    def _admit_one(self, name: str) -> None:
        """Let a newcomer take part; one that hangs or is refused must not hold every round."""
        try:
            if self._agreed is not None:
                for reason in self._agreed.tell(self._transport, [name]).values():
                    raise UndriftError(reason)
            self._centre.enrol([name], seconds=CENSUS)
            self._observer.note(self._job, f"{name} takes part from now on.")
        except UndriftError as error:
            self._asked_again[name] = time.monotonic() + AGAIN
            text = f"A site is not admitted: {error} It is asked again in {AGAIN:g} s."
            self._observer.note(self._job, text)

    def _end(self, status: Status, reason: str = "") -> Trial:
        centre, facts = self._centre, dict(self._facts)
        for name, score in centre.site_scores.items():
            facts["sites"].setdefault(name, {}).update(score._asdict())
        sha256 = centre.model_sha256 if status == "finished" else None
        if status == "finished" and self._job.experiment.engine.save_models:
            self._save_model()
        trial = self._journal.end(
            status,
            reason,
            rounds=centre.rounds,
            totals=centre.totals,
            model_sha256=sha256,
            facts=facts,
        )
        self._trackers.end(trial)
        return trial

    def _save_model(self) -> None:
        experiment, centre = self._job.experiment, self._centre
        agreed = None if self._agreed is None else self._agreed.columns
        form = sample_form(experiment, agreed)
        prefix = "" if self._job.name == ONLY_JOB else f"{self._job.name}-"
        metadata = {
            "round": str(centre.round),
            "label": self._job.label,
            "seed": str(self._job.seed),
            "sha256": centre.model_sha256,
            **saved_metadata(experiment.model, form.shape, form.outputs, form.preprocessing),
        }
        save_safetensors(centre.model, self._recorder.folder / f"{prefix}{MODEL}", metadata)
