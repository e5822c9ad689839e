"""Which execution mode fits a run, and how many clients to stack."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from undrift.core import Cohort, Federated, Peer
from undrift.engine.comm import Exchange, Traffic
from undrift.engine.execute import Executor, Mode
from undrift.engine.local import Meter
from undrift.engine.peers import PeerExecutor
from undrift.engine.plan import Plan, Planner
from undrift.engine.probe import Facts
from undrift.engine.round import play
from undrift.errors import DivergenceError, UndriftError
from undrift.objective import Task
from undrift.route import Ring
from undrift.schedule import resolve
from undrift.topology import complete

STACKED_PARAMETERS = 200_000  # above this a step is bound by arithmetic, not by overhead
STACKED_BYTES = 2**29  # vectors and activations of one chunk
STACKED_PEER_BYTES = 2**27  # likewise; the states of all peers are in memory besides
STEP_NUMBERS = 100_000  # activations whose arithmetic costs about as much as calling a step
SHARED_NUMBERS = 200_000  # activations of a step that are worth a second thread


def choose(
    mode: Literal["auto", "loop", "stacked"],
    facts: Facts,
    task: Task,
    planner: Planner,
    trial: Callable[[Plan], object],
) -> tuple[Mode, str]:
    """The execution mode and the reason for it; `trial` plays a small stacked round."""
    if mode == "loop":
        return "loop", "asked for"
    if mode == "auto" and task.layout.size > STACKED_PARAMETERS:
        return "loop", f"{task.layout.size} parameters are too many to stack"
    if mode == "auto" and len(planner.clients) < 2:
        return "loop", "there is one client"
    obstacle = _obstacle(facts, planner, trial)
    if mode == "stacked" and obstacle:
        raise UndriftError(f"mode='stacked' is not possible: {obstacle}; use mode='loop'.")
    if obstacle:
        return "loop", obstacle
    return "stacked", "asked for" if mode == "stacked" else "a small model"


def chunk_for(facts: Facts, task: Task, planner: Planner, budget: int = STACKED_BYTES) -> int:
    """Clients a chunk may hold: a few vectors each, and forward and backward activations."""
    samples = planner.batch_size or int(planner.clients.sizes.max())
    numbers = 8 * task.layout.size + 3 * samples * facts.activations
    return max(1, budget // (numbers * task.layout.dtype.itemsize))


def row_cost(facts: Facts, planner: Planner) -> float:
    """What a client's row in a stacked step costs, that of the step itself being 1."""
    samples = planner.batch_size or int(planner.clients.sizes.max())
    return samples * facts.activations / STEP_NUMBERS


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


def _obstacle(facts: Facts, planner: Planner, trial: Callable[[Plan], object]) -> str:
    """Why clients cannot be stacked, or nothing; found by stacking two of them for a step."""
    if facts.randomness == "other":
        return "the model draws random numbers that are not dropout layers"
    sizes = planner.clients.sizes
    if not facts.separable and (
        len(set(sizes)) > 1 or int(sizes[0]) % (planner.batch_size or int(sizes[0]))
    ):
        return "the loss is not a mean over samples and minibatches differ in size"
    two = np.array([0, len(sizes) - 1])
    plan = Plan(0, two, np.full(2, 0.5), np.array([1, 2]), Cohort(0, len(sizes), 2, 1.0))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # vmap announces an operation it would silently run in a loop: not stacked at all.
            warnings.filterwarnings("error", message=".*performance drop.*")
            trial(plan)
    except DivergenceError:
        return ""  # a matter of training, not of stacking
    except Exception as error:  # whatever vmap refuses in a foreign model, loss or algorithm
        lines = str(error).strip().splitlines()
        first = lines[0].split(". ")[0] if lines else type(error).__name__
        return f"vmap refuses it ({first})"
    return ""


def trial_with_server(
    algorithm: Federated[Any, Any, Any, Any],
    task: Task,
    planner: Planner,
    pool: tuple[Tensor, Tensor],
) -> Callable[[Plan], object]:
    def trial(plan: Plan) -> object:
        now, x0 = resolve(algorithm, 0), task.layout.gather(task.model)
        executor = Executor(task, planner, pool, "stacked", 2)
        return play(now, executor, plan, now.init(x0), {}, x0, Meter(2))

    return trial


def trial_of_peers(
    algorithm: Peer[Any], task: Task, planner: Planner, pool: tuple[Tensor, Tensor]
) -> Callable[[Plan], object]:
    def trial(plan: Plan) -> object:
        now, x0 = resolve(algorithm, 0), task.layout.gather(task.model)
        executor = PeerExecutor(task, planner, pool, "stacked", 2)
        nodes = executor.init(now, replace(plan, counts=np.array([1, 1])), x0, Meter(2))
        exchange = Exchange(2, complete(2), Ring(), 0, 0, Traffic(2))
        return executor.play(now, plan, nodes, exchange, Meter(2))

    return trial
