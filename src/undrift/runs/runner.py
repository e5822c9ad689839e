"""Running an experiment: everything is checked, then job after job is run into a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from undrift.check import require
from undrift.config.experiment import Engine, Experiment
from undrift.engine.checkpoint.shards import saved
from undrift.engine.processes.interrupts import handled, signal_of
from undrift.engine.processes.rendezvous import join, launched, restarted
from undrift.engine.settings import ExecutionRecord
from undrift.engine.world import World
from undrift.results.environment import environment
from undrift.results.filenames import TUNED
from undrift.results.tracking import parse as parse_tracker
from undrift.results.trial import Trial
from undrift.runs.build import resolve_experiment, with_tests
from undrift.runs.checks import (
    check_jobs,
    check_named_checkpoints,
    check_side_by_side,
    require_same_trial,
    shared_settings,
)
from undrift.runs.executions import Executions
from undrift.runs.folder import (
    choose_folder,
    claim,
    describe,
    experiment_text,
    lock,
    read_environment,
    repeat_command,
    repeated,
)
from undrift.runs.job_count import default_jobs
from undrift.runs.jobs import Job, jobs, positions, read_choice
from undrift.runs.options import RunOptions
from undrift.runs.partition import PartitionCounts, count_partition
from undrift.runs.result import ExperimentResult
from undrift.runs.run_job import Recorder, run_job
from undrift.runs.search import Search, new_search
from undrift.runs.side_by_side import run_side_by_side
from undrift.runs.spelling import resume_checkpoints, start_again
from undrift.usercode.names import digests


def run_experiment(experiment: Experiment, name: str, options: RunOptions) -> ExperimentResult:
    """Run all jobs of an experiment, or those of a search, into `options.out` or `runs/NAME-i`.

    Everything that can be refused is refused before the first round and before anything is written.
    Ctrl-C and SIGTERM end it when what was done is saved; a second one ends it at once.
    """
    sites = experiment.federation.sites
    require(not sites, "A run", "data here, not at sites", sites, "use `undrift federation run`")
    with handled(insist=not launched()), options.vouched_code(experiment):
        if experiment.sweep.tune:
            from undrift.runs.tuned import run_tuned  # which runs its stages here

            return run_tuned(experiment, name, options)
        return run_stage(experiment, name, options)


def run_stage(experiment: Experiment, name: str, options: RunOptions) -> ExperimentResult:
    """Run the jobs of an experiment that does not tune, or of one stage of tuning."""
    for text in options.track:
        parse_tracker(text, Path())
    if launched():  # Sums depend on the number of processes, so the experiment says how many.
        experiment = experiment.changed({"engine.processes": int(os.environ["WORLD_SIZE"])})
    experiment = resolve_experiment(experiment)
    check_side_by_side(experiment, options)
    experiment = with_tests(experiment, check_jobs(_planned(experiment, options)[1]))
    search, planned = _planned(experiment, options)
    wanted = {experiment.methods[i].title for i in positions(experiment, options.only)}
    planned = [job for job in planned if job.method.title in wanted]
    world = join(experiment.engine.timeout) if launched() else World()
    with world.failure_scope():
        world.require_same(shared_settings(experiment, planned))
        # Every process would number a folder of its own, so all take the one that rank 0 chooses.
        folder = options.resume or choose_folder(options.out, name)
        folder = Path(world.texts(str(folder))[0])
        needs_processes = experiment.engine.processes > 1 and not launched()
        if options.start_processes is not None and needs_processes:
            check_named_checkpoints(planned[0], options)
            if options.resume is None:
                with closing(lock(folder, options.spelling)):  # which the processes then take
                    _claim(folder, options)
            options.start_processes(folder, experiment)
        repeats = repeated(experiment, options.reads)
        recorder = Recorder(folder, world.head, options.hash_always, options.track, repeats)
        runner = _Runner(experiment, recorder, options, search, world)
        with runner.locks:
            return runner.run(planned)


def _planned(experiment: Experiment, options: RunOptions) -> tuple[Search | None, list[Job]]:
    """Return the search, if one is wanted, and the jobs, or the first ones of the search."""
    if not options.search:
        choice, folder = options.choice, options.resume
        if choice is None and folder is not None:
            choice = read_choice(folder, TUNED)
        return None, jobs(experiment, choice)
    require(not options.only, options.spelling.option("only"), "no search", "one")
    search = new_search(experiment, options.search, options.spelling)
    return search, list(search.probes())


class _Runner:
    """Runs the jobs of an experiment that was checked and whose folder is chosen."""

    def __init__(
        self,
        experiment: Experiment,
        recorder: Recorder,
        options: RunOptions,
        search: Search | None,
        world: World,
    ) -> None:
        self._experiment, self._recorder, self._options = experiment, recorder, options
        self._search, self._world, self._observer = search, world, options.observer
        self.locks = ExitStack()  # closes the lock of the folder when all is written
        self._resume = options.resume is not None or restarted()
        self._prepared = False
        self._environment: Mapping[str, Any] = {}
        self._partition: PartitionCounts | None = None

    def run(self, planned: Sequence[Job]) -> ExperimentResult:
        """Run what is not finished and return everything."""
        # Named checkpoints are checked by building the run, so the folder is not touched before.
        if self._options.resume_from is None:
            self._prepare_folder()
        trials, stopped = self._run_jobs(planned)
        experiment, folder = self._experiment, self._recorder.folder
        choice = None if self._search is None else read_choice(folder)
        count = None if choice is None else choice.count
        return ExperimentResult(
            folder,
            experiment,
            trials,
            environment=self._environment,
            command=repeat_command(folder, count),
            text=experiment_text(folder, experiment, count),
            partition=self._partition,
            head=self._world.head,
            stopped=stopped,
        )

    def _prepare_folder(self) -> None:
        """Claim and describe the folder once; only one of several processes does so."""
        if self._prepared or not self._world.head:
            return
        self._prepared = True
        experiment, folder, choice = self._experiment, self._recorder.folder, self._options.choice
        self._partition = count_partition(experiment.data, experiment.seeds[0])
        self.locks.enter_context(closing(lock(folder, self._options.spelling)))
        if self._resume:
            self._environment = read_environment(folder)
            if choice is not None:
                choice.write(folder, TUNED)
            return
        self._environment = {
            **environment(self._options.arguments),
            "code": digests(experiment.code),
        }
        _claim(folder, self._options)
        count = None if self._search is None else self._search.count
        describe(folder, experiment, self._environment, count)
        if choice is not None:
            choice.write(folder, TUNED)
        if self._partition is not None:
            self._partition.write(folder)

    def _run_jobs(self, planned: Sequence[Job]) -> tuple[list[Trial], int]:
        """Return the trials in the order of their jobs, and the signal that has stopped them."""
        search, observer = self._search, self._observer
        finished = self._finished_trials(planned)
        # All processes run the same jobs, whatever each of them finds in its own folder.
        names = set(json.loads(self._world.texts(json.dumps(list(finished)))[0]))
        left = [job for job in planned if job.name not in names]
        rounds = search.rounds if search else sum(job.experiment.training.rounds for job in left)
        observer.plan(left, rounds)
        done: list[Trial] = []
        stopped = 0
        count = self._count(left)
        executions = Executions(planned if self._resume else (), self._recorder)
        if count > 1 and len(left) > 1:
            stopped = self._run_side_by_side(left, count, executions, done)
            left = []
        for job in search.jobs(self._recorder.folder, done) if search else left:
            earlier = self._recorder.earlier(job) if search and self._resume else None
            try:
                trial = earlier if earlier and earlier.ended else self._run_job(job, executions)
            except KeyboardInterrupt as interrupt:
                unfinished = self._recorder.earlier(job)
                observer.interrupt(job, unfinished, self._resume_command())
                done += [] if unfinished is None else [unfinished]
                stopped = signal_of(interrupt)
                break
            observer.end(job, trial)
            executions.note(job, ExecutionRecord.from_dict(trial.facts))
            done.append(trial)
        if search:
            return done, stopped
        by_name = {**finished, **{trial.name: trial for trial in done}}
        return [by_name[job.name] for job in planned if job.name in by_name], stopped

    def _run_job(self, job: Job, executions: Executions) -> Trial:
        return run_job(
            job,
            self._recorder,
            self._observer,
            resume=self._resume,
            on_built=self._prepare_folder,
            options={**self._keywords(job.experiment.engine), "like": executions.of(job)},
        )

    def _count(self, left: Sequence[Job]) -> int:
        """Return how many jobs run at a time."""
        options = self._options
        if options.jobs is not None:
            return options.jobs
        alone = options.checkpoint is None and options.resume_from is None and self._search is None
        single = self._experiment.engine.processes == 1 and not launched()
        return default_jobs(left) if alone and single else 1

    def _run_side_by_side(
        self, left: Sequence[Job], count: int, executions: Executions, done: list[Trial]
    ) -> int:
        """Run several jobs at a time, add their trials, and return the signal that has stopped."""
        ended = run_side_by_side(
            left,
            count,
            self._recorder,
            self._observer,
            executions=executions,
            resume=self._resume,
            options=self._keywords(self._experiment.engine),
        )
        try:
            with closing(ended):
                done.extend(ended)  # What ended before an interrupt stays in the list.
        except KeyboardInterrupt as interrupt:
            names = {trial.name for trial in done}
            for job in left:
                unfinished = None if job.name in names else self._recorder.earlier(job)
                if unfinished is not None and not unfinished.ended:
                    self._observer.interrupt(job, unfinished, self._resume_command())
                    done.append(unfinished)
            return signal_of(interrupt)
        return 0

    def _keywords(self, engine: Engine) -> dict[str, Any]:
        """Return the keywords of `simulate` that overrule a job's own."""
        return {
            "timeout": engine.timeout,
            "processes": None if launched() else engine.processes,
            "force": self._options.force,
            **self._options.named_checkpoints,
        }

    def _finished_trials(self, planned: Sequence[Job]) -> dict[str, Trial]:
        """Return by name the trials that an earlier start has finished; refuse another's."""
        if not self._resume or self._search is not None:
            return {}
        trials = {}
        for job in planned:
            earlier = self._recorder.earlier(job)
            if earlier is not None and earlier.ended:
                require_same_trial(job, earlier, self._options.spelling)
                trials[job.name] = earlier
        return trials

    def _resume_command(self) -> str:
        options, folder = self._options, self._recorder.folder
        if options.checkpoint is not None and options.arguments is not None:
            if not saved(options.checkpoint):  # There is nothing yet to go on from.
                replaces = options.out is not None and options.resume_from is None
                return start_again(options.arguments, force=replaces)
            return resume_checkpoints(options.arguments, options.checkpoint, folder)
        return options.spelling.resume(folder, search=self._search is not None)


def _claim(folder: Path, options: RunOptions) -> None:
    if not restarted():
        claim(
            folder,
            force=options.force,
            resume=options.resume_from is not None,
            reads=options.reads,
            spelling=options.spelling,
        )
