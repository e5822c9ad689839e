"""Gradients by a kernel that was compiled for the model, for one client or for many at once."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from undrift.builder import library
from undrift.core import Vector
from undrift.gradients.kernels.emitter import emit
from undrift.gradients.kernels.layers import Chain, UnsupportedError
from undrift.gradients.task import Batch, BatchIndices, Oracle, Task

CLOSE = 1e-3  # largest distance from torch's gradient, as a share of its norm
TURNS = 10  # measurements of kernel and torch, fewer if they are slow
ENOUGH = 0.05  # seconds of torch's gradients after which a measurement ends
_NO_MEMORY = 2  # what the kernel returns if it cannot allocate

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long
_ARGUMENTS: list[Any] = [_POINTER, _LONG, *[_POINTER] * 6, _LONG, _LONG, ctypes.c_int]


@dataclass
class Kernels:
    """Computes gradients by a compiled function.

    A batch that the function was not made for goes to torch. So does one whose gradient is not
    finite, because torch decides where exactly NaN and Inf appear. ctypes releases the interpreter
    lock during a call and the function has no state, so clients on several threads share it.
    `gradients` spreads the clients over `threads` cores by itself.
    """

    chain: Chain
    function: Callable[..., int]
    address: int  # of the C function that makes one client's gradient, for other compiled code
    fallback: Oracle  # torch's
    threads: int
    calls: int = 0  # of the function; a method that adds terms to the loss makes none
    gain: float | None = None  # how much faster than torch a gradient was, when measured

    # The inputs of the last call of `gradients_at`, which are known to fit.
    _fitting: Tensor | None = field(default=None, init=False, repr=False)

    pads_batches = False
    schedules_clients = True

    def with_threads(self, threads: int) -> Kernels:
        """Return the oracle on at most so many cores."""
        return replace(self, threads=threads)

    def gradient(self, task: Task, x: Vector, batch: Batch) -> Vector:
        """Return the gradient of one client's loss at x."""
        valid, keys = (None if t is None else t[None] for t in (batch.valid, batch.keys))
        rows = Batch(batch.inputs[None], batch.targets[None], valid, keys)
        g = self._called(x[None], rows, 1)
        return self.fallback.gradient(task, x, batch) if g is None else g[0]

    def gradients(self, task: Task, x: Tensor, batch: Batch) -> Tensor:
        """Return (clients, D) the gradients of many clients at the rows of x."""
        g = self._called(x, batch, self.threads)
        if g is not None:
            return g
        # Clients go one by one, as NaN appear elsewhere in torch's batched convolutions.
        rows = (Batch(*row) for row in zip(*map(_rows_of(len(x)), batch), strict=True))
        pairs = zip(x, rows, strict=True)
        return torch.stack([self.fallback.gradient(task, own, row) for own, row in pairs])

    def gradients_at(self, x: Tensor, indices: BatchIndices) -> Tensor | None:
        """Return (clients, D) the gradients on samples of a pool, or None if they do not fit."""
        inputs, targets = indices.inputs, indices.targets
        if not self.takes_pool(x, inputs, targets, indices.keys):
            return None
        index = indices.index.contiguous()
        return self._call(x, inputs, targets, index, indices.counts, indices.keys, self.threads)

    def takes_pool(self, x: Tensor, inputs: Tensor, targets: Tensor, keys: Tensor | None) -> bool:
        """Return whether the function can read samples where they are in a pool."""
        if self._fitting is inputs:  # A run has one pool, which is checked at its first step.
            return True
        ready = inputs.is_contiguous() and targets.is_contiguous()
        typed = targets.dtype == self._target_type
        if not (ready and typed and self._fits(x, inputs, targets, 1, keys)):
            return False
        self._fitting = inputs
        return True

    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        """Return the gradient of f at x, which torch computes."""
        return self.fallback.slope(f, x)

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
        """Return (clients, D), or None for a label out of range or an infinite gradient."""
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
        if result == _NO_MEMORY:
            raise MemoryError("A gradient kernel needs memory for a minibatch, got none.")
        return None if result else g

    @property
    def _target_type(self) -> torch.dtype:
        return torch.int64 if self.chain.labels else torch.float32

    def _fits(
        self, x: Tensor, inputs: Tensor, targets: Tensor, axes: int, keys: Tensor | None
    ) -> bool:
        """Return whether shapes and dtypes are the kernel's; `axes` are those before a sample's."""
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
    """Return the compiled kernel of a chain, or raise `UnsupportedError`, which says why not."""
    compiled = library(emit(chain))
    function = compiled.undrift_gradients
    function.argtypes, function.restype = _ARGUMENTS, ctypes.c_int
    address = ctypes.cast(compiled.undrift_gradient, _POINTER).value or 0
    return Kernels(chain, function, address, task.oracle, threads)


def measure(kernels: Kernels, task: Task, batch: Batch) -> float:
    """Return how much faster than torch the kernel is on this minibatch, both on one core.

    It raises `UnsupportedError` if their gradients differ.
    """
    x, before = task.layout.gather(task.model), kernels.calls
    # Targets are made wrong, because gradients of a model that fits are nothing but rounding.
    targets = batch.targets + 1
    batch = batch._replace(
        targets=targets % kernels.chain.outputs if kernels.chain.labels else targets
    )
    best = {"kernel": math.inf, "torch": math.inf}
    spent = 0.0
    for turn in range(TURNS):
        own = _timed(best, "kernel", lambda: kernels.gradient(task, x, batch))
        expected = _timed(best, "torch", lambda: kernels.fallback.gradient(task, x, batch))
        spent += best["torch"]
        if turn and spent > ENOUGH:
            break
    if kernels.calls == before:
        raise UnsupportedError(f"targets of {batch.targets.dtype} under {kernels.chain.loss}")
    norm = torch.linalg.vector_norm
    away = float(norm(own - expected) / norm(expected))
    finite = math.isfinite(float(expected.sum()))
    if finite and not away <= CLOSE and not torch.equal(own, expected):
        raise UnsupportedError(f"a gradient that differs from torch's by {away:.1e} of its norm")
    return best["torch"] / best["kernel"]


def _timed(best: dict[str, float], who: str, gradient: Callable[[], Vector]) -> Vector:
    """Return a gradient and keep the shortest time that it has taken."""
    start = time.perf_counter()
    g = gradient()
    best[who] = min(best[who], time.perf_counter() - start)
    return g
