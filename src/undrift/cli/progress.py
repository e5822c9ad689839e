"""The progress bar follows an experiment and prints a line about each of its runs.

Where the output is no terminal, say a file, there is a plain line a minute instead of the bar.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from undrift.config.experiment import Experiment
from undrift.engine.processes.elastic import rank
from undrift.engine.processes.rendezvous import restarted
from undrift.report.progress import test_text
from undrift.results.record import Record, Totals
from undrift.results.trial import Trial
from undrift.runs.jobs import Job
from undrift.runs.load import load_dataset
from undrift.runs.run_job import Begun, Observer, moved_aside

SECONDS = 60.0  # between plain lines


class ProgressBar(Observer):
    """An observer that shows the rounds of all jobs as one bar on stderr, or as plain lines.

    Only rank 0 of several processes prints.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._console = Console(stderr=True, quiet=rank() != 0)
        self._verbose = verbose
        self._several = False
        self._spent = Totals()  # of all rounds so far, whatever their job
        self._advanced: dict[str, int] = {}  # rounds that the bar shows of the jobs that run
        plain = not self._console.is_terminal
        self._lines = ProgressLines() if plain and not quiet else None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("last {task.fields[test]}"),
            TextColumn("{task.fields[seconds]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=quiet or plain or self._console.quiet,
        )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def plan(self, planned: Sequence[Job], rounds: int) -> None:
        if not planned:
            self._say("The run has ended; this is what came of it. Start anew for more rounds.")
        self._several = len(planned) > 1
        algorithms = [job.method.build() for job in planned]
        for cls in dict.fromkeys(type(a) for a in algorithms if getattr(a, "every_step", False)):
            self._say(f"{cls.__name__} communicates at every step: one step a round.")
        if planned:
            self._say_task(planned[0].experiment)
            self._say_lone(planned[0].experiment)
        if self._lines is not None:
            self._lines.plan(rounds)
        self._task = self._bar.add_task("", total=rounds, test="accuracy -", seconds="")
        self._bar.start()

    def _say_task(self, experiment: Experiment) -> None:
        """Say for what a table's target was taken where the experiment does not say it.

        In a federation columns are declared, and the centre has no table to look into.
        """
        if experiment.federation.sites:
            return
        preprocessing = load_dataset(experiment.data).preprocessing
        if preprocessing is not None and experiment.data.task is None:
            self._say(preprocessing.target.sentence("--task "))

    def _say_lone(self, experiment: Experiment) -> None:
        """Say that a participation of 1 is a count, which many mean as a share."""
        share, clients = experiment.training.participation, experiment.data.clients
        if isinstance(share, int) and share == 1 and clients != 1:
            who = "the clients" if clients is None else f"{clients} clients"
            self._say(f"Participation 1 is one of {who} in a round; write 1.0 for all of them.")

    def begin(self, job: Job, begun: Begun) -> None:
        self._announce(begun)
        if begun.moved is not None:
            self._say(moved_aside(job, begun.moved))
        self._advanced[job.name] = begun.round
        if self._lines is not None:
            self._lines.begin(job, begun.round)
        self._bar.update(self._task, description=escape(self._label(job)), advance=begun.round)

    def add(self, job: Job, record: Record) -> None:
        if record.loss is not None:  # A round without a test leaves that of the last.
            self._bar.update(self._task, test=test_text(record))
        self._spent.add(record)
        training, tests = self._spent.seconds, self._spent.evaluation_seconds
        seconds = f"{training + tests:.0f} s: {training:.0f} + {tests:.0f} tests"
        self._advanced[job.name] += 1
        self._bar.update(self._task, advance=1, seconds=seconds)
        line = None if self._lines is None else self._lines.add(job, record)
        if line is not None:
            self._say(line)

    def stall(self, job: Job, text: str) -> None:
        self._say(f"{self._label(job)}: {text}")

    def note(self, job: Job, text: str) -> None:
        self._say(f"{self._label(job)}: {text}")

    def end(self, job: Job, trial: Trial) -> None:
        if trial.status == "diverged" and self._several:
            self._say(f"{self._label(job)}: {trial.reason}")
        if trial.facts.get("stopped_early"):
            self._say(f"{self._label(job)}: {trial.facts['stopped_early']}")
        if self._lines is not None:
            self._lines.end(job, trial.rounds)
        advanced = self._advanced.pop(job.name, 0)
        if self._several:  # The rounds that a job does not run count as done.
            self._bar.update(self._task, advance=trial.rounds - advanced)

    def interrupt(self, job: Job, trial: Trial | None, command: str) -> None:
        what = "stopped before the end of its first round; start it again with"
        if trial is not None and trial.records:
            after = trial.records[-1].round
            what = f"stopped after round {after}; what was done is kept, go on with"
        self._say(f"{self._label(job)}: {what} {command}")

    def _label(self, job: Job) -> str:
        return f"{job.label} seed {job.seed}" if self._several else job.label

    def _announce(self, begun: Begun) -> None:
        """Say how a run is executed: a single run's always, of several only with --verbose."""
        if self._several and not self._verbose:
            return
        execution = begun.execution
        self._say(f"{begun.algorithm}, {execution.mode} ({execution.why})")
        self._say(f"tested {begun.tests}")
        if self._verbose:
            self._say(f"gradients by {execution.gradients}")
        if begun.processes > 1:
            again = f", going on from round {begun.round}" if restarted() else ""
            self._say(f"{begun.processes} processes{again}")

    def _say(self, text: str) -> None:
        # A command that stands in the text can be copied if it is not broken into lines.
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class ProgressLines:
    """Makes the plain lines: how far each job is that runs, and about how long all take."""

    def __init__(self) -> None:
        self._said = time.monotonic()
        self._jobs: dict[str, tuple[Job, int, str]] = {}  # each with its round and last test
        self.plan(0)

    def plan(self, rounds: int) -> None:
        """Begin to count so many rounds of all jobs."""
        self._left, self._run, self._start = rounds, 0, time.monotonic()

    def begin(self, job: Job, round: int) -> None:
        """Hear that a job begins after so many rounds, which are not run again."""
        self._jobs[job.name] = (job, round, "")
        self._left -= round

    def add(self, job: Job, record: Record) -> str | None:
        """Hear of a round, and return a line if the last is a minute ago."""
        _, _, test = self._jobs[job.name]
        if record.loss is not None:
            test = f", {test_text(record)}"
        self._jobs[job.name] = (job, record.round, test)
        self._left, self._run = self._left - 1, self._run + 1
        now = time.monotonic()
        if now - self._said < SECONDS:
            return None
        self._said = now
        jobs = "; ".join(_how_far(*each) for each in self._jobs.values())
        left = (now - self._start) / self._run * max(self._left, 0)
        return f"{jobs}; about {_in_words(left)} left"

    def end(self, job: Job, rounds: int) -> None:
        """Hear that a job has ended, perhaps before the last of its rounds."""
        _, round, _ = self._jobs.pop(job.name, (job, 0, ""))
        self._left -= rounds - round


def _how_far(job: Job, round: int, test: str) -> str:
    rounds = job.experiment.training.rounds
    return f"{job.label}, seed {job.seed}: round {round} of {rounds}{test}"


def _in_words(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"
