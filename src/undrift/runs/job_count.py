"""The number of jobs that run side by side by default is decided from counts, never by the clock.

So equal calls have equal numbers of threads a job, on which float rounding may depend.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence

from torch import get_num_threads

from undrift.engine.settings import RunSize
from undrift.runs.build import run_size
from undrift.runs.jobs import Job, kind_of

WORTH = 10.0  # seconds of gradients of all jobs that are worth starting processes


def default_jobs(planned: Sequence[Job]) -> int:
    """Return as many jobs as torch has threads, or 1 where one after the other is better.

    That is where all of them are short, and where the activations of a step are so many that
    several jobs would not fit into memory.
    """
    cores = get_num_threads()
    # Processes of a pool may not start others.
    if cores < 2 or len(planned) < 2 or multiprocessing.current_process().daemon:
        return 1
    sizes: dict[str, RunSize] = {}
    seconds = 0.0
    for kind, job in ((kind_of(job), job) for job in planned):
        if kind not in sizes:
            sizes[kind] = run_size(job.experiment, job.method, job.seed)
        if sizes[kind].large:
            return 1
        seconds += sizes[kind].seconds
    return min(cores, len(planned)) if seconds >= WORTH else 1
