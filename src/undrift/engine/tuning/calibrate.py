"""A short calibration measures which of the possible executions is the fastest on this machine.

Each candidate runs a few steps of a few clients, in turns, whose results are not used; medians are
compared. While other processes keep the machine busy CPU time counts, and what is found holds for
this run alone. Otherwise it is kept in the user's cache, by model, method, amount of work and
machine, so that equal runs are executed alike. `UNDRIFT_CALIBRATE=0` leaves the choice to the rules
of thumb.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from undrift.builder import processor
from undrift.engine.execution.effort import Effort, machine_seconds
from undrift.engine.execution.executor import Mode
from undrift.engine.execution.pool import Pool
from undrift.engine.plan import Plan, Planner
from undrift.engine.tuning import memory
from undrift.engine.tuning.memory import Finding
from undrift.engine.tuning.rules import Candidate, TrialRound
from undrift.engine.tuning.watch import CostWatch
from undrift.gradients.task import Task

VARIABLE = "UNDRIFT_CALIBRATE"  # "0" switches it off
STEPS = 3  # local steps of each client in a trial
TRIALS = 5  # of each candidate after one to warm up; the median counts
WORTH = 20  # times the gradients of the calibration that a run must have
LEAST = 2000  # gradients of a run that is worth it at all
MARGIN = 0.9  # of the time of the first candidate that another must undercut
OTHERS = 0.1  # of a core that other processes may take of those that trials need
SPREAD = 0.25  # between the quartiles of a candidate's trials, as a share of the median
WAITING = 1.25  # times the CPU time that a trial on one thread may take


class Cost(NamedTuple):
    """Holds the seconds of a gradient in one trial."""

    wall: float
    cpu: float  # of the busiest thread


def wanted(rounds: int, planner: Planner, candidates: Sequence[Candidate]) -> bool:
    """Return whether the run is so long that a calibration pays."""
    if len(candidates) < 2 or os.environ.get(VARIABLE) == "0" or not rounds:
        return False
    first = planner.plan(0)
    gradients = rounds * int(first.counts.sum())
    trials = sum(_clients(first, candidate) for candidate in candidates) * STEPS * (TRIALS + 1)
    return gradients >= max(LEAST, WORTH * trials)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measures the candidates of a run, or remembers what was found of them."""

    candidates: Sequence[Candidate]
    task: Task
    planner: Planner
    pool: Pool
    trial: TrialRound
    method: str  # names what is run

    def fastest(self) -> tuple[Candidate, CostWatch | None]:
        """Return the fastest candidate, and what watches the run if the finding is kept."""
        earlier = memory.recall(self._key)
        if earlier is not None and not earlier.doubtful:
            known = self._known(earlier)
            if known is not None:
                why = f"the fastest when it was measured, {_figures(earlier)}"
                return replace(known, why=why), CostWatch(self._key, _name(known), earlier)
        return self._measured(earlier)

    def watch(self, candidate: Candidate) -> CostWatch | None:
        """Return what watches a run that is executed as recorded, if the finding is the same."""
        earlier = memory.recall(self._key)
        if earlier is None or (earlier.mode, earlier.channels_last) != _choice(candidate):
            return None
        return CostWatch(self._key, _name(candidate), earlier)

    def _known(self, finding: Finding) -> Candidate | None:
        for candidate in self.candidates:
            if candidate.mode == finding.mode:
                return replace(candidate, channels_last=finding.channels_last)
        return None

    def _measured(self, earlier: Finding | None) -> tuple[Candidate, CostWatch | None]:
        first = self.planner.plan(0)
        trials = _Trials(first, self.trial)
        tried = list(self.candidates)
        times = trials.seconds(tried)
        best = min(times)
        candidate = tried[0 if times[0] * MARGIN <= best else times.index(best)]
        seconds = dict(zip(map(_name, tried), times, strict=True))
        if candidate.mode != "stacked" and _has_images(self.task):
            layouts = [candidate, replace(candidate, channels_last=not candidate.channels_last)]
            both = trials.seconds(layouts)
            candidate = layouts[int(both[1] < MARGIN * both[0])]
            seconds |= dict(zip(map(_name, layouts), both, strict=True))
        seconds = {name: value for name, value in seconds.items() if math.isfinite(value)}
        mode, channels_last = _choice(candidate)
        finding = Finding(mode=mode, channels_last=channels_last, seconds=seconds)
        if earlier is not None and (earlier.mode, earlier.channels_last) == _choice(candidate):
            finding = replace(finding, doubts=earlier.doubts + 1)
        said = f"the fastest when measured, {_figures(finding)}"
        if trials.disturbed or _name(candidate) not in seconds:
            said += "; on a busy machine, so the next run measures again"
            return replace(candidate, why=said), None
        memory.remember(self._key, finding)
        return replace(candidate, why=said), CostWatch(self._key, _name(candidate), finding)

    @property
    def _key(self) -> str:
        """Return a digest of what the finding depends on."""
        task, first = self.task, self.planner.plan(0)
        facts = [
            self.method,
            repr(task.model),
            str(task.layout.shapes),
            str(task.layout.dtype),
            f"{type(task.oracle).__name__} {task.clip} {task.weight_decay}",
            str(tuple(self.pool.inputs.shape[1:])),
            repr(self.planner.batch_size),
            str(len(first.ids)),
            str([(each.mode, each.threads, each.chunk) for each in self.candidates]),
            f"{processor()} x {os.cpu_count()}",
            torch.__version__,
        ]
        return hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()


