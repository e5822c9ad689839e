"""A short calibration measures which of the possible executions is the fastest on this machine.

Each candidate runs a few steps of a few clients, whose results are not used. The answer is kept in
the user's cache, by model, method, amount of work and machine, so that a run that is repeated or
resumed is executed alike. `UNDRIFT_CALIBRATE=0` leaves the choice to the rules of thumb.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from undrift.builder import processor
from undrift.engine.execution.pool import Pool
from undrift.engine.plan import Plan, Planner
from undrift.engine.tuning.rules import Candidate, TrialRound
from undrift.files import user_cache, write_atomic
from undrift.gradients.task import Task

VARIABLE = "UNDRIFT_CALIBRATE"  # "0" switches it off
STEPS = 3  # local steps of each client in a trial
TRIALS = 3  # of each candidate after one to warm up; the fastest counts
WORTH = 20  # times the gradients of the calibration that a run must have
LEAST = 2000  # gradients of a run that is worth it at all
MARGIN = 0.9  # of the time of the first candidate that another must undercut


def wanted(rounds: int, planner: Planner, candidates: Sequence[Candidate]) -> bool:
    """Return whether the run is so long that a calibration pays."""
    if len(candidates) < 2 or os.environ.get(VARIABLE) == "0" or not rounds:
        return False
    first = planner.plan(0)
    gradients = rounds * int(first.counts.sum())
    trials = sum(_clients(first, candidate) for candidate in candidates) * STEPS * (TRIALS + 1)
    return gradients >= max(LEAST, WORTH * trials)


def fastest(
    candidates: Sequence[Candidate],
    *,
    task: Task,
    planner: Planner,
    pool: Pool,
    trial: TrialRound,
    method: str,
) -> Candidate:
    """Return the candidate whose gradients take the least time; `method` names what is run."""
    key = _key(task, planner, pool, method, candidates)
    remembered = _read().get(key)
    for candidate in candidates:
        for layout in (False, True):
            known = replace(candidate, channels_last=layout, why="the fastest when it was measured")
            if remembered == _name(known):
                return known
    first = planner.plan(0)
    tried = list(candidates)
    times = _seconds(tried, first, trial)
    best = min(times)
    candidate = tried[0 if times[0] * MARGIN <= best else times.index(best)]
    if candidate.mode != "stacked" and _has_images(task):
        layouts = [candidate, replace(candidate, channels_last=not candidate.channels_last)]
        as_before, other_layout = _seconds(layouts, first, trial)
        candidate = layouts[int(other_layout < MARGIN * as_before)]
    _remember(key, _name(candidate))
    return replace(candidate, why="the fastest when measured")


def _seconds(candidates: Sequence[Candidate], first: Plan, trial: TrialRound) -> list[float]:
    """Return the seconds of a gradient by each candidate, measured in turns."""
    best = [float("inf")] * len(candidates)
    for turn in range(TRIALS + 1):
        for i, candidate in enumerate(candidates):
            taken = _seconds_of(candidate, first, trial)
            if turn:  # The first turn only warms up.
                best[i] = min(best[i], taken)
    return best


def _seconds_of(candidate: Candidate, first: Plan, trial: TrialRound) -> float:
    """Return the seconds of a gradient in a small round of clients with STEPS steps each."""
    clients = _clients(first, candidate)
    plan = Plan.equal(first.ids[:clients], STEPS, first.cohort.population)
    start = time.perf_counter()
    try:
        trial(plan, candidate)
    except Exception:  # such as a model that diverges: the run itself will tell
        return float("inf")
    return (time.perf_counter() - start) / (clients * STEPS)


def _clients(first: Plan, candidate: Candidate) -> int:
    """Return how many clients the candidate runs together, at least two."""
    together = candidate.chunk if candidate.mode == "stacked" else candidate.threads
    return min(len(first.ids), max(2, together))


def _has_images(task: Task) -> bool:
    return any(isinstance(part, torch.nn.Conv2d) for part in task.model.modules())


def _name(candidate: Candidate) -> list[Any]:
    return [candidate.mode, candidate.channels_last]


def _key(
    task: Task, planner: Planner, pool: Pool, method: str, candidates: Sequence[Candidate]
) -> str:
    """Return a digest of what the answer depends on."""
    first = planner.plan(0)
    facts = [
        method,
        repr(task.model),
        str(task.layout.shapes),
        str(task.layout.dtype),
        f"{type(task.oracle).__name__} {task.clip} {task.weight_decay}",
        str(tuple(pool.inputs.shape[1:])),
        repr(planner.batch_size),
        str(len(first.ids)),
        str([(candidate.mode, candidate.threads, candidate.chunk) for candidate in candidates]),
        f"{processor()} x {os.cpu_count()}",
        torch.__version__,
    ]
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()


def _memory() -> Path:
    return user_cache() / "calibration.json"


def _read() -> dict[str, Any]:
    """Return the answers of earlier calibrations; none if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        answers = json.loads(_memory().read_text(encoding="utf-8"))
        if isinstance(answers, dict):
            return answers
    return {}


def _remember(key: str, answer: list[Any]) -> None:
    """Write an answer to the cache, unless the cache cannot be written."""
    path = _memory()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(_read() | {key: answer}, indent=1))
