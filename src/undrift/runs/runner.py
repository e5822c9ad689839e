"""What `run`, `compare` and `sweep` have in common: check everything, then run job after job."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import typer
from rich.console import Console
from rich.markup import escape
from undrift.engine.processes import elastic

from undrift.report import terminal
from undrift.runs.run_job import Recorder, run_job, described
from undrift.check import require
from undrift.engine.processes.rendezvous import launched, restarted
from undrift.engine.run import Run
from undrift.engine.validate import require_enough_clients
from undrift.engine.world import World
from undrift.results.environment import environment
from undrift.config.experiment import Experiment
from undrift.runs.folder import ENVIRONMENT, EXPERIMENT, TRACKED, claim, describe
from undrift.runs.build import deal, resolved, start
from undrift.results.record import Record
from undrift.report.collect import keep_partition
from undrift.results.trial import Trial
from undrift.optim.schedules import resolve, scheduled
from undrift.runs.jobs import Job, jobs
from undrift.results.tracking import CSV
from undrift.results.tracking import Tracker
from undrift.results.tracking import parse as parse_tracker


@dataclass(frozen=True)
class RunOptions:
    """How a command is to go about it, whatever the experiment is."""

    out: Path | None = None
    force: bool = False
    resume: Path | None = None  # a folder of results
    quiet: bool = False
    verbose: bool = False
    track: Sequence[str] = ()
    kept: dict[str, Any] = field(default_factory=dict)  # checkpoint and resume of a single run
    reads: Sequence[Path] = ()  # what must not be removed
    hashes: bool = False  # whether models are hashed also where that is dear


@dataclass(frozen=True)
class ExperimentResult:
    experiment: Experiment
    folder: Path
    trials: list[Trial]
    head: bool  # whether this process prints
    stopped: bool  # by the user

    @property
    def single(self) -> bool:
        """Whether one method was run with one seed, and nothing else."""
        return len(self.trials) == 1 and self.experiment.sweep.empty


def from_folder(folder: Path) -> Experiment:
    """The experiment that a folder of results was made with."""
    path = folder / EXPERIMENT
    if not (path.is_file() and (folder / ENVIRONMENT).is_file()):
        raise ValueError(
            f"--resume needs a folder of results with its {EXPERIMENT}, got {str(folder)!r}; name "
            "one that `undrift run`, `compare` or `sweep` has written."
        )
    return Experiment.read(path)


class Searching(Protocol):
    """Jobs that are made one after another, in the light of what came of those before."""

    @property
    def count(self) -> int: ...  # of cells for each method
    @property
    def rounds(self) -> int: ...  # of all of them, as far as one knows
    def probes(self) -> list[Job]: ...  # to be checked
    def jobs(self, folder: Path, done: Sequence[Trial]) -> Iterable[Job]: ...


def conduct(
    experiment: Experiment, kind: str, asked: RunOptions, *, search: Searching | None = None
) -> ExperimentResult:
    """Run all jobs of an experiment into a folder, or those of a search; `kind` names it."""
    for text in asked.track:
        parse_tracker(text, Path())
    if launched():  # the same number again gives the same sums
        experiment = experiment.changed({"engine.processes": int(os.environ["WORLD_SIZE"])})
    experiment = resolved(experiment)
    planned = jobs(experiment) if search is None else search.probes()
    going_on = asked.resume is not None or restarted()
    head = elastic.rank() == 0
    world = _check(planned, asked)
    several = experiment.engine.processes > 1 and not launched()
    folder = asked.resume or claim(
        asked.out,
        kind,
        force=asked.force,
        going_on=asked.kept.get("resume") is not None,
        write=head,
        reads=asked.reads,
    )
    if several:
        _in_processes(folder, experiment, asked)
    folder = Path(world.texts(str(folder))[0])  # the head's, where each would choose its own
    files = [path for path in asked.reads if path.name == EXPERIMENT]
    repeats = [path.parent for path in files if Experiment.read(path) == experiment]
    recorder = Recorder(
        folder,
        head,
        asked.hashes,
        lambda job: _trackers(job, folder, asked.track),
        repeats[0] if repeats else None,
    )
    if head and not going_on:
        count = None if search is None else search.count
        describe(folder, experiment, environment(sys.argv[1:]), count)
        keep_partition(folder, experiment.data, experiment.seeds[0])
    ended = _ended(planned, recorder) if going_on and search is None else {}
    names = set(json.loads(world.texts(json.dumps(list(ended)))[0]))  # as the head has found
    console = Console(stderr=True, quiet=not head)
    left = [job for job in planned if job.name not in names] if search is None else planned
    trials, stopped = _all(left, search, recorder, console, asked, going_on=going_on)
    done = {**ended, **{trial.name: trial for trial in trials}}
    trials = [done[job.name] for job in planned if job.name in done] if search is None else trials
    return ExperimentResult(experiment, folder, trials, head, stopped)


def _ended(planned: Sequence[Job], recorder: Recorder) -> dict[str, Trial]:
    """What an earlier start has brought to an end, if it was the same."""
    found = {}
    for job in planned:
        before = recorder.earlier(job)
        if before is None or not before.ended:
            continue
        asked, was = described(job), before
        same = (asked.settings, asked.rounds, asked.seed) == (was.settings, was.rounds, was.seed)
        remedy = f"restore {EXPERIMENT}, or start anew with --out"
        expected = f"the experiment that {job.name} was run with"
        require(same, "--resume", expected, "another", remedy)
        found[job.name] = before
    return found


def _check(planned: Sequence[Job], asked: RunOptions) -> World:
    """Refuse what cannot be run, before the first round; the processes that are to run it."""
    seen: set[str] = set()
    world = World()
    for job in planned:
        engine, method = job.experiment.engine, job.method
        alone = engine.processes == 1 or not job.experiment.evaluation.drift
        remedy = "leave --processes or --drift out"
        require(alone, "evaluation.drift", "one process", engine.processes, remedy)
        if engine.processes > 1 and not launched():
            require_enough_clients(engine.processes, deal(job.experiment.data, job.seed))
        algorithm = method.build()
        if scheduled(algorithm):
            for t in range(job.experiment.training.rounds):
                resolve(algorithm, t)
        # Seeds differ in the data only, and hyper-parameters have been checked already.
        form = {"methods", "seeds", "title"}
        wrapped = method.name, method.work, method.accelerate, method.codec, method.error_feedback
        same = f"{job.experiment.model_dump_json(exclude=form)} {wrapped}"
        if same not in seen:
            seen.add(same)
            options: dict[str, Any] = {"timeout": engine.timeout, "resume": asked.kept.get("resume")}
            world = start(job.experiment, method, job.seed, **options).world
    return world


def _in_processes(folder: Path, experiment: Experiment, asked: RunOptions) -> None:
    """Start this command again, in several processes, and end as they do."""
    engine = experiment.engine
    saves = engine.checkpoint_every > 0 or asked.kept.get("checkpoint") is not None
    arguments = sys.argv[1:]
    if asked.resume is None:
        arguments = elastic.without_option(arguments, "--out")
        arguments = [*arguments, "--out", str(folder)]
    code = elastic.in_processes(arguments, engine.processes, engine.max_restarts if saves else 0)
    raise typer.Exit(code)


def _trackers(job: Job, folder: Path, track: Sequence[str]) -> list[Tracker]:
    more = [parse_tracker(text, folder / TRACKED) for text in track]
    return [CSV(folder / f"{job.name}.csv"), *more]


def _all(
    planned: Sequence[Job],
    search: Searching | None,
    recorder: Recorder,
    console: Console,
    asked: RunOptions,
    *,
    going_on: bool,
) -> tuple[list[Trial], bool]:
    terminal.one_step([job.method.build() for job in planned], console)
    done: list[Trial] = []
    total = search.rounds if search else sum(job.experiment.training.rounds for job in planned)
    with terminal.bar(console, quiet=asked.quiet or console.quiet) as progress:
        task = progress.add_task("", total=total, accuracy="-")
        for job in search.jobs(recorder.folder, done) if search else planned:
            before = recorder.earlier(job) if going_on and search else None
            label = f"{job.label} seed {job.seed}" if len(planned) > 1 else job.label
            if before is not None and before.ended:
                done.append(before)
                progress.update(task, advance=before.rounds)
                continue

            def watch(run: Run, record: Record | None, label: str = label) -> None:
                if record is None:
                    _announce(run, console, asked, several=len(planned) > 1)
                    progress.update(task, description=escape(label), advance=run.round)
                else:
                    shown = terminal.percent(record.accuracy)
                    progress.update(task, advance=1, accuracy=shown)

            options = {"timeout": job.experiment.engine.timeout, **asked.kept}
            if launched():
                options["processes"] = None
            try:
                trial = run_job(job, recorder, watch, going_on=going_on, **options)
            except KeyboardInterrupt:
                left = recorder.earlier(job)
                after = f" after round {left.records[-1].round}" if left and left.records else ""
                go_on = f"go on with undrift {_going_on(search)} --resume {recorder.folder}"
                told = f"{label}: stopped{after}; what was done is kept, {go_on}"
                console.print(told, highlight=False, markup=False)
                return [*done, *([left] if left else [])], True
            if trial.status == "diverged" and len(planned) > 1:
                console.print(f"{label}: {trial.reason}", highlight=False, markup=False)
                progress.update(task, advance=trial.rounds - len(trial.records))
            done.append(trial)
    return done, False


def _going_on(search: Searching | None) -> str:
    return "run" if search is None else "sweep"


def _announce(run: Run, console: Console, asked: RunOptions, *, several: bool) -> None:
    """Say what begins: of a single run always, of many only if asked."""
    if several and not asked.verbose:
        return
    told = f"{run.algorithm!r}, {run.mode} ({run.why})"
    console.print(told, highlight=False, markup=False)
    if asked.verbose:
        console.print(f"gradients by {run.gradients}", highlight=False, markup=False)
    if run.world.size > 1:
        again = f", going on from round {run.round}" if restarted() else ""
        console.print(f"{run.world.size} processes{again}", highlight=False)
