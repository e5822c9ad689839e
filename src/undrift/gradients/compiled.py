"""Gradients by torch.compile: worth its compilation, 10 to 60 s, in long runs of the same model."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from undrift.core import Vector
from undrift.gradients.im2col import DECOMPOSITIONS
from undrift.gradients.task import Autograd, Batch, Task

# Code called from C++ lets go of the interpreter, which clients on other threads wait for.
_ALONE: dict[str, Any] = {"cpp_wrapper": True}

Gradient = Callable[[Tensor, dict[str, Tensor]], Tensor]


class Compiled(Autograd):
    """Compiles at the first gradient of each shape; what cannot be compiled is left to autograd.

    The compiled code has no model of its own, so clients on several threads share it.
    """

    pads_batches = True  # short minibatches are padded, so that there are few shapes

    def __init__(self) -> None:
        self._functions: dict[Any, Gradient] = {}  # by shapes, those that work
        self._stacks: Gradient | None = None
        self._lock = threading.Lock()
        self._autograd: Autograd | None = None  # if it could not be compiled

    def one(self, task: Task, x: Vector, batch: Batch) -> Vector:
        if self._autograd is not None:
            return self._autograd.one(task, x, batch)
        return self._call("one", task, x, batch)

    def many(self, task: Task, x: Tensor, batch: Batch) -> Tensor:
        if self._autograd is not None:
            return self._autograd.many(task, x, batch)
        return self._call("many", task, x, batch)

    def _call(self, kind: str, task: Task, x: Tensor, batch: Batch) -> Tensor:
        given = batch.given()
        shapes = (kind, torch.get_num_threads(), *((k, v.shape, v.dtype) for k, v in given.items()))
        x = x.contiguous()
        if shapes in self._functions:
            return self._functions[shapes](x, given)
        with self._lock:  # the compiler is for one thread at a time
            if self._autograd is None:
                try:
                    if shapes in self._functions:  # another thread was first
                        return self._functions[shapes](x, given)
                    gradient = self._compile(kind, task, x, given)
                    made = gradient(x, given)
                    self._functions[shapes] = gradient
                    return made
                except Exception as error:  # whatever the compiler meets in a foreign model
                    lines = str(error).strip().splitlines() or [type(error).__name__]
                    warnings.warn(
                        f"torch.compile needs a C++ compiler and a model it can trace, got "
                        f"{type(error).__name__}: {lines[0]}; going on without it.",
                        stacklevel=2,
                    )
                    self._autograd = Autograd()
        return getattr(self._autograd, kind)(task, x, batch)  # type: ignore[no-any-return]

    def _compile(self, kind: str, task: Task, x: Tensor, given: dict[str, Tensor]) -> Gradient:
        def one(x: Tensor, given: dict[str, Tensor]) -> Tensor:
            batch = Batch(**given)
            return torch.func.grad(lambda y: task.value(y, batch))(x)  # type: ignore[no-any-return]

        if kind == "one":
            # Samples innermost would not go with channels innermost, as wide nets have them.
            replaced = {} if task.channels_last else DECOMPOSITIONS
            return _traced(one, x, given, replaced)
        if self._stacks is None:
            # Stacks have any number of clients; torch then compiles one code for all of them.
            self._stacks = torch.compile(torch.func.vmap(one), fullgraph=True)
        return self._stacks


def _traced(
    gradient: Gradient,
    x: Tensor,
    given: dict[str, Tensor],
    replaced: Mapping[Any, Callable[..., Any]],
) -> Gradient:
    """For these shapes alone, so that a call has nothing to find out; with operations replaced."""
    from torch.fx.experimental.proxy_tensor import make_fx  # which takes its time

    def flat(x: Tensor, *leaves: Tensor) -> Tensor:
        return gradient(x, dict(zip(given, leaves, strict=True)))

    inputs: list[Any] = [x, *given.values()]
    graph = make_fx(flat, decomposition_table=dict(replaced))(*inputs)
    for node in graph.graph.nodes:
        node.meta.clear()  # what the tracer saw, which the compiler would not take for its own
    made = torch._inductor.compile(graph, inputs, options=_ALONE)
    return lambda x, given: made(x, *given.values())
