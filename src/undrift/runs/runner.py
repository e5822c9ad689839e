"""Running an experiment: everything is checked, then job after job is run into a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from undrift.check import is_whole, require
from undrift.config.experiment import Engine, Experiment
from undrift.engine.processes.rendezvous import join, launched, restarted
from undrift.engine.validate import require_enough_clients
from undrift.engine.world import World
from undrift.optim.schedules import resolve, scheduled
from undrift.results.environment import environment
from undrift.results.filenames import EXPERIMENT
from undrift.results.tracking import parse as parse_tracker
from undrift.results.trial import Trial
from undrift.runs.build import build_clients, build_run, check_run, resolve_experiment
from undrift.runs.folder import (
    choose_folder,
    claim,
    describe,
    experiment_text,
    read_environment,
    repeat_command,
)
from undrift.runs.job_count import default_jobs
from undrift.runs.jobs import Job, jobs, read_choice
from undrift.runs.partition import PartitionCounts, count_partition
from undrift.runs.result import ExperimentResult
from undrift.runs.run_job import Observer, Recorder, new_trial, run_job
from undrift.runs.search import Search, new_search
from undrift.runs.side_by_side import run_side_by_side
from undrift.runs.spelling import KEYWORDS, Spelling


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Says how an experiment is run, whatever the experiment is."""

    out: Path | None = None
    force: bool = False
    resume: Path | None = None  # a folder of results to go on with
    jobs: int | None = None  # how many run at a time in processes of their own; None: by their size
    search: int = 0  # how many cells Optuna chooses for each method; 0: all of the sweep's
    track: Sequence[str] = ()
    checkpoint: Path | None = None  # where a single run saves its state
    checkpoint_every: int = 1
    resume_from: Path | None = None  # checkpoints that a single run goes on from
    reads: Sequence[Path] = ()  # files that must not be removed
    hash_always: bool = False  # whether models are hashed even if processes must send them for it
    arguments: Sequence[str] | None = None  # of the command, for environment.json
    spelling: Spelling = KEYWORDS  # of the options in messages
    observer: Observer = field(default_factory=Observer)
    # A command that starts its own processes does so here, with the folder.
    start_processes: Callable[[Path, Experiment], NoReturn] | None = None


def run_experiment(experiment: Experiment, name: str, options: RunOptions) -> ExperimentResult:
    """Run all jobs of an experiment, or those of a search, into `options.out` or `runs/NAME-i`.

    Everything that can be refused is refused before the first round and before anything is written.
    """
    for text in options.track:
        parse_tracker(text, Path())
    if launched():  # Sums depend on the number of processes, so the experiment says how many.
        experiment = experiment.changed({"engine.processes": int(os.environ["WORLD_SIZE"])})
    experiment = resolve_experiment(experiment)
    search = new_search(experiment, options.search, options.spelling) if options.search else None
    planned = jobs(experiment) if search is None else search.probes()
    _check_jobs(experiment, options)
    _check(planned)
    world = join(experiment.engine.timeout) if launched() else World()
    with world.failure_scope():
        world.require_same(_shared_settings(experiment, planned))
        # Every process would number a folder of its own, so all take the one that rank 0 chooses.
        folder = options.resume or choose_folder(options.out, name)
        folder = Path(world.texts(str(folder))[0])
        needs_processes = experiment.engine.processes > 1 and not launched()
        if options.start_processes is not None and needs_processes:
            _check_named_checkpoints(planned[0], options)
            if options.resume is None:
                _claim(folder, options)
            options.start_processes(folder, experiment)
        repeats = _repeated(experiment, options.reads)
        recorder = Recorder(folder, world.head, options.hash_always, options.track, repeats)
        return _Runner(experiment, recorder, options, search, world).run(planned)


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
        experiment, folder = self._experiment, self._recorder.folder
        self._partition = count_partition(experiment.data, experiment.seeds[0])
        if self._resume:
            self._environment = read_environment(folder)
            return
        self._environment = environment(self._options.arguments)
        _claim(folder, self._options)
        count = None if self._search is None else self._search.count
        describe(folder, experiment, self._environment, count)
        if self._partition is not None:
            self._partition.write(folder)

    def _run_jobs(self, planned: Sequence[Job]) -> tuple[list[Trial], bool]:
        """Return the trials in the order of their jobs, and whether the user has stopped them."""
        search, observer = self._search, self._observer
        finished = self._finished_trials(planned)
        # All processes run the same jobs, whatever each of them finds in its own folder.
        names = set(json.loads(self._world.texts(json.dumps(list(finished)))[0]))
        left = [job for job in planned if job.name not in names]
        rounds = search.rounds if search else sum(job.experiment.training.rounds for job in left)
        observer.plan(left, rounds)
        done: list[Trial] = []
        stopped = False
        count = self._count(left)
        if count > 1 and len(left) > 1:
            stopped = self._run_side_by_side(left, count, done)
            left = []
        for job in search.jobs(self._recorder.folder, done) if search else left:
            earlier = self._recorder.earlier(job) if search and self._resume else None
            try:
                trial = earlier if earlier and earlier.ended else self._run_job(job)
            except KeyboardInterrupt:
                unfinished = self._recorder.earlier(job)
                observer.interrupt(job, unfinished, self._resume_command())
                done += [] if unfinished is None else [unfinished]
                stopped = True
                break
            observer.end(job, trial)
            done.append(trial)
        if search:
            return done, stopped
        by_name = {**finished, **{trial.name: trial for trial in done}}
        return [by_name[job.name] for job in planned if job.name in by_name], stopped

    def _run_job(self, job: Job) -> Trial:
        return run_job(
            job,
            self._recorder,
            self._observer,
            resume=self._resume,
            on_built=self._prepare_folder,
            options=self._keywords(job.experiment.engine),
        )

    def _count(self, left: Sequence[Job]) -> int:
        """Return how many jobs run at a time."""
        options = self._options
        if options.jobs is not None:
            return options.jobs
        alone = options.checkpoint is None and options.resume_from is None and self._search is None
        single = self._experiment.engine.processes == 1 and not launched()
        return default_jobs(left) if alone and single else 1

    def _run_side_by_side(self, left: Sequence[Job], count: int, done: list[Trial]) -> bool:
        """Run several jobs at a time, add their trials, and return whether the user has stopped."""
        ended = run_side_by_side(
            left,
            count,
            self._recorder,
            self._observer,
            resume=self._resume,
            options=self._keywords(self._experiment.engine),
        )
        try:
            with closing(ended):
                done.extend(ended)  # What ended before an interrupt stays in the list.
        except KeyboardInterrupt:
            names = {trial.name for trial in done}
            for job in left:
                unfinished = None if job.name in names else self._recorder.earlier(job)
                if unfinished is not None and not unfinished.ended:
                    self._observer.interrupt(job, unfinished, self._resume_command())
                    done.append(unfinished)
            return True
        return False

    def _keywords(self, engine: Engine) -> dict[str, Any]:
        """Return the keywords of `simulate` that overrule a job's own."""
        return {
            "timeout": engine.timeout,
            "processes": None if launched() else engine.processes,
            **_named_checkpoints(self._options),
        }

    def _finished_trials(self, planned: Sequence[Job]) -> dict[str, Trial]:
        """Return by name the trials that an earlier start has finished; refuse another's."""
        if not self._resume or self._search is not None:
            return {}
        trials = {}
        for job in planned:
            earlier = self._recorder.earlier(job)
            if earlier is not None and earlier.ended:
                _require_same_trial(job, earlier, self._options.spelling)
                trials[job.name] = earlier
        return trials

    def _resume_command(self) -> str:
        spelling, search = self._options.spelling, self._search is not None
        return spelling.resume(self._recorder.folder, search=search)


