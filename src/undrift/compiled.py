"""Gradients by torch.compile: worth its compilation, 10 to 60 s, in long runs of the same model."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from undrift.core import Vector
from undrift.task import Autograd, Batch, Task

Gradient = Callable[[Tensor, dict[str, Tensor]], Tensor]


class Compiled:
    """Compiles at the first gradient of each shape; what cannot be compiled is left to autograd.

    The compiled code has no model of its own, so clients on several threads share it.
    """

    one_shape = True  # short minibatches are padded, so that there are few shapes

    def __init__(self) -> None:
        self._functions: dict[str, Gradient] = {}
        self._seen: set[Any] = set()
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
        if shapes in self._seen:
            return self._functions[kind](x, given)
        with self._lock:  # the compiler is for one thread at a time
            if self._autograd is None:
                try:
                    made = self._compile(kind, task)(x, given)
                    self._seen.add(shapes)
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

    def _compile(self, kind: str, task: Task) -> Gradient:
        if kind not in self._functions:

            def one(x: Tensor, given: dict[str, Tensor]) -> Tensor:
                batch = Batch(**given)
                return torch.func.grad(lambda y: task.value(y, batch))(x)  # type: ignore[no-any-return]

            made = one if kind == "one" else torch.func.vmap(one)
            # Stacks have any number of clients; torch then compiles one code for all of them.
            dynamic = None if kind == "many" else False
            self._functions[kind] = torch.compile(made, fullgraph=True, dynamic=dynamic)
        return self._functions[kind]
