"""Rules of thumb: which executions of a run are possible, and which of them is likely the fastest.

An execution is a mode, a layout of images and a number of clients to stack. Results agree up to
float rounding whatever is chosen.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from undrift.engine.execution.executor import Mode
from undrift.engine.execution.pool import Pool
from undrift.engine.plan import Plan, Planner
from undrift.engine.tuning.probe import Facts
from undrift.errors import DivergenceError, UndriftError, first_line
from undrift.gradients.task import Task

STACKED_PARAMETERS = 200_000  # above this a step is bound by arithmetic, not by overhead
STACKED_BYTES = 2**29  # vectors and activations of one chunk
STACKED_PEER_BYTES = 2**27  # likewise; the states of all peers are in memory besides
STACK_ELEMENTS = 1_250_000  # that a step of one stack works on
STEP_ELEMENTS = 100_000  # activations whose arithmetic costs about as much as calling a step
THREADED_ELEMENTS = 10_000_000  # activations of a step up to which several clients' fit in memory
LARGE_ELEMENTS = 2_000_000  # activations of a step whose memory is worth giving back
WIDE_CHANNELS = 32  # from here on convolutions are faster with channels innermost


@dataclass(frozen=True)
class Candidate:
    """Says how clients could be run, and why so."""

    mode: Mode
    why: str
    channels_last: bool = False
    threads: int = 1  # clients that run at a time in the mode "threads"
    chunk: int = 1  # clients of a stack


class TrialRound(Protocol):
    """Runs small rounds whose results are not used."""

    @property
    def pair(self) -> NDArray[np.int64]:
        """Return two clients whose samples this process has, one where it has no more."""
        ...

    def __call__(self, plan: Plan, candidate: Candidate) -> int:
        """Run a round as the candidate says, and return how many gradients it took."""
        ...

    def threads_at_once(self, clients: int, candidate: Candidate) -> int:
        """Return how many threads compute at a time in a round of so many clients."""
        ...


def candidates(
    mode: Literal["auto"] | Mode,
    *,
    facts: Facts,
    task: Task,
    planner: Planner,
    trial: TrialRound,
    chunk: int,
    threads: int | None = None,
    cohort: int = 2,
) -> list[Candidate]:
    """Return the possible executions, the best first; a single one if the mode is not "auto".

    `cohort` is how many clients a round has, 1 where clients should not be put on threads.
    """
    at_once = min(threads or torch.get_num_threads(), len(planner.census))
    wide = _wide(task.model)

    def candidate(mode: Mode, why: str) -> Candidate:
        return Candidate(mode, why, wide and mode != "stacked", at_once, chunk)

    if mode == "loop":
        return [candidate("loop", "asked for")]
    if mode == "threads":
        if facts.randomness == "other":
            raise UndriftError(f"mode='threads' is not possible: {_DRAWS}; use mode='loop'.")
        return [candidate("threads", "asked for")]
    elements = planner.width * facts.activations
    obstacle = _no_gain(task, len(planner.census), elements)
    if mode == "stacked" or not obstacle:
        obstacle = _obstacle(facts, planner, trial)
    if mode == "stacked" and obstacle:
        raise UndriftError(f"mode='stacked' is not possible: {obstacle}; use mode='loop'.")
    if mode == "stacked":
        return [candidate("stacked", "asked for")]

    small = "clients share a call" if task.oracle.schedules_clients else "a small model"
    possible = [] if obstacle else [candidate("stacked", small)]
    if min(at_once, cohort) > 1 and facts.randomness != "other" and elements <= THREADED_ELEMENTS:
        possible.append(candidate("threads", f"{at_once} clients fit side by side"))
    possible.append(candidate("loop", obstacle or "clients one after the other"))
    return possible


_DRAWS = "the model draws random numbers that are not dropout layers"


def _no_gain(task: Task, clients: int, elements: int) -> str:
    """Return why stacking would not be faster, or ""; a step has so many activations."""
    if clients < 2:
        return "there is one client"
    if task.layout.size > STACKED_PARAMETERS:
        return f"{task.layout.size} parameters are too many to stack"
    if task.oracle.schedules_clients:
        return ""
    convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in task.model.modules())
    # A stack of convolutions is one convolution in groups, which is slow.
    if convolves and elements > STEP_ELEMENTS:
        return "convolutions of this size gain nothing from stacking"
    return ""


def _wide(model: nn.Module) -> bool:
    """Return whether most of the convolutions have many channels."""
    convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d)]
    channels = [min(part.in_channels, part.out_channels) for part in convolutions]
    return bool(channels) and float(np.median(channels)) >= WIDE_CHANNELS


def chunk_for(
    facts: Facts, task: Task, planner: Planner, pool: Pool, budget: int = STACKED_BYTES
) -> int:
    """Return how many clients fit a chunk, each with some vectors and with its activations."""
    activations = 0 if task.oracle.schedules_clients else 3 * planner.width * facts.activations
    inputs = planner.width * pool.inputs[0].numel()
    elements = 8 * task.layout.size + inputs + activations
    return max(1, budget // (elements * task.layout.dtype.itemsize))


def stack_for(facts: Facts, task: Task, planner: Planner, pool: Pool) -> int:
    """Return the size of a stack that is just large enough to make its operations worth calling.

    More clients make several stacks, which run side by side. The size does not depend on the number
    of threads, so neither do the results.
    """
    inputs = pool.inputs[0].numel()
    activations = 0 if task.oracle.schedules_clients else facts.activations
    elements = task.layout.size + planner.width * (activations + inputs)
    return max(8, STACK_ELEMENTS // elements)


def row_cost(facts: Facts, planner: Planner) -> float:
    """Return the cost of a client's row in a stacked step; the step itself costs 1."""
    return planner.width * facts.activations / STEP_ELEMENTS


def worth_trimming(facts: Facts, planner: Planner) -> bool:
    """Return whether the memory that a step frees is worth returning to the system."""
    return planner.width * facts.activations >= LARGE_ELEMENTS


def _obstacle(facts: Facts, planner: Planner, trial: TrialRound) -> str:
    """Return why clients cannot be stacked, or ""; two of them are stacked for a step to see it."""
    if facts.randomness == "other":
        return _DRAWS
    sizes = planner.census.sizes
    if not facts.separable and (
        len(set(sizes)) > 1 or int(sizes[0]) % (planner.batch_size or int(sizes[0]))
    ):
        return "the loss is not a mean over samples and minibatches differ in size"
    plan = Plan.equal(trial.pair, [1, 2][: len(trial.pair)], len(sizes))
    try:
        with warnings.catch_warnings():
            # vmap announces an operation it would silently run in a loop: not stacked at all.
            warnings.filterwarnings("error", message=".*performance drop.*")
            trial(plan, Candidate("stacked", "", chunk=2))
    except DivergenceError:
        return ""  # a matter of training, not of stacking
    except Exception as error:  # whatever vmap refuses in a foreign model, loss or algorithm
        return f"vmap refuses it ({first_line(error).split('. ')[0]})"
    return ""
