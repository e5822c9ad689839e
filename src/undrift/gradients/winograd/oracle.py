"""Gradients by torch, with its wide 3x3 convolutions replaced by compiled ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from undrift.core import Vector
from undrift.gradients.task import Autograd, Batch, Task
from undrift.gradients.winograd.convolution import Call, WinogradConvolution, first_order
from undrift.gradients.winograd.library import Convolutions, load


class _Replaced(TorchFunctionMode):
    """Replaces calls of `torch.conv2d` in this thread, whoever makes them."""

    def __init__(self, convolutions: Convolutions) -> None:
        super().__init__()
        self._convolutions = convolutions

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and first_order():
            call = Call.of(*args, **kwargs)
            scheme = call.scheme()
            if scheme is not None:
                given = call.x, call.weight, call.bias, scheme, self._convolutions
                return WinogradConvolution.apply(*given)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Winograd(Autograd):
    """Computes gradients of one client by autograd with compiled convolutions.

    Stacks of clients are left to torch, as `vmap` needs its convolutions. The compiled functions
    have no state and the replacement is a thread's own, so clients on several threads share them.
    """

    convolutions: Convolutions

    def slope(self, f: Callable[[Vector], Tensor], x: Vector) -> Vector:
        """Return the gradient of f at x, outside of any vmap; by torch alone if not finite."""
        with _Replaced(self.convolutions):
            g = super().slope(f, x)
        return g if math.isfinite(float(g.sum())) else super().slope(f, x)


class Survey(NamedTuple):
    """Holds what a forward pass would replace."""

    convolutions: int  # calls of torch.conv2d
    replaced: int  # of which a compiled one takes the place
    products: int  # of a sample's gradient in those, as torch would compute them


class _Count(TorchFunctionMode):
    """Counts the calls that would be replaced if there were `samples` times as many images."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.survey = Survey(0, 0, 0)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.conv2d:
            call = Call.of(*args, **(kwargs or {}))
            fits = call.scheme(self.samples) is not None
            convolutions, replaced, products = self.survey
            products += 3 * call.products if fits else 0  # forward, and back to both operands
            self.survey = Survey(convolutions + 1, replaced + fits, products)
        return result


def survey(task: Task, x: Vector, batch: Batch) -> Survey:
    """Return what would be replaced in the gradient of a minibatch, by a pass of one sample."""
    counts = _Count(len(batch.targets))
    with torch.no_grad(), counts:
        task.forward(x, batch.inputs[:1], batch.keys)
    return counts.survey


def build() -> Winograd:
    """Return the oracle, or raise `UnsupportedError`, which says why it cannot be built."""
    return Winograd(load())
