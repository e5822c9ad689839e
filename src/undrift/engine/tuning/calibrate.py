"""A short calibration: which of the possible executions is fastest here, remembered for next time.

Each candidate plays a few steps of a few clients, whose results are thrown away. What was found is
kept in the user's cache, by model, method, amount of work and machine, so that a run that is
repeated or resumed is executed alike. `UNDRIFT_CALIBRATE=0` leaves it to the rules of thumb.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from undrift.data.cache import user_cache
from undrift.engine.execution.pool import Pool
from undrift.engine.plan import Plan, Planner
from undrift.engine.tuning.rules import Execution, Trial
from undrift.gradients.task import Task

VARIABLE = "UNDRIFT_CALIBRATE"  # "0" switches it off
STEPS = 3  # local steps of each client in a trial
TRIALS = 3  # of each candidate after one to warm up; the fastest counts
WORTH = 20  # times the gradients of the calibration that a run must have
LEAST = 2000  # gradients of a run that is worth it at all
MARGIN = 0.9  # of the time of the first candidate that another must undercut


def wanted(rounds: int, planner: Planner, candidates: Sequence[Execution]) -> bool:
    """Whether the run is so long that finding the best execution pays."""
    if len(candidates) < 2 or os.environ.get(VARIABLE) == "0" or not rounds:
        return False
    first = planner.plan(0)
    gradients = rounds * int(first.counts.sum())
    trials = sum(_clients(first, how) for how in candidates) * STEPS * (TRIALS + 1)
    return gradients >= max(LEAST, WORTH * trials)


def fastest(
    candidates: Sequence[Execution],
    task: Task,
    planner: Planner,
    pool: Pool,
    trial: Trial,
    about: str,
) -> Execution:
    """The one that takes the least time for a gradient; `about` names what is run."""
    key = _key(task, planner, pool, about, candidates)
    remembered = _read().get(key)
    for how in candidates:
        for layout in (False, True):
            known = replace(how, channels_last=layout, why="the fastest when it was measured")
            if remembered == _name(known):
                return known
    first = planner.plan(0)
    tried = list(candidates)
    times = _seconds(tried, first, trial)
    best = min(times)
    how = tried[0 if times[0] * MARGIN <= best else times.index(best)]
    if how.mode != "stacked" and _has_images(task):
        layouts = [how, replace(how, channels_last=not how.channels_last)]
        kept, other = _seconds(layouts, first, trial)
        how = layouts[int(other < MARGIN * kept)]
    _remember(key, _name(how))
    return replace(how, why="the fastest when measured")


def _seconds(candidates: Sequence[Execution], first: Plan, trial: Trial) -> list[float]:
    """Of a gradient by each of them, in turns, so that what disturbs one disturbs all."""
    best = [float("inf")] * len(candidates)
    for turn in range(TRIALS + 1):
        for i, how in enumerate(candidates):
            taken = _seconds_of(how, first, trial)
            if turn:  # the first is to warm up
                best[i] = min(best[i], taken)
    return best


def _seconds_of(how: Execution, first: Plan, trial: Trial) -> float:
    """In a small round of clients with STEPS steps each."""
    clients = _clients(first, how)
    plan = Plan.trial(first.ids[:clients], STEPS, first.cohort.population)
    start = time.perf_counter()
    try:
        trial(plan, how)
    except Exception:  # such as a model that diverges: the run itself will tell
        return float("inf")
    return (time.perf_counter() - start) / (clients * STEPS)


def _clients(first: Plan, how: Execution) -> int:
    """As many as run together, and at least two."""
    together = how.chunk if how.mode == "stacked" else how.threads
    return min(len(first.ids), max(2, together))


def _has_images(task: Task) -> bool:
    return any(isinstance(part, torch.nn.Conv2d) for part in task.model.modules())


def _name(how: Execution) -> list[Any]:
    return [how.mode, how.channels_last]


def _key(
    task: Task, planner: Planner, pool: Pool, about: str, candidates: Sequence[Execution]
) -> str:
    """What the answer depends on, as one digest."""
    first = planner.plan(0)
    facts = [
        about,
        repr(task.model),
        str(task.layout.shapes),
        str(task.layout.dtype),
        f"{type(task.oracle).__name__} {task.clip} {task.weight_decay}",
        str(tuple(pool.inputs.shape[1:])),
        repr(planner.batch_size),
        str(len(first.ids)),
        str([(how.mode, how.threads, how.chunk) for how in candidates]),
        _machine(),
        torch.__version__,
    ]
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()


def _machine() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        if names:
            return f"{names[0]} x {len(names)}"
    return f"{platform.machine()} {platform.processor()} x {os.cpu_count()}"


def _memory() -> Path:
    return user_cache() / "calibration.json"


def _read() -> dict[str, Any]:
    """What was found before; nothing if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        found = json.loads(_memory().read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def _remember(key: str, found: list[Any]) -> None:
    """By one rename, so that a reader never sees half a file; without a cache it is not kept."""
    path = _memory()
    part = path.with_name(f".{path.name}-{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(_read() | {key: found}, indent=1), encoding="utf-8")
        part.replace(path)
