"""How a run is executed: the mode, the layout of images, and how many clients to stack.

Rules of thumb decide, and for a run that is long enough a short calibration among what is possible,
which is remembered. Results agree up to float rounding whatever is chosen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from undrift.comm.routes import Ring
from undrift.core import Federated, Peer
from undrift.engine.collectives.inprocess import Exchange, Traffic
from undrift.engine.execution.cohort import Executor
from undrift.engine.execution.executor import Mode
from undrift.engine.execution.local import Meter
from undrift.engine.execution.nodes import PeerExecutor
from undrift.engine.execution.pool import Pool
from undrift.engine.execution.round import federated_round
from undrift.engine.plan import Plan, Planner
from undrift.engine.tuning.probe import Facts
from undrift.errors import DivergenceError, UndriftError, first_line
from undrift.gradients.task import Task
from undrift.optim.schedules import resolve
from undrift.topology import complete

STACKED_PARAMETERS = 200_000  # above this a step is bound by arithmetic, not by overhead
STACKED_BYTES = 2**29  # vectors and activations of one chunk
STACKED_PEER_BYTES = 2**27  # likewise; the states of all peers are in memory besides
STACK_ELEMENTS = 1_250_000  # that a step of one stack works on
STEP_ELEMENTS = 100_000  # activations whose arithmetic costs about as much as calling a step
SHARED_ELEMENTS = 200_000  # activations of a step that are worth a second thread
THREADED_ELEMENTS = 5_000_000  # activations of a step up to which several clients' fit in memory
LARGE_ELEMENTS = 2_000_000  # activations of a step whose memory is worth giving back
WIDE_CHANNELS = 32  # from here on convolutions are faster with channels innermost


@dataclass(frozen=True)
class Execution:
    """How clients run, and why so."""

    mode: Mode
    why: str
    channels_last: bool = False
    threads: int = 1  # clients that run at a time in the mode "threads"
    chunk: int = 1  # clients of a stack


Trial = Callable[[Plan, Execution], object]  # plays a small round and throws it away


def choose(
    mode: Literal["auto"] | Mode,
    facts: Facts,
    task: Task,
    planner: Planner,
    trial: Trial,
    chunk: int,
    threads: int | None = None,
    cohort: int = 2,
) -> list[Execution]:
    """What is possible, the best first by rules of thumb; one alone if it was asked for.

    `cohort` is how many clients a round has, 1 where they should not be put on threads.
    """
    several = min(threads or torch.get_num_threads(), len(planner.census))
    wide = _wide(task.model)

    def execution(mode: Mode, why: str) -> Execution:
        return Execution(mode, why, wide and mode != "stacked", several, chunk)

    if mode == "loop":
        return [execution("loop", "asked for")]
    if mode == "threads":
        if facts.randomness == "other":
            raise UndriftError(f"mode='threads' is not possible: {_DRAWS}; use mode='loop'.")
        return [execution("threads", "asked for")]
    numbers = planner.width * facts.activations
    obstacle = _no_use(task, len(planner.census), numbers)
    if mode == "stacked" or not obstacle:
        obstacle = _obstacle(facts, planner, trial)
    if mode == "stacked" and obstacle:
        raise UndriftError(f"mode='stacked' is not possible: {obstacle}; use mode='loop'.")
    if mode == "stacked":
        return [execution("stacked", "asked for")]

    small = "clients share a call" if task.oracle.schedules_clients else "a small model"
    possible = [] if obstacle else [execution("stacked", small)]
    if min(several, cohort) > 1 and facts.randomness != "other" and numbers <= THREADED_ELEMENTS:
        possible.append(execution("threads", f"{several} clients fit side by side"))
    possible.append(execution("loop", obstacle or "clients one after the other"))
    return possible


_DRAWS = "the model draws random numbers that are not dropout layers"


def _no_use(task: Task, clients: int, numbers: int) -> str:
    """Why stacking would not be faster, or nothing; `numbers` are the activations of a step."""
    if clients < 2:
        return "there is one client"
    if task.layout.size > STACKED_PARAMETERS:
        return f"{task.layout.size} parameters are too many to stack"
    if task.oracle.schedules_clients:
        return ""
    convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in task.model.modules())
    if convolves and numbers > STEP_ELEMENTS:  # a stack of them is a convolution in groups
        return "convolutions of this size gain nothing from stacking"
    return ""


def _wide(model: nn.Module) -> bool:
    """Whether most of the convolutions have many channels."""
    convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d)]
    channels = [min(part.in_channels, part.out_channels) for part in convolutions]
    return bool(channels) and float(np.median(channels)) >= WIDE_CHANNELS


def chunk_for(
    facts: Facts, task: Task, planner: Planner, pool: Pool, budget: int = STACKED_BYTES
) -> int:
    """Clients a chunk may hold: a few vectors each, and forward and backward activations."""
    activations = 0 if task.oracle.schedules_clients else 3 * planner.width * facts.activations
    numbers = 8 * task.layout.size + planner.width * pool.inputs[0].numel() + activations
    return max(1, budget // (numbers * task.layout.dtype.itemsize))


def stack_for(facts: Facts, task: Task, planner: Planner, pool: Pool) -> int:
    """Clients of a stack that is large enough to make its operations worth calling, and no larger.

    More of them are several stacks, which run side by side. It does not depend on the number of
    threads, so neither do the results.
    """
    inputs = pool.inputs[0].numel()
    activations = 0 if task.oracle.schedules_clients else facts.activations
    numbers = task.layout.size + planner.width * (activations + inputs)
    return max(8, STACK_ELEMENTS // numbers)


def row_cost(facts: Facts, planner: Planner) -> float:
    """What a client's row in a stacked step costs, that of the step itself being 1."""
    return planner.width * facts.activations / STEP_ELEMENTS


