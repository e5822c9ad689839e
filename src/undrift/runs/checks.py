"""Checks of jobs that are made before the first round and before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

from undrift.check import is_whole, require
from undrift.config.experiment import Experiment
from undrift.engine.tuning.frequency import RunCounts
from undrift.engine.validate import require_enough_clients
from undrift.optim.schedules import resolve, scheduled
from undrift.results.filenames import EXPERIMENT
from undrift.results.trial import Trial
from undrift.runs.build import build_clients, build_run, check_run, counts_text, data_counts
from undrift.runs.jobs import Job, kind_of
from undrift.runs.options import RunOptions
from undrift.runs.run_job import has_data_of, new_trial
from undrift.runs.spelling import Spelling


def check_jobs(planned: Sequence[Job]) -> list[RunCounts]:
    """Raise if a job cannot be run, and return the work of each."""
    checked: dict[str, RunCounts] = {}
    counts = []
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
        # Jobs that differ in seed or numbers alone are checked once, because seeds change nothing
        # but the data, and a method checks its hyper-parameters when it is built.
        kind = kind_of(job)
        if kind not in checked:
            checked[kind] = check_run(job.experiment, method, job.seed)
        counts.append(checked[kind])
    return counts


def check_side_by_side(experiment: Experiment, options: RunOptions) -> None:
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


def check_named_checkpoints(job: Job, options: RunOptions) -> None:
    """Raise if the checkpoints to go on from are not the job's, before processes are started."""
    if options.resume_from is not None:
        build_run(
            job.experiment, job.method, job.seed, resume=options.resume_from, force=options.force
        ).close()


def require_same_trial(job: Job, earlier: Trial, spelling: Spelling) -> None:
    """Raise if an earlier trial of the job's name was another."""
    new = new_trial(job)
    same = all(getattr(new, n) == getattr(earlier, n) for n in ("settings", "rounds", "seed"))
    remedy = f"restore {EXPERIMENT}, or start anew with {spelling.option('out')}"
    expected = f"the experiment that {job.name} was run with"
    require(same, spelling.option("resume"), expected, "another", remedy)
    if not has_data_of(earlier, job):
        had, have = earlier.facts["data"], data_counts(job.experiment.data)
        raise ValueError(
            f"{spelling.option('resume')} needs the data that {job.name} was run with, "
            f"{counts_text(had)}, got {counts_text(have)}; restore the data, or start anew with "
            f"{spelling.option('out')}."
        )


def shared_settings(experiment: Experiment, planned: Sequence[Job]) -> dict[str, str]:
    """Return what all processes must have in common before they agree on a folder."""
    return {
        "the trials": ", ".join(job.name for job in planned),
        "training": experiment.training.model_dump_json(),
    }
