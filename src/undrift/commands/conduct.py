"""What `run`, `compare` and `sweep` have in common: check everything, then run job after job."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import typer
from rich.console import Console

from undrift import launch, show
from undrift.carry_out import Recorder, carry_out
from undrift.engine.meeting import launched, restarted
from undrift.engine.run import Run
from undrift.engine.simulate import require_shares
from undrift.environment import environment
from undrift.experiment import Experiment
from undrift.folder import EXPERIMENT, TRACKED, claim, describe
from undrift.ground import deal, resolved, start
from undrift.record import Record
from undrift.reporting import keep_partition
from undrift.result import Trial
from undrift.sweep import Job, jobs
from undrift.tracking import CSV, Tracker
from undrift.tracking import parse as parse_tracker


@dataclass(frozen=True)
class Asked:
    """How a command is to go about it, whatever the experiment is."""

    out: Path | None = None
    force: bool = False
    resume: Path | None = None  # a folder of results
    quiet: bool = False
    verbose: bool = False
    track: Sequence[str] = ()
    kept: dict[str, Any] = field(default_factory=dict)  # checkpoint and resume of a single run


@dataclass(frozen=True)
class Conducted:
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
    if not path.is_file():
        raise ValueError(
            f"--resume needs a folder of results with its {EXPERIMENT}, got {str(folder)!r}; name "
            "one that `undrift run`, `compare` or `sweep` has written."
        )
    return Experiment.read(path)


class Searching(Protocol):
    """Jobs that are made one after another, in the light of what came of those before."""

    @property
    def rounds(self) -> int: ...  # of all of them, as far as one knows
    def probes(self) -> list[Job]: ...  # to be checked
    def jobs(self, folder: Path, done: Sequence[Trial]) -> Iterable[Job]: ...


def conduct(
    experiment: Experiment, kind: str, asked: Asked, *, search: Searching | None = None
) -> Conducted:
    """Run all jobs of an experiment into a folder, or those of a search; `kind` names it."""
    for text in asked.track:
        parse_tracker(text, Path())
    experiment = resolved(experiment)
    planned = jobs(experiment) if search is None else search.probes()
    going_on = asked.resume is not None or restarted()
    _check(planned, asked)
    head = launch.rank() == 0
    several = experiment.engine.processes > 1 and not launched()
    folder = asked.resume or claim(asked.out, kind, force=asked.force, write=head)
    if several:
        _in_processes(folder, experiment, asked)
    recorder = Recorder(folder, head, lambda job: _trackers(job, folder, asked.track))
    if head and not going_on:
        describe(folder, experiment, environment(sys.argv[1:]))
        keep_partition(folder, experiment.data, experiment.seeds[0])
    console = Console(stderr=True, quiet=not head)
    trials, stopped = _all(planned, search, recorder, console, asked, going_on=going_on)
    return Conducted(experiment, folder, trials, head, stopped)


def _check(planned: Sequence[Job], asked: Asked) -> None:
    """Refuse what cannot be run, before the first round of the first job."""
    seen = set()
    for job in planned:
        processes = 1 if launched() else job.experiment.engine.processes
        if processes > 1:
            require_shares(processes, deal(job.experiment.data, job.seed))
        if job.label not in seen:  # seeds differ in the data only
            seen.add(job.label)
            options = {"timeout": job.experiment.engine.timeout, "resume": asked.kept.get("resume")}
            start(job.experiment, job.method, job.seed, **options)


def _in_processes(folder: Path, experiment: Experiment, asked: Asked) -> None:
    """Start this command again, in several processes, and end as they do."""
    engine = experiment.engine
    saves = engine.checkpoint_every > 0 or asked.kept.get("checkpoint") is not None
    arguments = sys.argv[1:]
    if asked.resume is None:
        arguments = launch.without_option(arguments, "--out")
        arguments = [*arguments, "--out", str(folder)]
    code = launch.in_processes(arguments, engine.processes, engine.max_restarts if saves else 0)
    raise typer.Exit(code)


def _trackers(job: Job, folder: Path, track: Sequence[str]) -> list[Tracker]:
    more = [parse_tracker(text, folder / TRACKED / job.name) for text in track]
    return [CSV(folder / f"{job.name}.csv"), *more]


def _all(
    planned: Sequence[Job],
    search: Searching | None,
    recorder: Recorder,
    console: Console,
    asked: Asked,
    *,
    going_on: bool,
) -> tuple[list[Trial], bool]:
    show.one_step([job.method.build() for job in planned], console)
    done: list[Trial] = []
    total = search.rounds if search else sum(job.experiment.training.rounds for job in planned)
    with show.bar(console, quiet=asked.quiet or console.quiet) as progress:
        task = progress.add_task("", total=total, accuracy="-")
        for job in search.jobs(recorder.folder, done) if search else planned:
            before = recorder.earlier(job) if going_on else None
            label = f"{job.label} seed {job.seed}" if len(planned) > 1 else job.label
            if before is not None and before.ended:
                done.append(before)
                progress.update(task, advance=before.rounds)
                continue

            def watch(run: Run, record: Record | None, label: str = label) -> None:
                if record is None:
                    _announce(run, console, asked, several=len(planned) > 1)
                    progress.update(task, description=label, advance=run.round)
                else:
                    shown = show.percent(record.accuracy)
                    progress.update(task, advance=1, accuracy=shown)

            options = {"timeout": job.experiment.engine.timeout, **asked.kept}
            if launched():
                options["processes"] = None
            try:
                trial = carry_out(job, recorder, watch, going_on=going_on, **options)
            except KeyboardInterrupt:
                left = recorder.earlier(job)
                after = f" after round {left.records[-1].round}" if left and left.records else ""
                console.print(f"Stopped{after}; what was done is kept.", highlight=False)
                return [*done, *([left] if left is not None else [])], True
            if trial.status == "diverged" and len(planned) > 1:
                console.print(f"{label}: {trial.reason}", highlight=False)
                progress.update(task, advance=trial.rounds - len(trial.records))
            done.append(trial)
    return done, False


def _announce(run: Run, console: Console, asked: Asked, *, several: bool) -> None:
    """Say what begins: of a single run always, of many only if asked."""
    if several and not asked.verbose:
        return
    console.print(f"{run.algorithm!r}, {run.mode} ({run.why})", highlight=False)
    if run.world.size > 1:
        again = f", going on from round {run.round}" if restarted() else ""
        console.print(f"{run.world.size} processes{again}", highlight=False)
