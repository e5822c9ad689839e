"""`undrift.run`: an experiment from Python."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from undrift.check import known_keywords, require
from undrift.config.experiment import Experiment
from undrift.results.record import Record
from undrift.runs.folder import read_experiment
from undrift.runs.jobs import Job, read_choice
from undrift.runs.options import RunOptions
from undrift.runs.result import ExperimentResult
from undrift.runs.run_job import Begun, Observer, moved_aside
from undrift.runs.runner import run_experiment


@known_keywords
def run(
    experiment: Experiment | Mapping[str, Any] | str | Path | None = None,
    *,
    out: str | Path | None = None,
    force: bool = False,
    resume: str | Path | None = None,
    on_record: Callable[[Job, Record], None] | None = None,
    track: str | Sequence[str] = (),
    search: int = 0,
    jobs: int | None = None,
    only: str | Sequence[str] = (),
    trust: bool = False,
) -> ExperimentResult:
    """Run an experiment: every method with every seed, in every cell of its sweep.

    It runs what `undrift run FILE` runs, writes the same folder, and gives the same bits.

    experiment: an `Experiment`, nested dictionaries as TOML has them, or the path of a TOML file.
    out: the folder for the records; without it the first free one of `runs/NAME-1`, `runs/NAME-2`,
        ... under the current folder, where NAME is the file's name or "experiment", as the command
        does. A folder that holds anything is refused.
    force: whether an earlier run's files in `out` are replaced.
    resume: a folder of results to go on with, instead of an experiment; what is finished there is
        kept.
    on_record: called with the job and the record after every round, when the record is written.
    track: trackers besides JSON lines and CSV: "tensorboard", "mlflow", "wandb", "module:Class".
    search: how many cells Optuna chooses for each method, instead of all of the sweep's.
    jobs: how many trials run at a time, each in a process of its own with its share of the threads.
        Without it as many as torch has threads, if all trials together take more than about ten
        seconds and fit into memory side by side, else one. The results are those of one at a time
        with as many threads.
    only: methods by name or label whose runs are made now; `resume` runs the others.
    trust: whether code that a file or a folder names, such as `mine.py:Net`, is run.

    A method that diverges is a result: its trial has the status "diverged". Ctrl-C is raised when
    what was done is saved; `resume` goes on with it. SIGTERM ends the program likewise, with the
    code 143, unless the program handles it itself. With `engine.processes > 1` other processes are
    started, so a script needs `if __name__ == "__main__":` (docs/distributed.md).
    """
    if (experiment is None) == (resume is None):
        got = "neither" if experiment is None else "both"
        raise ValueError(f"run needs an experiment, or resume=FOLDER to go on, got {got}.")
    reads = [Path(experiment)] if isinstance(experiment, str | Path) else []
    if resume is not None:
        require(out is None, "run", "no out beside resume, it goes on in its folder", str(out))
        experiment, choice = read_experiment(Path(resume), trust=trust), read_choice(Path(resume))
        search = search or (0 if choice is None else choice.count)
    options = RunOptions(
        out=None if out is None else Path(out),
        force=force,
        resume=None if resume is None else Path(resume),
        search=search,
        jobs=jobs,
        only=[only] if isinstance(only, str) else only,
        track=[track] if isinstance(track, str) else track,
        reads=reads,
        hash_always=True,
    )
    name = "search" if search else reads[0].stem if reads else "experiment"
    return run_with(_as_experiment(experiment, trust), name, options, on_record)


def run_with(
    experiment: Experiment,
    name: str,
    options: RunOptions,
    on_record: Callable[[Job, Record], None] | None,
) -> ExperimentResult:
    """Run an experiment and return its result; an interrupt is raised when all is written."""
    result = run_experiment(experiment, name, replace(options, observer=_Callback(on_record)))
    if result.stopped:
        remedy = f"go on with {options.spelling.resume(result.folder, search=options.search > 0)}"
        if result.stopped == signal.SIGTERM:
            print(f"Stopped; what was done is kept, {remedy}", file=sys.stderr)
            sys.exit(128 + signal.SIGTERM)
        raise KeyboardInterrupt(remedy)
    return result


def _as_experiment(experiment: object, trust: bool) -> Experiment:
    if isinstance(experiment, Experiment):
        return experiment
    if isinstance(experiment, str | Path):
        return Experiment.read(experiment, trust=trust)
    if isinstance(experiment, Mapping):
        return Experiment.of(experiment)
    raise ValueError(
        f"run needs an Experiment, dictionaries or the path of a TOML file, got {experiment!r}."
    )


class _Callback(Observer):
    """An observer that calls a function after every round, and warns of records moved aside."""

    def __init__(self, on_record: Callable[[Job, Record], None] | None) -> None:
        self._on_record = on_record

    def begin(self, job: Job, begun: Begun) -> None:
        if begun.moved is not None:
            warnings.warn(moved_aside(job, begun.moved), stacklevel=2)

    def add(self, job: Job, record: Record) -> None:
        if self._on_record is not None:
            self._on_record(job, record)
