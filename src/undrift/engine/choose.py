"""Which execution mode fits a run, and how many clients to stack."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from undrift.core import Cohort, Federated
from undrift.engine.execute import Executor, Mode
from undrift.engine.local import Meter
from undrift.engine.plan import Plan, Planner
from undrift.engine.probe import Facts
from undrift.engine.round import play
from undrift.errors import DivergenceError, UndriftError
from undrift.objective import Task
from undrift.schedule import resolve

STACKED_PARAMETERS = 200_000  # above this a step is bound by arithmetic, not by overhead
STACKED_BYTES = 2**29  # vectors and activations of one chunk
SHARED_NUMBERS = 200_000  # activations of a step that are worth a second thread


def choose(
    mode: Literal["auto", "loop", "stacked"],
    algorithm: Federated[Any, Any, Any, Any],
    facts: Facts,
    task: Task,
    planner: Planner,
    pool: tuple[Tensor, Tensor],
) -> tuple[Mode, str]:
    """The execution mode and the reason for it."""
    if mode == "loop":
        return "loop", "asked for"
    if mode == "auto" and task.layout.size > STACKED_PARAMETERS:
        return "loop", f"{task.layout.size} parameters are too many to stack"
    if mode == "auto" and len(planner.clients) < 2:
        return "loop", "there is one client"
    obstacle = _obstacle(algorithm, facts, task, planner, pool)
    if mode == "stacked" and obstacle:
        raise UndriftError(f"mode='stacked' is not possible: {obstacle}; use mode='loop'.")
    if obstacle:
        return "loop", obstacle
    return "stacked", "asked for" if mode == "stacked" else "a small model"


def chunk_for(facts: Facts, task: Task, planner: Planner) -> int:
    """Clients a chunk may hold: a few vectors each, and forward and backward activations."""
    samples = planner.batch_size or int(planner.clients.sizes.max())
    numbers = 8 * task.layout.size + 3 * samples * facts.activations
    return max(1, STACKED_BYTES // (numbers * task.layout.dtype.itemsize))


@contextmanager
def fitting_threads(numbers: int) -> Iterator[None]:
    """One intra-op thread while a step is too small to share: waiting would cost more than work.

    Results do not depend on it beyond float rounding; the caller's setting comes back after.
    """
    if numbers >= SHARED_NUMBERS:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _obstacle(
    algorithm: Federated[Any, Any, Any, Any],
    facts: Facts,
    task: Task,
    planner: Planner,
    pool: tuple[Tensor, Tensor],
) -> str:
    """Why clients cannot be stacked, or nothing; found by stacking two of them for a step."""
    if facts.randomness == "other":
        return "the model draws random numbers that are not dropout layers"
    sizes = planner.clients.sizes
    if not facts.separable and (
        len(set(sizes)) > 1 or int(sizes[0]) % (planner.batch_size or int(sizes[0]))
    ):
        return "the loss is not a mean over samples and minibatches differ in size"
    now = resolve(algorithm, 0)
    two = np.array([0, len(sizes) - 1])
    plan = Plan(0, two, np.full(2, 0.5), np.array([1, 2]), Cohort(0, len(sizes), 2, 1.0))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # vmap announces an operation it would silently run in a loop: not stacked at all.
            warnings.filterwarnings("error", message=".*performance drop.*")
            x0 = task.layout.gather(task.model)
            executor = Executor(task, planner, pool, "stacked", 2)
            play(now, executor, plan, now.init(x0), {}, x0, Meter())
    except DivergenceError:
        return ""  # a matter of training, not of stacking
    except Exception as error:  # whatever vmap refuses in a foreign model, loss or algorithm
        lines = str(error).strip().splitlines()
        return f"vmap refuses it ({lines[0] if lines else type(error).__name__})"
    return ""
