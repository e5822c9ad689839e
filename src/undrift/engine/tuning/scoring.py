"""The choice of what evaluates models: a compiled forward pass where it pays, torch otherwise.

Counts decide and not times, whether gradients have a kernel or not, so that equal calls evaluate
alike and evaluation changes nothing about training.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from undrift.data.clients import Clients
from undrift.engine.execution.threads import intra_op_threads
from undrift.engine.settings import KernelChoice
from undrift.engine.tuning.frequency import GRADIENT
from undrift.gradients.kernels import (
    ForwardKernel,
    UnsupportedError,
    build_forward,
    check_forward,
    read,
)
from undrift.gradients.task import Task

TORCH_FLOPS = 1e10  # floating-point operations a second that torch reaches on small nets
WORTH_SECONDS = 1.0  # of evaluation by torch, at this speed, that make compiling worth it


@dataclass(frozen=True)
class Scoring:
    """Says what evaluates the models of a run."""

    kernel: ForwardKernel | None
    why: str  # for a reader


class PendingScoring:
    """Compiles a forward pass on a thread, while the compiler may be at work for gradients, too."""

    def __init__(self, task: Task, clients: Clients, kernels: KernelChoice, passes: int) -> None:
        self._task = task
        few = torch.from_numpy(clients.index[:8])
        self._samples = task.prepared(clients.inputs[few]), task.cast(clients.targets[few])
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="undrift")
        self._kernel: Future[ForwardKernel] | None = None
        if not kernels:
            return
        inputs, targets = self._samples
        try:
            chain = read(task, inputs.shape[1:], targets.shape[1:])
        except UnsupportedError:
            return
        seconds = 2.0 * chain.products / GRADIENT * passes / TORCH_FLOPS
        if kernels is not True or seconds >= WORTH_SECONDS:
            self._kernel = self._pool.submit(build_forward, chain)

    def result(self) -> Scoring:
        """Return what evaluates models, when it is compiled and gives torch's losses."""
        self._pool.shutdown(wait=False)
        if self._kernel is None:
            return Scoring(None, "torch")
        try:
            kernel = self._kernel.result()
            with intra_op_threads(0):
                check_forward(kernel, self._task, *self._samples)
        except UnsupportedError as error:
            return Scoring(None, f"torch (no kernel: {error})")
        return Scoring(kernel, "a compiled kernel")
