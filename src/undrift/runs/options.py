"""The options of a run: where it is written, what it goes on with, who hears of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from undrift.config.experiment import Experiment
from undrift.runs.jobs import Choice
from undrift.runs.run_job import Observer
from undrift.runs.spelling import KEYWORDS, Spelling
from undrift.usercode.load import only_code_of
from undrift.usercode.names import is_code


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Says how an experiment is run, whatever the experiment is."""

    out: Path | None = None
    force: bool = False
    resume: Path | None = None  # a folder of results to go on with
    jobs: int | None = None  # how many run at a time in processes of their own; None: by their size
    search: int = 0  # how many cells Optuna chooses for each method; 0: all of the sweep's
    only: Sequence[str] = ()  # methods by name or label whose jobs are run; none: all
    choice: Choice | None = None  # the cells that are run, instead of all of the sweep's
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

    @property
    def named_checkpoints(self) -> dict[str, Any]:
        """Return the keywords of `simulate` for the checkpoints that a user has named."""
        if self.checkpoint is None and self.resume_from is None:
            return {}
        return {
            "checkpoint": self.checkpoint,
            "checkpoint_every": self.checkpoint_every,
            "resume": self.resume_from,
        }

    def vouched_code(self, experiment: Experiment) -> AbstractContextManager[None]:
        """Return a context in which an experiment of a file runs only code that was asked about."""
        source = self.resume or next(iter(self.reads), None)
        if source is None:
            return nullcontext()
        return only_code_of([*experiment.code, *filter(is_code, self.track)], source)
