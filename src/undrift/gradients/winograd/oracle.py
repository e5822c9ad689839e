"""Gradients by torch, with its wide convolutions replaced by compiled ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from undrift.core import Vector
from undrift.gradients.task import Autograd, Batch, Task
from undrift.gradients.winograd.convolution import (
    CHANNELS,
    Call,
    WinogradConvolution,
    first_order,
)
from undrift.gradients.winograd.library import Convolutions, load
from undrift.gradients.winograd.places import Places


class _Replaced(TorchFunctionMode):
    """Replaces calls of `torch.conv2d` in this thread, whoever makes them.

    The parameters' slopes go where `places` has them, for which it splits the leaf.
    """

    def __init__(self, convolutions: Convolutions, places: Places) -> None:
        super().__init__()
        self._convolutions, self._places = convolutions, places

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and first_order():
            call = Call.of(*args, **kwargs)
            scheme = call.scheme()
            if scheme is not None:
                given = call.x, call.weight, call.bias, scheme, self._convolutions, self._places
                return WinogradConvolution.apply(*given)  # type: ignore[no-untyped-call]
        if func is torch.split and args[0] is self._places.leaf and first_order():
            sizes = args[1]
            if isinstance(sizes, list):  # as a layout of parameters splits
                return self._places.split(sizes)
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
        places = Places(x.detach().requires_grad_())
        with torch.enable_grad(), _Replaced(self.convolutions, places):
            value = f(places.leaf)
            with places.lending():
                (g,) = torch.autograd.grad(value, places.leaf)
        return g if places.is_finite(g) else super().slope(f, x)


class Survey(NamedTuple):
    """Holds what a forward pass would replace."""

    convolutions: int  # calls of torch.conv2d
    replaced: int  # of which a compiled one takes the place
    products: int  # of a sample's gradient in those, as torch would compute them


class _Count(TorchFunctionMode):
    """Counts the calls that would be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Survey(0, 0, 0)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d:
            call = Call.of(*args, **kwargs)
            fits = call.scheme() is not None
            convolutions, replaced, products = self.counts
            products += 3 * call.products if fits else 0  # forward, and back to both operands
            self.counts = Survey(convolutions + 1, replaced + fits, products)
        return func(*args, **kwargs)


def has_wide_convolutions(model: nn.Module) -> bool:
    """Return whether the model has 3x3 weights of enough channels."""
    shapes = (tuple(parameter.shape) for parameter in model.parameters())
    return any(
        len(shape) == 4 and shape[2:] == (3, 3) and min(shape[:2]) >= CHANNELS for shape in shapes
    )


def survey(task: Task, batch: Batch) -> Survey:
    """Return what would be replaced in the gradient of a minibatch, by a forward pass."""
    counting = _Count()
    x = task.layout.gather(task.model)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), counting:
        task.forward(x, batch.inputs, batch.keys)
    counts = counting.counts
    return counts._replace(products=counts.products // len(batch.targets))


def build_winograd() -> Winograd:
    """Return the oracle, or raise `UnsupportedError`, which says why it cannot be built."""
    return Winograd(load())