def worth_trimming(facts: Facts, planner: Planner) -> bool:
    """Whether what a step frees is worth being given back to the system."""
    return planner.width * facts.activations >= LARGE_ELEMENTS


@contextmanager
def intra_op_threads(numbers: int) -> Iterator[None]:
    """One intra-op thread while a step is too small to share: waiting would cost more than work.

    Results do not depend on it beyond float rounding; the caller's setting comes back after.
    """
    if numbers >= SHARED_ELEMENTS:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _obstacle(facts: Facts, planner: Planner, trial: Trial) -> str:
    """Why clients cannot be stacked, or nothing; found by stacking two of them for a step."""
    if facts.randomness == "other":
        return _DRAWS
    sizes = planner.census.sizes
    if not facts.separable and (
        len(set(sizes)) > 1 or int(sizes[0]) % (planner.batch_size or int(sizes[0]))
    ):
        return "the loss is not a mean over samples and minibatches differ in size"
    two = np.array([0, len(sizes) - 1])
    plan = Plan.trial(two, [1, 2], len(sizes))
    try:
        with warnings.catch_warnings():
            # vmap announces an operation it would silently run in a loop: not stacked at all.
            warnings.filterwarnings("error", message=".*performance drop.*")
            trial(plan, Execution("stacked", "", chunk=2))
    except DivergenceError:
        return ""  # a matter of training, not of stacking
    except Exception as error:  # whatever vmap refuses in a foreign model, loss or algorithm
        return f"vmap refuses it ({first_line(error).split('. ')[0]})"
    return ""


def trial_with_server(
    algorithm: Federated[Any, Any, Any, Any],
    task: Task,
    planner: Planner,
    pool: Pool,
    facts: Facts,
) -> Trial:
    made: dict[Execution, Executor] = {}  # kept, as a run keeps its models of threads

    def trial(plan: Plan, how: Execution) -> object:
        now, x0 = resolve(algorithm, 0), task.layout.gather(task.model)
        if how not in made:
            laid = replace(task, channels_last=how.channels_last)
            made[how] = Executor(
                laid,
                planner,
                pool,
                how.mode,
                how.chunk,
                threads=how.threads,
                row_cost=row_cost(facts, planner),
            )
        executor, size = made[how], len(plan.ids)
        with torch.no_grad(), intra_op_threads(executor.elements_per_step(size, facts.activations)):
            return federated_round(now, executor, plan, now.init(x0), {}, x0, Meter(size))

    return trial


def trial_of_peers(
    algorithm: Peer[Any],
    task: Task,
    planner: Planner,
    pool: Pool,
    facts: Facts,
) -> Trial:
    made: dict[Execution, PeerExecutor] = {}
    trim = worth_trimming(facts, planner)

    def trial(plan: Plan, how: Execution) -> object:
        now, x0 = resolve(algorithm, 0), task.layout.gather(task.model)
        if how not in made:
            laid = replace(task, channels_last=how.channels_last)
            made[how] = PeerExecutor(
                laid, planner, pool, how.mode, how.chunk, threads=how.threads, trim=trim
            )
        executor, size = made[how], len(plan.ids)
        start = Plan.trial(plan.ids, 1, plan.cohort.population)
        exchange = Exchange(size, complete(size), Ring(), 0, 0, Traffic(size))
        with torch.no_grad(), intra_op_threads(executor.elements_per_step(size, facts.activations)):
            nodes = executor.init(now, start, x0, Meter(size))
            return executor.peer_round(now, plan, nodes, exchange, Meter(size))

    return trial