def _claim(folder: Path, options: RunOptions) -> None:
    if not restarted():
        claim(
            folder,
            force=options.force,
            resume=options.resume_from is not None,
            reads=options.reads,
            spelling=options.spelling,
        )


def _named_checkpoints(options: RunOptions) -> dict[str, Any]:
    """Return the keywords of `simulate` for the folders of checkpoints that a user has named."""
    if options.checkpoint is None and options.resume_from is None:
        return {}
    return {
        "checkpoint": options.checkpoint,
        "checkpoint_every": options.checkpoint_every,
        "resume": options.resume_from,
    }


def _check_named_checkpoints(job: Job, options: RunOptions) -> None:
    """Raise if the checkpoints to go on from are not the job's, before processes are started."""
    if options.resume_from is not None:
        build_run(job.experiment, job.method, job.seed, resume=options.resume_from).close()


def _require_same_trial(job: Job, earlier: Trial, spelling: Spelling) -> None:
    """Raise if an earlier trial of the job's name was another."""
    new = new_trial(job)
    same = all(getattr(new, n) == getattr(earlier, n) for n in ("settings", "rounds", "seed"))
    remedy = f"restore {EXPERIMENT}, or start anew with {spelling.option('out')}"
    expected = f"the experiment that {job.name} was run with"
    require(same, spelling.option("resume"), expected, "another", remedy)


def _check_jobs(experiment: Experiment, options: RunOptions) -> None:
    """Raise if jobs cannot run side by side."""
    name = options.spelling.option("jobs")
    if options.jobs is None:
        return
    require(is_whole(options.jobs) and options.jobs >= 1, name, "a whole number >= 1", options.jobs)
    if options.jobs > 1:
        single = experiment.engine.processes == 1
        processes = experiment.engine.processes
        require(single, name, "one process a job (engine.processes = 1)", processes)
        require(not options.search, name, "no search, which runs one job after the other", "one")
        named = options.checkpoint is None and options.resume_from is None
        require(named, name, "several jobs, not the checkpoints of one", options.jobs)


def _check(planned: Sequence[Job]) -> None:
    """Raise if a job cannot be run."""
    checked: set[str] = set()
    for job in planned:
        engine, method = job.experiment.engine, job.method
        for name in ("drift", "cka", "surface"):  # which see local models through a tap
            single = engine.processes == 1 or not getattr(job.experiment.evaluation, name)
            option = " (--drift)" if name == "drift" else ""
            remedy = f"leave engine.processes (--processes) or evaluation.{name}{option} out"
            require(single, f"evaluation.{name}", "one process", engine.processes, remedy)
        if engine.processes > 1:
            require_enough_clients(engine.processes, build_clients(job.experiment.data, job.seed))
        algorithm = method.build()
        if scheduled(algorithm):
            for t in range(job.experiment.training.rounds):
                resolve(algorithm, t)
        # Jobs of one kind are checked once, because seeds change nothing but the data, and a method
        # checks its hyper-parameters when it is built.
        if job.kind not in checked:
            checked.add(job.kind)
            check_run(job.experiment, method, job.seed)


def _shared_settings(experiment: Experiment, planned: Sequence[Job]) -> dict[str, str]:
    """Return what all processes must have in common before they agree on a folder."""
    return {
        "the trials": ", ".join(job.name for job in planned),
        "training": experiment.training.model_dump_json(),
    }


def _repeated(experiment: Experiment, files: Sequence[Path]) -> Path | None:
    """Return the folder of results whose experiment is run again, if a file names one."""
    for path in files:
        with suppress(ValueError):
            if path.name == EXPERIMENT and Experiment.read(path) == experiment:
                return path.parent
    return None
