"""A tuned comparison: cells are chosen on validation samples, then methods are run with new seeds.

The first stage is an experiment of its own in the folder `tuning`: the cells of each method with
the tuning's seeds and a share of each client's samples split off. The second is the experiment
with each method at its chosen cell, with the experiment's seeds on all samples.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from undrift.check import require
from undrift.config.experiment import Experiment
from undrift.engine.processes.rendezvous import launched
from undrift.errors import UndriftError
from undrift.results.environment import environment
from undrift.results.filenames import TUNED, TUNING
from undrift.results.tuning import CellRank
from undrift.runs.build import resolve_experiment, with_tests
from undrift.runs.checks import check_jobs, check_side_by_side
from undrift.runs.folder import choose_folder, claim, describe
from undrift.runs.job_count import default_jobs
from undrift.runs.jobs import Cell, Choice, cell_key, jobs, read_choice
from undrift.runs.options import RunOptions
from undrift.runs.partition import count_partition
from undrift.runs.result import ExperimentResult
from undrift.runs.runner import run_stage
from undrift.runs.tuning import Decision, Tuner
from undrift.runs.tuning_trials import read_tuning, tuning_experiment, tuning_trials


def run_tuned(experiment: Experiment, name: str, options: RunOptions) -> ExperimentResult:
    """Tune the methods of an experiment and run each at its cell; both stages are resumable."""
    _check(experiment, options)
    experiment = resolve_experiment(experiment)
    check_side_by_side(experiment, options)
    tuner = Tuner(experiment, options.only)
    first = Choice(tuner.count, Tuner(experiment).first)
    experiment = with_tests(experiment, check_jobs(jobs(experiment, first)))
    trials = jobs(tuning_experiment(experiment), first)
    check_jobs(trials)
    # One number for both stages, because sums may depend on the threads that a job has.
    finals = jobs(experiment, Choice(1, {title: own[:1] for title, own in first.cells.items()}))
    count = options.jobs or default_jobs([*trials, *finals])
    folder = options.resume or choose_folder(options.out, name)
    if options.resume is None:
        _prepare(folder, experiment, options)
    spelling = replace(options.spelling, command=options.spelling.resume(folder, search=False))
    options = replace(options, jobs=count, spelling=spelling, out=None, force=False)
    decision, stopped = _tune(experiment, tuner, folder, options)
    if decision.chosen is None:
        return ExperimentResult(folder, experiment, [], stopped=stopped)
    if not decision.chosen:
        raise UndriftError(
            "Tuning needs a cell that finishes, got divergence in every cell of every method; try "
            f"smaller values. The runs are in {folder / TUNING}."
        )
    choice = _beside(folder, 1, {title: [cell] for title, cell in decision.chosen.items()})
    result = run_stage(experiment, name, replace(options, resume=folder, choice=choice))
    return replace(result, tuning=read_tuning(folder, experiment))


def _check(experiment: Experiment, options: RunOptions) -> None:
    """Raise if an experiment cannot be tuned with these options."""
    option = options.spelling.option
    require(not options.search, option("search"), "a sweep without tune", "sweep.tune = true")
    single = experiment.engine.processes == 1 and not launched()
    remedy = f"leave engine.processes out; {option('jobs')} runs trials side by side"
    require(single, "sweep.tune", "one process a run", "several", remedy)


def _prepare(folder: Path, experiment: Experiment, options: RunOptions) -> None:
    """Claim the folder and write what is run and with what."""
    claim(folder, force=options.force, reads=options.reads, spelling=options.spelling)
    describe(folder, experiment, environment(options.arguments))
    partition = count_partition(experiment.data, experiment.seeds[0])
    if partition is not None:
        partition.write(folder)


def _tune(
    experiment: Experiment, tuner: Tuner, folder: Path, options: RunOptions
) -> tuple[Decision, int]:
    """Run cells until the choice is known; return it, and the signal that has stopped them."""
    tuning, place = tuning_experiment(experiment), folder / TUNING
    if not (place / TUNED).is_file():  # A kill may have left part of a folder.
        shutil.rmtree(place, ignore_errors=True)
    while True:
        decision = _decide(experiment, tuner, place)
        if decision.chosen is not None:
            return decision, 0
        begun = (place / TUNED).is_file()
        choice = _beside(place, tuner.count, decision.tried)
        where: dict[str, Any] = {"resume": place} if begun else {"out": place, "resume": None}
        stage = run_stage(tuning, TUNING, replace(options, choice=choice, **where))
        if stage.stopped:
            return decision, stage.stopped


def _decide(experiment: Experiment, tuner: Tuner, place: Path) -> Decision:
    """Return what the trials of the first stage decide so far."""
    smoothing, count = experiment.evaluation.smoothing, len(tuning_experiment(experiment).seeds)
    found = tuning_trials(place, experiment)

    def rank(title: str, cell: Cell) -> CellRank | None:
        seeds = found.get((title, cell_key(cell)), [])
        return CellRank.of(seeds, smoothing) if len(seeds) == count else None

    return tuner.decide(rank)


def _beside(folder: Path, count: int, cells: Mapping[str, Any]) -> Choice:
    """Return the cells of some methods beside those that the folder has of others."""
    before = read_choice(folder, TUNED)
    return Choice(count, {**({} if before is None else before.cells), **cells})
