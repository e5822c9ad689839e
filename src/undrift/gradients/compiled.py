"""Gradients by torch.compile, whose compilation of 10 to 60 s is worth it in long runs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from undrift.core import Vector
from undrift.errors import first_line
from undrift.gradients.im2col import DECOMPOSITIONS
from undrift.gradients.task import Autograd, Batch, Task

# Code that is called from C++ releases the interpreter lock, so clients on other threads can run.
_OPTIONS: dict[str, Any] = {"cpp_wrapper": True}

Gradient = Callable[[Tensor, dict[str, Tensor]], Tensor]
Kind = Literal["gradient", "gradients"]  # the methods of an oracle


class Compiled(Autograd):
    """Compiles at the first gradient of each shape, and leaves to autograd what does not compile.

    The compiled code has no model of its own, so clients on several threads share it.
    """

    pads_batches = True  # Every shape costs a compilation, so short minibatches are padded.

    def __init__(self) -> None:
        self._functions: dict[Any, Gradient] = {}  # that have worked, by shapes
        self._stacks: Gradient | None = None
        self._lock = threading.Lock()
        self._autograd: Autograd | None = None  # once a compilation has failed

    def gradient(self, task: Task, x: Vector, batch: Batch) -> Vector:
        """Return the gradient of one client's loss at x."""
        if self._autograd is not None:
            return self._autograd.gradient(task, x, batch)
        return self._call("gradient", task, x, batch)

    def gradients(self, task: Task, x: Tensor, batch: Batch) -> Tensor:
        """Return (clients, D) the gradients of many clients at the rows of x."""
        if self._autograd is not None:
            return self._autograd.gradients(task, x, batch)
        return self._call("gradients", task, x, batch)

    def _call(self, kind: Kind, task: Task, x: Tensor, batch: Batch) -> Tensor:
        tensors = batch.present()
        kinds = ((name, each.shape, each.dtype) for name, each in tensors.items())
        shapes = (kind, torch.get_num_threads(), *kinds)
        x = x.contiguous()
        if shapes in self._functions:
            return self._functions[shapes](x, tensors)
        with self._lock:  # The compiler serves one thread at a time.
            if self._autograd is None:
                try:
                    if shapes in self._functions:  # Another thread has compiled it meanwhile.
                        return self._functions[shapes](x, tensors)
                    function = self._compile(kind, task, x, tensors)
                    result = function(x, tensors)
                    self._functions[shapes] = function
                    return result
                except Exception as error:  # The compiler may raise anything for a user's model.
                    warnings.warn(
                        f"torch.compile needs a C++ compiler and a model it can trace, got "
                        f"{first_line(error, named=True)}; going on without it.",
                        stacklevel=2,
                    )
                    self._autograd = Autograd()
        return getattr(self._autograd, kind)(task, x, batch)  # type: ignore[no-any-return]

    def _compile(self, kind: Kind, task: Task, x: Tensor, tensors: dict[str, Tensor]) -> Gradient:
        def gradient(x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
            batch = Batch(**tensors)
            return torch.func.grad(lambda y: task.value(y, batch))(x)  # type: ignore[no-any-return]

        if kind == "gradient":
            # DECOMPOSITIONS put samples innermost, which contradicts channels innermost.
            replaced = {} if task.channels_last else DECOMPOSITIONS
            return _traced(gradient, x, tensors, replaced)
        if self._stacks is None:
            # Stacks have any number of clients, and torch compiles one code for all numbers.
            self._stacks = torch.compile(torch.func.vmap(gradient), fullgraph=True)
        return self._stacks


def _traced(
    gradient: Gradient,
    x: Tensor,
    tensors: dict[str, Tensor],
    replaced: Mapping[Any, Callable[..., Any]],
) -> Gradient:
    """Return code for these shapes alone, which calls need not check, with operations replaced."""
    from torch.fx.experimental.proxy_tensor import make_fx  # This import takes a second.

    def flat(x: Tensor, *leaves: Tensor) -> Tensor:
        return gradient(x, dict(zip(tensors, leaves, strict=True)))

    inputs: list[Any] = [x, *tensors.values()]
    graph = make_fx(flat, decomposition_table=dict(replaced))(*inputs)
    for node in graph.graph.nodes:
        node.meta.clear()  # The compiler does not accept the shapes that the tracer has noted.
    function = torch._inductor.compile(graph, inputs, options=_OPTIONS)
    return lambda x, tensors: function(x, *tensors.values())
