"""Who makes gradients and how clients run: all that makes a difference to speed alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from undrift.check import require
from undrift.core import Federated, Peer
from undrift.engine.execution.executor import Mode
from undrift.engine.execution.pool import Pool
from undrift.engine.plan import Plan, Planner
from undrift.engine.tuning import calibrate
from undrift.engine.tuning.probe import Facts
from undrift.engine.tuning.rules import (
    STACKED_BYTES,
    STACKED_PEER_BYTES,
    Execution,
    Trial,
    choose,
    chunk_for,
    intra_op_threads,
    stack_for,
    trial_of_peers,
    trial_with_server,
)
from undrift.gradients.compiled import Compiled
from undrift.gradients.kernels import Kernels, UnsupportedError, build, measure, read
from undrift.gradients.mlp import Dense
from undrift.gradients.task import Batch, Task

TORCH_FLOPS = 1e10  # a second that torch reaches on small nets
STEP_SECONDS = 2e-5  # that calling a gradient takes at least
KERNEL_SECONDS = 10.0  # of gradients by torch that make compiling a kernel worth it

KernelWish = bool | Literal["always", "require"]
Algorithm = Federated[Any, Any, Any, Any] | Peer[Any]


@dataclass(frozen=True)
class ExecutionOptions:
    """What was asked for; None and "auto" leave it to the engine."""

    mode: Literal["auto"] | Mode
    chunk_size: int | None
    threads: int | None
    channels_last: bool | None
    compile: bool
    kernels: KernelWish

    def following(self, manner: Mapping[str, Any] | None) -> ExecutionOptions:
        """As a run that goes on was begun, so that it gives the same bits."""
        if not manner:
            return self
        begun: KernelWish = "always" if manner.get("kernels") else False
        return replace(
            self,
            kernels=self.kernels if self.kernels in (False, "require") else begun,
            channels_last=(
                manner["channels_last"] if self.channels_last is None else self.channels_last
            ),
        )


@dataclass(frozen=True)
class ExecutionChoice:
    task: Task  # with the oracle and the layout of images
    how: Execution
    gradients: str  # who makes them, for a reader

    @property
    def kernels(self) -> bool:
        return isinstance(self.task.oracle, Kernels)


@dataclass(frozen=True)
class Workload:
    """A run, as far as it matters here."""

    algorithm: Algorithm
    planner: Planner
    pool: Pool
    facts: Facts
    rounds: int
    alone: bool  # whether one process does it all; several must choose the same

    def trial(self, task: Task) -> Trial:
        about = task, self.planner, self.pool, self.facts
        if isinstance(self.algorithm, Peer):
            return trial_of_peers(self.algorithm, *about)
        return trial_with_server(self.algorithm, *about)

    def seconds(self, products: int) -> float:
        """About what all gradients would take with torch."""
        flops = 2.0 * products * self.planner.width
        gradients = self.rounds * int(self.planner.plan(0).counts.sum()) if self.rounds else 0
        return gradients * (flops / TORCH_FLOPS + STEP_SECONDS)

    def sample(self, task: Task) -> Batch:
        """A minibatch of the first client."""
        inputs, targets, (held,) = self.pool.samples(np.array([0]))
        some = torch.from_numpy(held[: self.planner.width]).to(inputs.device)
        key = torch.zeros((), dtype=torch.int64) if task.randomness == "dropout" else None
        return Batch(task.prepared(inputs[some]), targets[some], None, key)


def choose_execution(
    load: Workload, task: Task, wishes: ExecutionOptions, begun: Mapping[str, Any] | None
) -> ExecutionChoice:
    """`begun` is how a run that goes on was executed."""
    if wishes.compile:
        expected = "a loss that is the mean over the samples of a minibatch"
        require(load.facts.separable, "compile=True", expected, "another", "leave compile out")
    asked_for = wishes.kernels
    wishes = wishes.following(begun)
    dense = Dense.of(task)
    if dense is not None:
        task = replace(task, oracle=dense)
    kernels, gradients = _kernels(load, task, wishes, asked_for)
    if kernels is not None:
        task = replace(task, oracle=kernels)
    trial, chunk = load.trial(task), _chunk(load, task, wishes)
    cohort = _cohort(load) if load.alone else 1
    about = load.facts, task, load.planner, trial, chunk, wishes.threads
    possible = choose(wishes.mode, *about, cohort=cohort)
    how = next((each for each in possible if begun and each.mode == begun["mode"]), possible[0])
    compiled = wishes.compile and dense is None and kernels is None
    measures = load.alone and not begun and not compiled and kernels is None
    if measures and calibrate.wanted(load.rounds, load.planner, possible):
        name = _name(load.algorithm)
        how = calibrate.fastest(possible, task, load.planner, load.pool, trial, name)
    innermost = how.channels_last if wishes.channels_last is None else wishes.channels_last
    innermost = innermost and how.mode != "stacked"  # which vmap does not know
    if compiled:
        task, gradients = replace(task, oracle=Compiled()), "torch.compile"
    return ExecutionChoice(replace(task, channels_last=innermost), how, gradients)


def _chunk(load: Workload, task: Task, wishes: ExecutionOptions) -> int:
    if wishes.chunk_size is not None:
        return wishes.chunk_size
    peers = isinstance(load.algorithm, Peer)
    budget = STACKED_PEER_BYTES if peers else STACKED_BYTES
    chunk = chunk_for(load.facts, task, load.planner, load.pool, budget)
    return chunk if peers else min(chunk, stack_for(load.facts, task, load.planner, load.pool))


def _cohort(load: Workload) -> int:
    rounds = range(min(load.rounds, 3))
    return max((len(load.planner.plan(t).ids) for t in rounds), default=0)


def _kernels(
    load: Workload, task: Task, wishes: ExecutionOptions, asked_for: KernelWish
) -> tuple[Kernels | None, str]:
    """A kernel for the model if there is one and it pays, and a word on it."""
    if not wishes.kernels:
        return None, "torch (as it was begun)" if asked_for else "torch (kernels are off)"
    sample = load.sample(task)
    threads = wishes.threads or torch.get_num_threads()
    try:
        chain = read(task, sample.inputs.shape[1:], sample.targets.shape[1:])
        if wishes.kernels is True and load.seconds(chain.products) < KERNEL_SECONDS:
            return None, "torch (too short a run to compile a kernel for)"
        kernels = build(task, chain, threads)
        with intra_op_threads(0):
            kernels.gain = measure(kernels, task, sample)
        if not _uses(load, replace(task, oracle=kernels), kernels):
            raise UnsupportedError(f"{_name(load.algorithm)} adds to the loss")
    except UnsupportedError as error:
        if wishes.kernels == "require":
            raise ValueError(
                "kernels='require' needs a model, loss and machine that a kernel can be compiled "
                f"for, got {error}; use kernels=True to do without where it must."
            ) from error
        return None, f"torch (no kernel: {error})"
    return kernels, f"a compiled kernel, {kernels.gain:.1f}x as fast as torch"


def _uses(load: Workload, task: Task, kernels: Kernels) -> bool:
    """Whether the method asks for plain gradients, seen on a step of two clients."""
    before = kernels.calls
    clients = len(load.planner.census)
    plan = Plan.trial(np.unique([0, clients - 1]), 1, clients)
    try:
        load.trial(task)(plan, Execution("loop", ""))
    except Exception:
        return True  # which the run itself will meet
    return kernels.calls > before


def _name(algorithm: object) -> str:
    """Of a method and what is around it."""
    inner = getattr(algorithm, "inner", None)
    return type(algorithm).__name__ + ("" if inner is None else f" of {_name(inner)}")