class _Trials:
    """Plays trials of candidates in turns, and finds out whether other processes disturb them."""

    def __init__(self, first: Plan, trial: TrialRound) -> None:
        self._first, self._trial = first, trial
        self.disturbed = False  # whether any of the trials was

    def seconds(self, candidates: Sequence[Candidate]) -> list[float]:
        """Return the seconds of a gradient by each candidate: CPU time on a busy machine."""
        start, others = Effort.now(), machine_seconds()
        costs = self._turns(candidates)
        busy = self._busy(candidates, costs, start.spent(), others)
        self.disturbed |= busy or any(map(_spread, costs))
        return [statistics.median(cost.cpu if busy else cost.wall for cost in own) for own in costs]

    def _turns(self, candidates: Sequence[Candidate]) -> list[list[Cost]]:
        costs: list[list[Cost]] = [[] for _ in candidates]
        for turn in range(TRIALS + 1):
            for own, candidate in zip(costs, candidates, strict=True):
                cost = _cost_of(candidate, self._first, self._trial)
                if turn:  # The first turn only warms up.
                    own.append(cost)
        return costs

    def _busy(
        self,
        candidates: Sequence[Candidate],
        costs: Sequence[Sequence[Cost]],
        spent: Effort,
        before: float | None,
    ) -> bool:
        """Return whether other processes took cores that the trials needed."""
        needed = [
            self._trial.threads_at_once(_clients(self._first, each), each) for each in candidates
        ]
        after = machine_seconds()
        if before is not None and after is not None and spent.wall > 0:
            others = max(0.0, after - before - spent.process) / spent.wall
            if (os.cpu_count() or 1) - others < max(needed) - OTHERS:
                return True
        # Threads may wait for each other, but one thread that waits has lost its core.
        alone = [own for own, threads in zip(costs, needed, strict=True) if threads == 1]
        return any(
            statistics.median(cost.wall for cost in own)
            > WAITING * statistics.median(cost.cpu for cost in own)
            for own in alone
        )


def _cost_of(candidate: Candidate, first: Plan, trial: TrialRound) -> Cost:
    """Return the cost of a gradient in a small round of clients with STEPS steps each."""
    clients = _clients(first, candidate)
    plan = Plan.equal(first.ids[:clients], STEPS, first.cohort.population)
    start = Effort.now()
    try:
        gradients = trial(plan, candidate)
    except Exception:  # such as a model that diverges: the run itself will tell
        return Cost(math.inf, math.inf)
    spent = start.spent()
    path = spent.path(trial.threads_at_once(clients, candidate))
    return Cost(spent.wall / gradients, path / gradients)


def _spread(costs: Sequence[Cost]) -> bool:
    """Return whether trials of the same candidate differ too much to be trusted."""
    walls = sorted(cost.wall for cost in costs)
    if not math.isfinite(walls[-1]):
        return False  # A candidate that fails is not taken.
    quarter = len(walls) // 4
    return walls[-1 - quarter] - walls[quarter] > SPREAD * statistics.median(walls)


def _clients(first: Plan, candidate: Candidate) -> int:
    """Return how many clients the candidate runs at a time, at least two."""
    stack = candidate.chunk if candidate.mode == "stacked" else 1
    return min(len(first.ids), max(2, stack * candidate.threads))


def _has_images(task: Task) -> bool:
    return any(isinstance(part, torch.nn.Conv2d) for part in task.model.modules())


def _choice(candidate: Candidate) -> tuple[Mode, bool]:
    return candidate.mode, candidate.channels_last


def _name(candidate: Candidate) -> str:
    return f"{candidate.mode}{' with channels last' if candidate.channels_last else ''}"


def _figures(finding: Finding) -> str:
    """Return what each execution took, for a reader."""
    each = [f"{name} {1e3 * value:.3g}" for name, value in finding.seconds.items()]
    return f"in ms a gradient: {', '.join(each)}"
