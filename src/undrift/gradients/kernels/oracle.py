"""Gradients by a kernel that was compiled for the model, of one client or of many at once."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from undrift.core import Vector
from undrift.gradients.kernels.builder import library
from undrift.gradients.kernels.emitter import emit
from undrift.gradients.kernels.layers import Chain
from undrift.gradients.kernels.reader import UnsupportedError
from undrift.gradients.task import Batch, BatchIndices, Oracle, Task

CLOSE = 1e-3  # of torch's gradient, in norm, that a kernel may be away from it
TURNS = 10  # of the two in a measurement, fewer if they are slow
ENOUGH = 0.05  # seconds of torch's
_MEMORY = 2  # what the kernel returns when it has none

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long
_ARGUMENTS: list[Any] = [_POINTER, _LONG, *[_POINTER] * 6, _LONG, _LONG, ctypes.c_int]


@dataclass
class Kernels:
    """The compiled function; a batch that it was not made for goes to torch, and so does one whose
    gradient is not finite: where exactly NaN and Inf appear is for torch to say.

    ctypes lets the interpreter go while it runs, and it has no state, so clients on several threads
    share it. `many` spreads the clients over `threads` cores by itself.
    """

    chain: Chain
    function: Callable[..., int]
    otherwise: Oracle  # torch's
    threads: int
    calls: int = 0  # how often it ran; a method that adds to the loss never asks
    gain: float | None = None  # how much faster than torch a gradient was, when measured

    _pool: Tensor | None = field(default=None, init=False, repr=False)  # that is known to fit

    pads_batches = False
    schedules_clients = True

    def on(self, threads: int) -> Kernels:
        return replace(self, threads=threads)

    def one(self, task: Task, x: Vector, batch: Batch) -> Vector:
        valid, keys = (None if t is None else t[None] for t in (batch.valid, batch.keys))
        rows = Batch(batch.inputs[None], batch.targets[None], valid, keys)
        g = self._called(x[None], rows, 1)
        return self.otherwise.one(task, x, batch) if g is None else g[0]

    def many(self, task: Task, x: Tensor, batch: Batch) -> Tensor:
        g = self._called(x, batch, self.threads)
        if g is not None:
            return g
        # One by one: torch's own batched convolutions differ from its others in what is NaN.
        rows = (Batch(*row) for row in zip(*map(_rows_of(len(x)), batch), strict=True))
        return torch.stack([self.otherwise.one(task, *each) for each in zip(x, rows, strict=True)])

    def at(self, x: Tensor, places: BatchIndices) -> Tensor | None:
        pool = places.inputs, places.targets
        if self._pool is not places.inputs:  # which is the same at every step of a run
            ready = all(tensor.is_contiguous() for tensor in pool)
            typed = places.targets.dtype == self._target_type
            if not (ready and typed and self._fits(x, *pool, 1, places.keys)):
                return None
            self._pool = places.inputs
        index = places.index.contiguous()
        return self._call(x, *pool, index, places.counts, places.keys, self.threads)

    def _called(self, x: Tensor, batch: Batch, threads: int) -> Tensor | None:
        if not self._fits(x, batch.inputs, batch.targets, 2, batch.keys):
            return None
        inputs, targets = batch.inputs.contiguous(), batch.targets.to(self._target_type)
        counts = None if batch.valid is None else batch.valid.sum(1).to(torch.int64)
        return self._call(x, inputs, targets.contiguous(), None, counts, batch.keys, threads)

    def _call(
        self,
        x: Tensor,
        inputs: Tensor,
        targets: Tensor,
        index: Tensor | None,
        counts: Tensor | None,
        keys: Tensor | None,
        threads: int,
    ) -> Tensor | None:
        """(clients, D), or nothing: for a label that is none, or what is not finite."""
        self.calls += 1
        x = x if x.stride(1) == 1 else x.contiguous()
        counts, keys = (None if t is None else t.contiguous() for t in (counts, keys))
        clients, parameters = x.shape
        g = torch.empty(clients, parameters)
        result = self.function(
            x.data_ptr(),
            x.stride(0),
            g.data_ptr(),
            inputs.data_ptr(),
            targets.data_ptr(),
            None if index is None else index.data_ptr(),
            None if counts is None else counts.data_ptr(),
            None if keys is None else keys.data_ptr(),
            clients,
            targets.shape[1] if index is None else index.shape[1],
            threads,
        )
        if result == _MEMORY:
            raise MemoryError("A gradient kernel needs memory for a minibatch, got none.")
        return None if result else g

    @property
    def _target_type(self) -> torch.dtype:
        return torch.int64 if self.chain.labels else torch.float32

    def _fits(
        self, x: Tensor, inputs: Tensor, targets: Tensor, axes: int, keys: Tensor | None
    ) -> bool:
        """Whether it is what the kernel was made for, as it will be; `axes` lead to a sample."""
        chain = self.chain
        return (
            inputs.shape[axes:] == chain.inputs
            and x.shape[1] == chain.parameters
            and x.dtype == inputs.dtype == torch.float32
            and targets.shape[axes:] == (() if chain.labels else (chain.outputs,))
            and targets.is_floating_point() != chain.labels
            and (keys is not None or not chain.draws)
        )


def _rows_of(clients: int) -> Callable[[Tensor | None], Iterable[Tensor | None]]:
    return lambda leaf: [None] * clients if leaf is None else leaf


def build(task: Task, chain: Chain, threads: int) -> Kernels:
    """Raises `UnsupportedError`, which says why not, where it cannot be compiled."""
    function = library(emit(chain)).undrift_gradients
    function.argtypes, function.restype = _ARGUMENTS, ctypes.c_int
    return Kernels(chain, function, task.oracle, threads)


def measure(kernels: Kernels, task: Task, batch: Batch) -> float:
    """How much faster than torch on this minibatch, both on one core; first of all, is it right?

    Raises `UnsupportedError` if their gradients differ.
    """
    x, before = task.layout.gather(task.model), kernels.calls
    # With wrong targets, as right ones of a model that fits leave nothing but rounding.
    wrong = (
        (batch.targets + 1) % kernels.chain.outputs if kernels.chain.labels else batch.targets + 1
    )
    batch = batch._replace(targets=wrong)
    best = {"kernel": math.inf, "torch": math.inf}
    spent = 0.0
    for turn in range(TURNS):
        mine = _timed(best, "kernel", lambda: kernels.one(task, x, batch))
        theirs = _timed(best, "torch", lambda: kernels.otherwise.one(task, x, batch))
        spent += best["torch"]
        if turn and spent > ENOUGH:
            break
    if kernels.calls == before:
        raise UnsupportedError(f"targets of {batch.targets.dtype} under {kernels.chain.loss}")
    away = float(torch.linalg.vector_norm(mine - theirs) / torch.linalg.vector_norm(theirs))
    if math.isfinite(float(theirs.sum())) and not away <= CLOSE and not torch.equal(mine, theirs):
        raise UnsupportedError(f"a gradient that differs from torch's by {away:.1e} of its norm")
    return best["torch"] / best["kernel"]


def _timed(best: dict[str, float], who: str, gradient: Callable[[], Vector]) -> Vector:
    start = time.perf_counter()
    g = gradient()
    best[who] = min(best[who], time.perf_counter() - start)
    return g
